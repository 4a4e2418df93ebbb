"""Accuracy against speed: which candidates no other beats in both."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from harness.records import Direction, Status
from harness.report.content import (
    MOST_DRAWN,
    Block,
    FigureBlock,
    Panel,
    Text,
    left_out,
    name_of,
)
from harness.report.figures import pareto_figure
from harness.report.frame import Findings
from harness.report.slices import groups, view_of
from harness.selection.requirement import largest_required, requirement_text

__all__ = ["accuracy_against_speed"]


def accuracy_against_speed(findings: Findings) -> tuple[Block, ...]:
    """Show the error and the speed of every candidate, and which no other beats in both."""
    cases = findings.cases
    timed = cases[cases["ratio"].notna()]
    figures: list[FigureBlock] = []
    drawn_so_far, undrawn = 0, []
    for (direction, place), group in groups(timed, "direction", "place"):
        if direction == Direction.FORWARD_BACKWARD:
            continue  # its errors are those of the backward, and its time the sum
        panels = []
        for (dtype,), rows in groups(group, "dtype"):
            whole = cases[
                (cases["place"] == place)
                & (cases["direction"] == direction)
                & (cases["dtype"] == dtype)
                & (cases["condition"] <= largest_required(findings.max_condition))
            ]
            points = _points(rows, whole)
            if len(points) < 2:
                continue
            title = f"{dtype}, {direction}"
            panels.append(
                Panel(
                    name_of("accuracy against speed", str(place), str(direction), str(dtype)),
                    f"Accuracy against speed: {place}, {title}",
                    partial(pareto_figure, title=title, rows=points),
                    view_of(str(place), str(direction), str(dtype), x="speed", y="error_ulp"),
                )
            )
        if figures and drawn_so_far + len(panels) > MOST_DRAWN:
            undrawn += panels
        elif panels:
            drawn_so_far += len(panels)
            figures.append(
                FigureBlock(
                    title=f"Accuracy against speed: {place}, {direction}",
                    caption=_caption(findings.max_condition),
                    panels=tuple(panels),
                    is_folded=bool(figures),
                )
            )
    if not figures:
        return (Text("No two candidates were timed and checked."),)
    return (*figures, *left_out(undrawn))


def _caption(max_condition: float) -> str:
    return (
        "Right is faster, down is more accurate. Bold names: no other candidate "
        "is both faster and more accurate. Speed: geometric mean over the shapes in which most "
        "candidates were timed. Error: the largest of any output, for "
        f"{requirement_text(max_condition)}. ✕: a result was outside its bound. At the top: not "
        "finite."
    )


def _points(timed: pd.DataFrame, checked: pd.DataFrame) -> pd.DataFrame:
    """Return speed and error of each candidate that was timed in as many cases as any other."""
    columns = {"label": timed["label"].astype(str), "log_speed": -np.log(timed["ratio"])}
    speeds = pd.DataFrame(columns).groupby("label", sort=False)["log_speed"].agg(["mean", "size"])
    speeds = speeds[speeds["size"] == speeds["size"].max()]
    own = pd.DataFrame({
        "label": checked["label"].astype(str),
        "error_ulp": checked["error_ulp"],
        "is_wrong": checked["status"] == Status.WRONG,
    })
    errors = own.groupby("label", sort=False).max()
    points = speeds.join(errors, how="inner").dropna(subset="error_ulp")
    return pd.DataFrame({
        "label": points.index,
        "speed": np.exp(points["mean"]),
        "error_ulp": points["error_ulp"],
        "is_wrong": points["is_wrong"].astype(bool),
    }).reset_index(drop=True)

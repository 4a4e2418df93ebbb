"""Which implementation to run: the preference, and the speeds that it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isinf, isnan, nan

import numpy as np
import pandas as pd

from harness.records import Status
from harness.report.content import Block, Cell, Column, Figure, Table, Text, number
from harness.report.figures import speed_map
from harness.report.frame import REFERENCE, Findings
from harness.report.quantities import count, rounded, speed
from harness.report.slices import each

__all__ = ["which_implementation_to_run"]

_QUESTION = ["shape", "distribution", "setting", "seed"]  # what a case asks of every candidate
_MOST_EXCLUDED = 4  # ours: more names hide the answer


def which_implementation_to_run(findings: Findings) -> tuple[Block, ...]:
    """Name the fastest implementation without a fault, for each device, dtype and direction."""
    cases = findings.cases
    if not cases["ratio"].notna().any():
        return (
            Text(
                f"No time relative to {REFERENCE} was measured, so there is nothing to prefer by. "
                "Errors alone are in the sections below."
            ),
        )
    rows = []
    for (place, dtype, direction), group in each(cases, "place", "dtype", "direction"):
        if group["ratio"].notna().any():
            rows.append(_choice_row(str(place), str(dtype), str(direction), group))
    table = Table(
        caption="The fastest that was right in every case of this device, dtype and direction. "
        f"Speed is relative to {REFERENCE}, run eagerly and timed in turn with it: 2.00× takes "
        "half the time. It is the geometric mean over all timed cases.",
        columns=(
            Column("Device"),
            Column("dtype"),
            Column("Direction"),
            Column("Run"),
            Column("Speed", is_number=True),
            Column("Fastest in", is_number=True),
            Column("Next"),
            Column("Faster, but not to be relied on"),
        ),
        rows=tuple(rows),
    )
    return (table, *_speed_figures(cases))


@dataclass(frozen=True, slots=True)
class _Candidate:
    label: str
    speed_ratio: float
    """Geometric mean; above 1 is faster than the reference."""
    timed: pd.DataFrame
    fault: str
    """Why it is not to be relied on; empty where it is."""

    def ties_with(self, other: _Candidate) -> bool:
        """Whether the intervals of the two overlap in every case that both were timed in."""
        both = self.timed.merge(other.timed, on=_QUESTION, suffixes=("", "_other"))
        apart = (both["ratio_low"] > both["ratio_high_other"]) | (
            both["ratio_high"] < both["ratio_low_other"]
        )
        return bool(len(both)) and not apart.any()


def _choice_row(place: str, dtype: str, direction: str, group: pd.DataFrame) -> tuple[Cell, ...]:
    where = (Cell(place), Cell(dtype), Cell(direction))
    candidates = _candidates(group)
    sound = [each for each in candidates if not each.fault]
    best = sound[0] if sound else None
    faster = [
        each for each in candidates if each.fault and (not best or each.speed_ratio > best.speed_ratio)
    ]
    words = [f"{each.label} {speed(each.speed_ratio)}: {each.fault}" for each in faster]
    if len(words) > _MOST_EXCLUDED:
        words[_MOST_EXCLUDED:] = [f"and {count(len(words) - _MOST_EXCLUDED, 'more')[:-1]}"]
    excluded = Cell("\n".join(words) or "none", is_long=True)
    if best is None:
        return (*where, Cell("none was right throughout"), number("–"), Cell(), Cell(), excluded)
    ties = [each.label for each in sound[1:] if best.ties_with(each)]
    runner_up = sound[1] if len(sound) > 1 else None
    return (
        *where,
        Cell(best.label, is_strong=True, note=f"tie with {', '.join(ties)}" if ties else ""),
        number(speed(best.speed_ratio)),
        number(_wins(best, sound)),
        Cell(runner_up.label, note=speed(runner_up.speed_ratio)) if runner_up else Cell("none"),
        excluded,
    )


def _candidates(group: pd.DataFrame) -> list[_Candidate]:
    """Return everything that was timed, the fastest first."""
    answered = group[group["status"].isin([each for each in Status if each.is_measured])]
    possible = pd.MultiIndex.from_frame(answered[_QUESTION]).unique()
    timed = group[group["ratio"].notna()]
    most = timed.groupby("label", sort=False).size().max()
    found = []
    for label, own in each(timed, "label"):
        (name,) = label
        fault = _fault(group[group["label"] == name], possible)
        if not fault and len(own) < most:
            fault = f"timed in {len(own)} of {most} cases only"
        found.append(_Candidate(str(name), exp(-np.log(own["ratio"]).mean()), own, fault))
    return sorted(found, key=lambda each: -each.speed_ratio)


def _fault(rows: pd.DataFrame, possible: pd.MultiIndex) -> str:
    """Say what speaks against an implementation, the worst first; empty if nothing does.

    A case that nobody could run, such as values that the dtype cannot hold, speaks against no one.
    """
    for status, words in ((Status.WRONG, "wrong"), (Status.OUT_OF_GUARANTEE, "out of guarantee")):
        bad = rows[rows["status"] == status]
        if len(bad):
            return f"{words} {_from_condition(bad['condition'])}"
    rows = rows[pd.MultiIndex.from_frame(rows[_QUESTION]).isin(possible)]
    for status in (Status.CRASHED, Status.TIMEOUT, Status.ERROR, Status.OUT_OF_MEMORY):
        bad = rows[rows["status"] == status]
        if len(bad):
            return f"{status.replace('_', ' ')} in {count(len(bad), 'case')}"
    refused = rows[rows["status"] == Status.UNSUPPORTED]
    return f"declines {count(len(refused), 'case')} that others run" if len(refused) else ""


def _from_condition(conditions: pd.Series) -> str:
    least = conditions.min()
    if isnan(least):
        return "somewhere"
    return "on constant rows" if isinf(least) else f"from condition {rounded(least)} on"


def _wins(best: _Candidate, sound: list[_Candidate]) -> str:
    """Count the cases in which no other sound implementation is faster."""
    every = pd.concat([each.timed for each in sound])
    least = every.groupby(_QUESTION, sort=False)["ratio"].min().rename("least").reset_index()
    own = best.timed.merge(least, on=_QUESTION)
    return f"{int((own['ratio'] <= own['least']).sum())} of {len(own)}"


def _speed_figures(cases: pd.DataFrame) -> list[Figure]:
    timed = cases[cases["ratio"].notna()]
    figures = []
    for (place, direction), group in each(timed, "place", "direction"):
        panels = []
        for (dtype,), rows in each(group, "dtype"):
            whole = cases[
                (cases["place"] == place)
                & (cases["direction"] == direction)
                & (cases["dtype"] == dtype)
            ]
            speeds, failed = _speed_tables(rows, whole)
            name = f"speed-{len(figures)}-{len(panels)}"
            panels.append(speed_map(name, str(dtype), speeds, failed))
        figures.append(
            Figure(
                title=f"Speed relative to {REFERENCE}: {place}, {direction}",
                caption="2.00 is twice as fast, 0.50 half as fast: blue is faster, orange slower. "
                "✕: the result was not within its bound, so the speed is of no use. A dash: not "
                "timed; the reason is under “Not measured”. Where several cases share a cell "
                "it shows their geometric mean.",
                panels=tuple(panels),
                is_stretched=False,
            )
        )
    return figures


def _speed_tables(timed: pd.DataFrame, whole: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return implementations by shapes: how fast, and whether the result was not right.

    Who was asked and could not answer has a row of dashes.
    """
    labels = list(whole["label"].unique())
    shapes = list(timed.sort_values("elements", kind="stable")["shape"].unique())
    by_cell = timed.groupby(["label", "shape"], sort=False)
    logs = by_cell["ratio"].agg(lambda ratios: -np.log(ratios).mean())
    not_ok = by_cell["status"].agg(lambda statuses: bool((statuses != Status.OK).any()))
    speeds = np.exp(logs).unstack("shape").reindex(index=labels, columns=shapes)
    failed = not_ok.unstack("shape").reindex(index=labels, columns=shapes)
    return speeds.astype(float), failed.fillna(value=False).astype(bool)

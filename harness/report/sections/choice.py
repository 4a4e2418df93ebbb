"""Which implementation to run: the preference, and the speeds that it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, isinf, isnan

import numpy as np
import pandas as pd

from harness.records import Status
from harness.report.content import Block, Cell, Column, Figure, Panel, Table, Text, number
from harness.report.figures import speed_map
from harness.report.frame import REFERENCE, Findings
from harness.report.quantities import count, rounded, speed
from harness.report.slices import groups

__all__ = ["which_implementation_to_run"]

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
    for (place, dtype, direction), group in groups(cases, "place", "dtype", "direction"):
        if group["ratio"].notna().any():
            rows.append(_choice_row(str(place), str(dtype), str(direction), group))
    table = Table(
        title="The fastest that is to be relied on, for each device, dtype and direction",
        caption=f"Speed is relative to {REFERENCE}, run eagerly and timed in turn with it: 2.00× "
        "takes half the time. It is the geometric mean over all timed cases. Passed over is who "
        "was wrong anywhere, or gave no promise or no result where another was right. A case that "
        "none of them could do speaks against none: it is counted under the name.",
        columns=(
            Column("Device"),
            Column("dtype"),
            Column("Direction"),
            Column("Run"),
            Column("Speed", is_number=True),
            Column("Fastest in", is_number=True),
            Column("Next"),
            Column("Faster, but passed over"),
        ),
        rows=tuple(rows),
    )
    return (table, *_speed_figures(cases))


@dataclass(frozen=True, slots=True)
class _Candidate:
    label: str
    timed: pd.DataFrame
    """Its timed cases, by question."""
    fault: str
    """Why it is not to be relied on; empty where it is."""
    without_promise: int
    """Cases out of guarantee that no other did better."""

    @property
    def speed_ratio(self) -> float:
        """Geometric mean; above 1 is faster than the reference."""
        return exp(-float(np.log(self.timed["ratio"].to_numpy(float)).mean()))

    def ties_with(self, other: _Candidate) -> bool:
        """Whether the intervals of the two overlap in every case that both were timed in."""
        both = self.timed.index.intersection(other.timed.index)
        mine, theirs = self.timed.loc[both], other.timed.loc[both]
        overlap = (mine["ratio_low"] <= theirs["ratio_high"]) & (
            theirs["ratio_low"] <= mine["ratio_high"]
        )
        return bool(len(both)) and bool(overlap.all())


def _choice_row(place: str, dtype: str, direction: str, group: pd.DataFrame) -> tuple[Cell, ...]:
    where = (Cell(place), Cell(dtype), Cell(direction))
    candidates = sorted(_candidates(group), key=lambda each: -each.speed_ratio)
    sound = [each for each in candidates if not each.fault]
    best = sound[0] if sound else None
    faster = candidates[: candidates.index(best)] if best else candidates
    faster.sort(key=lambda each: each.fault.startswith("timed"))  # faults first, then gaps
    words = [f"{each.label} {speed(each.speed_ratio)}: {each.fault}" for each in faster]
    if len(words) > _MOST_EXCLUDED:
        words[_MOST_EXCLUDED:] = [f"and {len(words) - _MOST_EXCLUDED:,} more"]
    excluded = Cell("\n".join(words) or "none", is_long=True)
    if best is None:
        return (
            *where,
            Cell("none is to be relied on"),
            number("–"),
            number("–"),
            Cell(),
            excluded,
        )
    ties = [each.label for each in sound[1:] if best.ties_with(each)]
    runner_up = sound[1] if len(sound) > 1 else None
    return (
        *where,
        Cell(best.label, is_strong=True, note="\n".join(_qualifications(best, ties))),
        number(speed(best.speed_ratio)),
        number(_wins(best, sound)),
        Cell(runner_up.label, note=speed(runner_up.speed_ratio)) if runner_up else Cell("none"),
        excluded,
    )


def _qualifications(best: _Candidate, ties: list[str]) -> Iterator[str]:
    if ties:
        yield f"tie with {', '.join(ties)}"
    if best.without_promise:
        yield f"out of guarantee, as all are, in {count(best.without_promise, 'case')}"


def _candidates(group: pd.DataFrame) -> Iterator[_Candidate]:
    """Yield everything that was timed."""
    answered = group["status"].isin([each.value for each in Status if each.is_measured])
    possible = set(group["question"][answered])
    promised = set(group["question"][group["status"] == Status.OK])
    most = int(group["ratio"].notna().groupby(group["label"]).sum().max())
    for (label,), own in groups(group, "label"):
        timed = own[own["ratio"].notna()].set_index("question")
        if len(timed):
            fault = _fault(own, possible, promised)
            if not fault and len(timed) < most:
                fault = f"timed in {len(timed)} of {most} cases only"
            vacuous = int((own["status"] == Status.OUT_OF_GUARANTEE).sum())
            yield _Candidate(str(label), timed, fault, vacuous)


def _fault(own: pd.DataFrame, possible: set[int], promised: set[int]) -> str:
    """Say what speaks against an implementation, the worst first; empty if nothing does.

    Being wrong always does. A case that nobody could run, such as values that the dtype cannot
    hold, or that nobody promises anything for, speaks against no one.

    Args:
        own: its cases.
        possible: questions that somebody could run.
        promised: questions that somebody got right.
    """
    wrong = own[own["status"] == Status.WRONG]
    if len(wrong):
        return f"wrong {_from_condition(wrong['condition'])}"
    worse = own[(own["status"] == Status.OUT_OF_GUARANTEE) & own["question"].isin(promised)]
    if len(worse):
        return f"out of guarantee {_from_condition(worse['condition'])}"
    statuses = own["status"].to_numpy()[own["question"].isin(possible).to_numpy()]
    for status in (Status.CRASHED, Status.TIMEOUT, Status.ERROR, Status.OUT_OF_MEMORY):
        failed = int((statuses == status).sum())
        if failed:
            return f"{status.replace('_', ' ')} in {count(failed, 'case')}"
    refused = int((statuses == Status.UNSUPPORTED).sum())
    return f"declines {count(refused, 'case')} that others run" if refused else ""


def _from_condition(conditions: pd.Series) -> str:
    least = conditions.min()
    if isnan(least):
        return "somewhere"
    return "on constant rows" if isinf(least) else f"from condition {rounded(least)} on"


def _wins(best: _Candidate, sound: list[_Candidate]) -> str:
    """Count the cases in which no other sound implementation is faster."""
    least = pd.concat([each.timed["ratio"] for each in sound]).groupby(level=0).min()
    own = best.timed["ratio"]
    return f"{int((own <= least.loc[own.index]).sum())} of {len(own)}"


def _speed_figures(cases: pd.DataFrame) -> list[Figure]:
    timed = cases[cases["ratio"].notna()]
    figures: list[Figure] = []
    shown: set[str] = set()
    for (place, direction), group in groups(timed, "place", "direction"):
        panels: list[Panel] = []
        for (dtype,), rows in groups(group, "dtype"):
            whole = cases[
                (cases["place"] == place)
                & (cases["direction"] == direction)
                & (cases["dtype"] == dtype)
            ]
            speeds, failed = _speed_tables(rows, whole)
            name = f"s{len(figures)}-{len(panels)}"
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
                is_folded=place in shown,
            )
        )
        shown.add(place)
    return figures


def _speed_tables(timed: pd.DataFrame, whole: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return implementations by shapes: how fast, and whether the result was not right.

    Who was asked and could not answer has a row of dashes.
    """
    labels = [str(label) for (label,), _ in groups(whole, "label")]
    shapes = list(timed.sort_values("elements", kind="stable")["shape"].unique())
    rows = pd.DataFrame({
        "label": timed["label"].astype(str),
        "shape": timed["shape"],
        "log_speed": -np.log(timed["ratio"]),
        "is_bad": timed["status"] != Status.OK,
    })
    by_cell = rows.groupby(["label", "shape"], sort=False)
    speeds = np.exp(by_cell["log_speed"].mean()).unstack("shape")
    failed = by_cell["is_bad"].max().unstack("shape", fill_value=False)
    speeds = speeds.reindex(index=labels, columns=shapes)
    failed = failed.reindex(index=labels, columns=shapes, fill_value=False)
    return speeds, failed

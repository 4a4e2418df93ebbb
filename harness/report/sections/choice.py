"""Which implementation to run: the preference, and the speeds that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isinf

import numpy as np
import pandas as pd

from harness.records import Estimate, Record, Status
from harness.report.content import Block, Cell, Column, Figure, Panel, Table, Text, number
from harness.report.figures import speed_map
from harness.report.frame import REFERENCE, Findings
from harness.report.quantities import count, rounded, speed
from harness.report.slices import groups
from harness.selection.choose import disqualifications_of
from harness.selection.eligibility import (
    Disqualification,
    DisqualificationKind,
    attainable_by,
    disqualification_of,
    time_disqualification,
)
from harness.selection.ranking import Candidate, Decider, Ranking, geometric_mean, rank
from harness.selection.scenarios import Name, name_of, scenarios_of
from harness.selection.times import LONG_FLOOR, SHORT_FLOOR, widened

__all__ = ["which_implementation_to_run"]

_MOST_EXCLUDED = 4  # ours: more names hide the answer


def which_implementation_to_run(findings: Findings) -> tuple[Block, ...]:
    """Name the fastest implementation without a disqualification, for each device, dtype and direction."""
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
            rows.append(
                _choice_row(str(place), str(dtype), str(direction), group, findings.records)
            )
    table = Table(
        title="The fastest that is to be relied on, for each device, dtype and direction",
        caption=f"Speed is relative to {REFERENCE}, run eagerly and timed in turn with it: 2.00× "
        "takes half the time. It is the geometric mean over all timed cases. An interval over one "
        f"process counts as {SHORT_FLOOR - 1:.0%} wider either way, that of a call over 1 ms as "
        f"{LONG_FLOOR - 1:.0%}, which is what processes differ by. Where intervals "
        "overlap, accuracy decides between those within a tenth of the fastest, then memory. "
        "Passed over is who was timed too few times, was wrong anywhere, or gave no "
        "promise or no result where another was right. A case that none of them could do speaks "
        "against none: it is counted under the name. “Fastest in” leaves out who is passed over.",
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


def _choice_row(
    place: str, dtype: str, direction: str, group: pd.DataFrame, records: Sequence[Record]
) -> tuple[Cell, ...]:
    where = (Cell(place), Cell(dtype), Cell(direction))
    candidates = sorted(_candidates(group, records), key=_relative_time)
    ranking = rank(candidates)
    best = ranking.best
    faster = [
        each
        for each in candidates
        if each.disqualification and (best is None or _relative_time(each) < _relative_time(best))
    ]
    # disqualifications first, then gaps
    faster.sort(
        key=lambda each: (
            each.disqualification is not None
            and each.disqualification.kind is DisqualificationKind.UNTIMED
        )
    )
    words = [f"{each.label} {_speed(each)}: {_fault_words(each, group)}" for each in faster]
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
    others = [each for each in ranking.eligible if each is not best]
    return (
        *where,
        Cell(best.label, is_strong=True, note="\n".join(_qualifications(best, ranking))),
        number(_speed(best)),
        number(_wins(best, ranking.eligible, group)),
        Cell(others[0].label, note=_speed(others[0])) if others else Cell("none"),
        excluded,
    )


def _qualifications(best: Candidate, ranking: Ranking) -> Iterator[str]:
    wide = [each.label for each, by in ranking.tied if by is Decider.ESTIMATE]
    ties = [each.label for each, by in ranking.tied if by is not Decider.ESTIMATE]
    if ties:
        yield f"tie with {', '.join(ties)}"
    if wide:
        yield f"by its estimate: intervals are too wide to tell it from {', '.join(wide)}"
    vacuous = sum(each.status is Status.OUT_OF_GUARANTEE for each in best.evidence)
    if vacuous:
        yield f"out of guarantee, as all are, in {count(vacuous, 'case')}"


def _candidates(group: pd.DataFrame, records: Sequence[Record]) -> Iterator[Candidate]:
    """Yield everything that was timed; ``records`` are those of the whole frame.

    What speaks against one is what does so over all cases of the group, beside the others that
    were timed, and what ``choose`` has against it for any of its scenarios.
    """
    is_timed = group["label"].isin(group.loc[group["ratio"].notna(), "label"])
    beside = [records[index] for index in group.index[is_timed]]
    field, disqualifications = attainable_by(beside), _faults_of_questions(beside, records)
    asked = _timed_questions(group)
    for _, own in groups(group, "label"):
        timed = own[own["ratio"].notna()]
        if not len(timed):
            continue
        evidence = tuple(records[index] for index in own.index)
        disqualification = disqualification_of(evidence, field) or disqualifications.get(
            name_of(evidence[0])
        )
        if disqualification is None and set(timed["scenario"]) != asked:
            disqualification = Disqualification(kind=DisqualificationKind.UNTIMED)
        ratios = [
            Estimate(value=value, low=low, high=high)
            for value, low, high in zip(
                timed["ratio"], timed["ratio_low"], timed["ratio_high"], strict=True
            )
        ]
        spans = [
            widened(ratio, records[index]) for ratio, index in zip(ratios, timed.index, strict=True)
        ]
        cost = geometric_mean(ratios)
        disqualification = disqualification or time_disqualification(cost)
        held = timed["peak_bytes"]
        yield Candidate(
            implementation=evidence[0].case.implementation,
            mode=evidence[0].case.mode,
            cost=cost,
            span=geometric_mean(spans),
            disqualification=disqualification,
            evidence=evidence,
            peak_bytes=int(held.max()) if held.notna().all() else None,
        )


def _faults_of_questions(
    group: Sequence[Record], records: Sequence[Record]
) -> dict[Name, Disqualification]:
    """Return the first thing that speaks against each candidate for one of the timed scenarios."""
    every, disqualifications = scenarios_of(records), dict[Name, Disqualification]()
    for scenario, own in scenarios_of(group).items():
        if any(each.latency is not None for each in own):
            for name, disqualification in disqualifications_of(scenario, every).items():
                if (
                    disqualification.kind is not DisqualificationKind.UNTIMED
                ):  # counted for the mean over all of them
                    disqualifications.setdefault(name, disqualification)
    return disqualifications


def _timed_questions(group: pd.DataFrame) -> set[int]:
    """What any of them was timed for: means over some of it each are no means to compare."""
    return set(group.loc[group["ratio"].notna(), "scenario"])


def _relative_time(candidate: Candidate) -> float:
    """Geometric mean; below 1 is faster than the reference."""
    return inf if candidate.cost is None else candidate.cost.value


def _speed(candidate: Candidate) -> str:
    return speed(1 / _relative_time(candidate))


def _fault_words(candidate: Candidate, group: pd.DataFrame) -> str:
    """Say in a few words what speaks against an implementation."""
    disqualification = candidate.disqualification
    assert disqualification is not None  # who has none is not passed over
    if disqualification.kind in {DisqualificationKind.WRONG, DisqualificationKind.OUT_OF_GUARANTEE}:
        return (
            f"{disqualification.kind.replace('_', ' ')} {_from_condition(disqualification.records)}"
        )
    if disqualification.kind is DisqualificationKind.UNTIMED:
        own = _timed_questions(group[group["label"] == candidate.label])
        return f"timed in {len(own)} of {len(_timed_questions(group))} cases only"
    if disqualification.kind is DisqualificationKind.TOO_FEW_SAMPLES:
        return "timed too few times to tell"
    if disqualification.kind is DisqualificationKind.NOT_BELIEVED:
        return "its time is not to be believed"
    if disqualification.kind is DisqualificationKind.UNSUPPORTED:
        return f"declines {count(len(disqualification.records), 'case')} that others run"
    if disqualification.kind is DisqualificationKind.UNVERIFIED:
        return "its errors were not measured"
    return f"{disqualification.kind.replace('_', ' ')} in {count(len(disqualification.records), 'case')}"


def _from_condition(records: Sequence[Record]) -> str:
    conditions = [each.errors.condition_max_ratio for each in records if each.errors is not None]
    if not conditions:
        return "somewhere"
    least = min(conditions)
    return "on constant rows" if isinf(least) else f"from condition {rounded(least)} on"


def _wins(best: Candidate, eligible: Sequence[Candidate], group: pd.DataFrame) -> str:
    """Count the cases in which no other eligible implementation is faster."""
    timed = group[group["ratio"].notna() & group["label"].isin([each.label for each in eligible])]
    least = timed.groupby("scenario")["ratio"].min()
    own = timed[timed["label"] == best.label].set_index("scenario")["ratio"]
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
                "asked for, or not timed for a reason that is under “Not measured” or “Warnings”. "
                "Where several cases share a cell it shows their geometric mean.",
                panels=tuple(panels),
                is_stretched=False,
                is_folded=place in shown,
            )
        )
        shown.add(place)
    return figures


def _speed_tables(timed: pd.DataFrame, whole: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return implementations by shapes: how fast, and whether the result was not right.

    Who was asked for a time and has none has a row of dashes; who was asked for errors alone has
    no row.
    """
    is_measured = whole["status"].isin([each.value for each in Status if each.is_measured])
    asked = whole[whole["ratio"].notna() | ~is_measured | (whole["warnings"] != "")]
    labels = [str(label) for (label,), _ in groups(asked, "label")]
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

"""Which implementation to run: the overall choices, and the speeds behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from harness.records import Record, Status
from harness.records.text import count, in_words, percent_text
from harness.report.content import Block, Cell, Column, Table, Text, number
from harness.report.frame import Findings
from harness.report.quantities import DASH, rounded, speed
from harness.report.slices import groups
from harness.selection.eligibility import DisqualificationKind
from harness.selection.overall import OverallChoice, Place, choose_overall
from harness.selection.ranking import CLOSE_RATIO, Candidate, Decider
from harness.selection.text import WIDENED_TEXT
from harness.selection.times import REFERENCE_NAME

__all__ = ["which_implementation_to_run"]

_MOST_DISQUALIFIED = 4  # trade-off: a longer list hides the answer of its row
_COLUMNS = (
    Column("Device"),
    Column("dtype"),
    Column("Direction"),
    Column("Run"),
    Column("Speed", is_number=True),
    Column("Fastest in", is_number=True),
    Column("Next"),
    Column("Faster, but disqualified"),
)
_CAPTION = (
    f"Speed is relative to {REFERENCE_NAME}, run eagerly and timed in turn: 2.00× takes half the "
    f"time. It is the geometric mean over all cases. {WIDENED_TEXT} If intervals overlap, accuracy "
    f"decides between those within {percent_text(CLOSE_RATIO - 1)} of the fastest, then memory. A "
    "candidate is disqualified if it has no interval, was wrong in any case, or was out of "
    "guarantee or not measured where another was ok. If every candidate is out of guarantee in a "
    "case, the case disqualifies none; a note below the name counts such cases. “Fastest in” "
    "compares eligible candidates only."
)


def which_implementation_to_run(findings: Findings) -> tuple[Block, ...]:
    """Name the fastest eligible implementation for each device, dtype and direction."""
    cases, records = findings.cases, findings.records
    choices = choose_overall(records)
    if not choices:
        return (
            Text(
                f"No time relative to {REFERENCE_NAME} was measured, so nothing can be preferred. "
                "The sections below have the errors."
            ),
        )
    rows = []
    for (place, dtype, _), group in groups(cases, "place", "dtype", "direction"):
        choice = choices.get(_place(records[group.index[0]]))
        if choice is not None:
            direction = str(group["direction"].iloc[0])
            where = (Cell(str(place)), Cell(str(dtype)), Cell(direction))
            rows.append((*where, *_answer(choice)))
    table = Table(
        name="choice",
        title="The fastest eligible implementation for each device, dtype and direction",
        caption=_CAPTION,
        columns=_COLUMNS,
        rows=tuple(rows),
    )
    return (table,)


def _place(record: Record) -> Place:
    case = record.case
    return Place(record.environment, case.device, case.dtype, case.direction)


def _answer(choice: OverallChoice) -> tuple[Cell, ...]:
    best = choice.ranking.best
    faster = [
        f"{candidate.label} {_speed(candidate)}: {_reason(candidate, choice)}"
        for candidate in choice.faster
    ]
    if len(faster) > _MOST_DISQUALIFIED:
        faster[_MOST_DISQUALIFIED:] = [f"and {len(faster) - _MOST_DISQUALIFIED:,} more"]
    disqualified = Cell("\n".join(faster) or "none", is_long=True)
    if best is None:
        return (Cell("none is eligible"), number(DASH), number(DASH), Cell(), disqualified)
    others = [candidate for candidate in choice.ranking.eligible if candidate is not best]
    return (
        Cell(best.label, is_strong=True, note="\n".join(_qualifications(best, choice))),
        number(_speed(best)),
        number(f"{choice.fastest_in} of {len(best.timed)}"),
        Cell(others[0].label, note=_speed(others[0])) if others else Cell("none"),
        disqualified,
    )


def _qualifications(best: Candidate, choice: OverallChoice) -> Iterator[str]:
    wide = [each.label for each, by in choice.ranking.tied if by is Decider.ESTIMATE]
    ties = [each.label for each, by in choice.ranking.tied if by is not Decider.ESTIMATE]
    if ties:
        yield f"tie with {', '.join(ties)}"
    if wide:
        yield f"by its estimate: intervals are too wide to tell it from {', '.join(wide)}"
    vacuous = sum(record.status is Status.OUT_OF_GUARANTEE for record in best.evidence)
    if vacuous:
        yield f"out of guarantee, as all are, in {count(vacuous, 'case')}"


def _speed(candidate: Candidate) -> str:
    return speed(1 / candidate.cost.value) if candidate.cost else DASH


def _reason(candidate: Candidate, choice: OverallChoice) -> str:
    """Return in a few words why a candidate is disqualified."""
    disqualification = candidate.disqualification
    assert disqualification is not None  # choice.faster holds no others
    kind, records = disqualification.kind, disqualification.records
    match kind:
        case DisqualificationKind.WRONG | DisqualificationKind.OUT_OF_GUARANTEE:
            return f"{in_words(kind)} {_from_condition(records)}"
        case DisqualificationKind.UNTIMED:
            return f"timed in only {len(candidate.timed)} of {choice.timed_cases} cases"
        case DisqualificationKind.TOO_FEW_SAMPLES:
            return "too few samples for an interval"
        case DisqualificationKind.INVALID_TIME:
            return "its time is not valid"
        case DisqualificationKind.UNSUPPORTED:
            return f"declines {count(len(records), 'case')} that others run"
        case DisqualificationKind.UNVERIFIED:
            return "its errors were not measured"
        case _:
            return f"{in_words(kind)} in {count(len(records), 'case')}"


def _from_condition(records: Sequence[Record]) -> str:
    conditions = [each.errors.condition_max_ratio for each in records if each.errors is not None]
    if not conditions:
        return "somewhere"
    least = min(conditions)
    return "on constant rows" if isinf(least) else f"from condition {rounded(least)} on"

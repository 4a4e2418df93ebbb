"""The tables of the answer: what to run, what the reader has now, and the price of the others.

A row belongs to one or several of the requirements that the reader can switch between; rows that
are equal under several requirements are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.numerics.bound_terms import SIGNIFICAND_BITS
from harness.records import Direction, Estimate, Record, Status
from harness.records.speed import as_speed, speed_text
from harness.records.text import count, seconds_text, shape_text
from harness.report.content import Cell, Column, Table, number
from harness.report.frame import Findings
from harness.report.quantities import DASH
from harness.selection.answers import Answer
from harness.selection.choose import Choice
from harness.selection.disqualification_text import fault_text, reach_text
from harness.selection.overall import OverallChoice, Place
from harness.selection.pace import is_faster_than
from harness.selection.ranking import Candidate, CandidateName, Decider, Ranking
from harness.selection.times import NATIVE, REFERENCE_NAME

__all__ = ["answer_tables"]

_MOST_FASTER = 3  # trade-off: a longer list hides the answer of its row
_MOST_SCENARIOS = 100  # trade-off: 50 kB of the page; `choose` prints every scenario
_MOST_OPEN = 12  # trade-off: a longer table is folded, so that the figures below are seen
_SPEED = (
    f"Speed is relative to {REFERENCE_NAME}, run eagerly and timed in turn: 2.00x takes half the "
    "time."
)
_PLACE_COLUMNS = (
    Column("Device"),
    Column("dtype"),
    Column("Direction"),
    Column("Run"),
    Column("Speed", is_number=True),
    Column(f"{REFERENCE_NAME} takes", is_number=True),
    Column("Fastest or tied in", is_number=True),
    Column("The others"),
)
_SCENARIO_COLUMNS = (
    Column("Shape"),
    Column("dtype"),
    Column("Direction"),
    Column("Run"),
    Column("Speed", is_number=True),
    Column(f"{REFERENCE_NAME} takes", is_number=True),
    Column("Device"),
    Column("The others"),
)
_PLACE_CAPTION = (
    f"{_SPEED} It is the geometric mean over all shapes. “Fastest or tied in”: no "
    "other eligible candidate is faster beyond the intervals."
)

Row = tuple[Cell, ...]
Reach = Callable[[CandidateName], str]
"""Name of a candidate -> its first failure, if it is disqualified for some inputs; else empty."""


def answer_tables(findings: Findings) -> Iterator[Table]:
    """Yield the answer for each device, dtype and direction, then for each shape."""
    device_of = {
        (record.environment, record.case.device): str(place)
        for record, place in zip(findings.records, findings.cases["place"], strict=True)
    }
    answers = findings.answers
    places = sorted(answers[-1].overall, key=lambda each: _order(device_of, each))
    rows = [
        row
        for place in places
        for row in _merged([
            _place_row(answer.overall[place], answers[-1].overall[place], place, device_of)
            for answer in answers
        ])
    ]
    if rows:
        yield Table(
            name="choice",
            title="The fastest eligible implementation for each device, dtype and direction",
            caption=_PLACE_CAPTION,
            columns=_PLACE_COLUMNS,
            rows=tuple(row for row, _ in rows),
            row_needs=tuple(needs for _, needs in rows),
            default_need=_default_need(answers),
        )
    yield _scenario_table(answers, device_of)


def _scenario_table(answers: Sequence[Answer], device_of: dict[tuple[str, str], str]) -> Table:
    every = len(answers[0].choices)
    rows = [
        row
        for own in list(zip(*(answer.choices for answer in answers), strict=True))[:_MOST_SCENARIOS]
        for row in _merged([_scenario_row(choice, device_of) for choice in own])
    ]
    cut = (
        f" These are the first {_MOST_SCENARIOS} of {every:,} scenarios; `layernorm-bench choose` "
        "prints all."
        if every > _MOST_SCENARIOS
        else ""
    )
    return Table(
        name="choice-per-shape",
        title="The same for each shape",
        caption=f"{_SPEED} Each row is decided by its own times, so that it can differ from the "
        f"table above.{cut}",
        columns=_SCENARIO_COLUMNS,
        rows=tuple(row for row, _ in rows),
        row_needs=tuple(needs for _, needs in rows),
        default_need=_default_need(answers),
        is_folded=every > _MOST_OPEN,
    )


def _default_need(answers: Sequence[Answer]) -> int:
    return next(place for place, answer in enumerate(answers) if answer.is_default)


def _merged(rows: Sequence[Row]) -> list[tuple[Row, tuple[int, ...]]]:
    """Return the different rows, each with the numbers of the requirements that it answers.

    A row that answers all of them has none.
    """
    needs: dict[Row, list[int]] = {}
    for number_of_answer, row in enumerate(rows):
        needs.setdefault(row, []).append(number_of_answer)
    return [(row, tuple(numbers) if len(needs) > 1 else ()) for row, numbers in needs.items()]


def _order(device_of: dict[tuple[str, str], str], place: Place) -> tuple[object, ...]:
    dtypes = list(SIGNIFICAND_BITS)
    dtype = dtypes.index(place.dtype) if place.dtype in dtypes else len(dtypes)
    return device_of[place.environment, place.device], dtype, list(Direction).index(place.direction)


# --- one device, dtype and direction --------------------------------------------------------------


def _place_row(
    choice: OverallChoice,
    any_choice: OverallChoice,
    place: Place,
    device_of: dict[tuple[str, str], str],
) -> Row:
    best = choice.ranking.best

    def reach(name: CandidateName) -> str:
        return _reach(any_choice.candidate(name))

    native = choice.candidate(NATIVE)
    others = _others(best, choice.candidates, choice.ranking, None, reach)
    where = (
        Cell(device_of[place.environment, place.device]),
        Cell(place.dtype),
        Cell(str(place.direction)),
    )
    now = number(_span_text(native.timed) if native else DASH)
    if best is None:
        return (*where, Cell("none is eligible"), number(DASH), now, number(DASH), others)
    notes = [*_qualifications(best, choice.ranking), *_limit(best, any_choice.ranking, reach)]
    return (
        *where,
        _run_cell(best, notes),
        _speed_cell(best, None if best.widened_cost is None else as_speed(best.widened_cost)),
        now,
        number(f"{choice.fastest_in} of {len(best.timed)}"),
        others,
    )


def _span_text(records: Sequence[Record]) -> str:
    """Return the time of the records, from the shortest to the longest."""
    times = [record.latency.per_call_s.value for record in records if record.latency]
    ends = list(dict.fromkeys(map(seconds_text, (min(times), max(times)))))
    return " to ".join(ends)


# --- one scenario ---------------------------------------------------------------------------------


def _scenario_row(choice: Choice, device_of: dict[tuple[str, str], str]) -> Row:
    scenario, best, unlimited = choice.scenario, choice.best, choice.any_condition or choice

    def reach(name: CandidateName) -> str:
        return _reach(next((each for each in unlimited.candidates if each.name == name), None))

    case = scenario.case
    where = (
        Cell(" ".join([shape_text(case.shape), *scenario.settings])),
        Cell(case.dtype),
        Cell(str(case.direction)),
    )
    end = (
        number(seconds_text(choice.native_s.value) if choice.native_s else DASH),
        Cell(device_of[scenario.environment, case.device]),
        _others(best, choice.candidates, choice.ranking, choice.native_s, reach),
    )
    if best is None:
        return (*where, Cell("none is eligible"), number(DASH), *end)
    notes = [*_qualifications(best, choice.ranking), *_limit(best, unlimited.ranking, reach)]
    return (*where, _run_cell(best, notes), _speed_cell(best, choice.speed(best)), *end)


# --- cells ----------------------------------------------------------------------------------------


def _run_cell(best: Candidate, notes: Sequence[str]) -> Cell:
    text = f"keep {best.label}" if best.name == NATIVE else best.label
    return Cell(text, is_strong=True, note="\n".join(notes))


def _speed_cell(best: Candidate, speed: Estimate | None) -> Cell:
    if best.name == NATIVE:
        return number(speed_text(1.0))
    if speed is None:
        return number(DASH)
    return number(
        speed_text(speed.value), note=f"{speed_text(speed.low)} to {speed_text(speed.high)}"
    )


def _others(
    best: Candidate | None,
    candidates: Sequence[Candidate],
    ranking: Ranking,
    native_s: Estimate | None,
    reach: Reach,
) -> Cell:
    """Return a line for native, for the next eligible one, and for those that are faster.

    Args:
        best: the choice.
        candidates: all of them.
        ranking: the eligible ones.
        native_s: time of native; None if costs are ratios to it.
        reach: the first failure of an eligible candidate.
    """
    next_best = [each for each in ranking.eligible if each is not best and each.name != NATIVE][:1]
    faster = [
        each
        for each in candidates
        if each.disqualification is not None
        and each.name != NATIVE
        and (best is None or is_faster_than(each, best))
    ]
    native = [each for each in candidates if each.name == NATIVE and each is not best]
    lines = []
    for candidate in (*native, *next_best, *faster[:_MOST_FASTER]):
        name = f"{candidate.label}{_pace(candidate, native_s)}"
        if candidate.disqualification is None:
            lines.append(", ".join(filter(None, [name, reach(candidate.name)])))
            continue
        but = "faster, but " if best is not None and is_faster_than(candidate, best) else ""
        lines.append(f"{name}: {but}{fault_text(candidate.disqualification)}")
    if (left := len(faster) - _MOST_FASTER) and left > 0:
        lines.append(f"and {left:,} more are faster and disqualified")
    return Cell("\n".join(lines) or "there is no other", is_long=True)


def _pace(candidate: Candidate, native_s: Estimate | None) -> str:
    if candidate.name == NATIVE:
        return f" {speed_text(1.0)}"
    if candidate.cost is None:
        return ""
    return f" {speed_text((native_s.value if native_s else 1.0) / candidate.cost.value)}"


def _reach(candidate: Candidate | None) -> str:
    if candidate is None or candidate.disqualification is None:
        return ""
    return reach_text(candidate.disqualification)


def _limit(best: Candidate, of_any: Ranking, reach: Reach) -> Iterator[str]:
    """Yield where the choice fails beyond the requirement, and what serves all inputs."""
    if limit := reach(best.name):
        yield limit
        if of_any.best is not None:
            yield f"for all inputs: {of_any.best.label}"


def _qualifications(best: Candidate, ranking: Ranking) -> Iterator[str]:
    wide = [each.label for each, by in ranking.tied if by is Decider.ESTIMATE]
    ties = [each.label for each, by in ranking.tied if by is not Decider.ESTIMATE]
    if ties:
        yield f"tie with {', '.join(ties)}"
    if wide:
        yield f"by its estimate: intervals are too wide to tell it from {', '.join(wide)}"
    vacuous = sum(record.status is Status.OUT_OF_GUARANTEE for record in best.evidence)
    if vacuous:
        yield f"out of guarantee, as all are, in {count(vacuous, 'case')}"

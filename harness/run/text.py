"""What a finished run prints below its table, and the same as plain values for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from harness.records import Record, Status
from harness.records.text import count, percent_text, seconds_text
from harness.run.next_step import next_step
from harness.run.outcome import MOST_ROWS, SessionOutcome

__all__ = [
    "case_lines",
    "note_lines",
    "outcome_as_plain",
    "outcome_lines",
    "problems_of",
    "status_counts",
    "totals_line",
    "warning_lines",
]

# statuses that a user has to act upon, the most urgent first; --fail-on adds statuses
_PROBLEMS = (Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR)
# lines per status. Trade-off: the step to take stays on the screen; --verbose and the page have all
_MOST_PROBLEMS, _MOST_NOTES = 10, 3
# trade-off: the overhead of a shorter run is mostly the import of torch, so it is not printed
_LEAST_WALL_S = 30.0


def outcome_lines(
    outcome: SessionOutcome, page: Path | None, fail_on: Collection[str], *, verbose: bool
) -> Iterator[str]:
    """Yield the lines below the table of a run; the next step comes last.

    Args:
        outcome: of the run.
        page: the page that was made of it, if any.
        fail_on: statuses that fail the run.
        verbose: whether all cases are named that did not end well.
    """
    records, run = outcome.results.records, outcome.run
    problems = problems_of(records, fail_on)
    most_notes = _MOST_PROBLEMS if len(records) <= MOST_ROWS else _MOST_NOTES
    yield from note_lines(records, fail_on, None if verbose else most_notes)
    yield from warning_lines(records)
    yield totals_line(records, run.wall_s or 0.0, run.overhead_ratio, outcome.earlier)
    yield f"results: {outcome.path}"
    if page:
        yield f"page:    {page}"
    yield from case_lines(problems, None if verbose else _MOST_PROBLEMS)
    step = next_step(records, problems, outcome.path, has_page=page is not None)
    if step is not None:
        yield f"to {step.purpose}:"
        yield f"  {step.command}"


def outcome_as_plain(
    outcome: SessionOutcome, page: Path | None, fail_on: Sequence[str]
) -> dict[str, object]:
    """Return the outcome of a run as values that JSON can hold; arguments as outcome_lines."""
    records = outcome.results.records
    problems = problems_of(records, fail_on)
    step = next_step(records, problems, outcome.path, has_page=page is not None)
    return {
        "results": str(outcome.path),
        "page": str(page) if page else None,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "left": outcome.left,
        "wall_s": outcome.run.wall_s,
        "overhead_ratio": outcome.run.overhead_ratio,
        "statuses": status_counts(records),
        "wrong": [each.case.id for each in records if each.status is Status.WRONG],
        "fail_on": list(fail_on),
        "failed_on": [each.case.id for each in records if each.status in fail_on],
        "next_command": step.command if step else None,
        "cases": [
            {"id": each.case.id, "status": each.status, "reason": each.reason} for each in records
        ],
    }


def problems_of(records: Sequence[Record], fail_on: Collection[str] = ()) -> tuple[Record, ...]:
    """Return the cases to act upon: wrong ones, then failed ones, then those of ``fail_on``."""
    order = dict.fromkeys((*_PROBLEMS, *map(Status, fail_on)))
    return tuple(each for status in order for each in records if each.status is status)


def note_lines(
    records: Sequence[Record], fail_on: Collection[str] = (), most: int | None = None
) -> Iterator[str]:
    """Name the cases that are neither ok nor a problem, in at most ``most`` lines per status."""
    others = {Status.OK, *(each.status for each in problems_of(records, fail_on))}
    yield from case_lines([each for each in records if each.status not in others], most)


def case_lines(records: Sequence[Record], most: int | None = None) -> Iterator[str]:
    """Name cases and reasons below each status, in at most ``most`` lines per status.

    Cases of one implementation with the same reason share a line. Wrong cases do not, since the
    inputs that give wrong results are worth knowing. If not all can be shown, each implementation
    has its first line before any has its second.
    """
    for status in dict.fromkeys(record.status for record in records):
        chosen = [record for record in records if record.status is status and record.reason]
        if not chosen:
            continue
        yield f"{status} ({count(len(chosen), 'case')}):"
        groups: dict[tuple[str, str, str], list[Record]] = {}
        for record in chosen:
            own = record.case.id if status is Status.WRONG else ""
            key = record.case.implementation, record.reason, own
            groups.setdefault(key, []).append(record)
        shown, hidden = _shown_and_hidden(list(groups.values()), most)
        for first, *others in shown:
            more = f" and {count(len(others), 'more case')}" if others else ""
            yield f"  {first.case.id}{more}: {first.reason}"
        if hidden:
            names = Counter(record.case.implementation for group in hidden for record in group)
            listed = ", ".join(f"{name} {number}" for name, number in names.items())
            more = count(names.total(), "more case")
            yield f"  and {more} ({listed}): --verbose or the page lists all"


def warning_lines(records: Sequence[Record]) -> list[str]:
    """Return a line per kind of measurement warning: how many cases, and the first's advice."""
    found: dict[str, list[tuple[str, str]]] = {}
    for record in records:
        for warning in record.warnings:
            found.setdefault(warning.kind, []).append((record.case.id, warning.advice))
    return [
        f"measurement warning: {kind.replace('_', ' ')} ({count(len(dict(rows)), 'case')}), "
        f"such as {rows[0][0]}: {rows[0][1]}"
        for kind, rows in found.items()
    ]


def status_counts(records: Sequence[Record]) -> dict[str, int]:
    """Return how many cases have each status, the most frequent first."""
    counts = Counter(each.status for each in records)
    return {str(status): number for status, number in counts.most_common()}


def totals_line(
    records: Sequence[Record], wall_s: float, overhead_ratio: float | None, earlier: int = 0
) -> str:
    """Return how many cases ended in which status, and how long the run took.

    Args:
        records: of the run.
        wall_s: time that the run took.
        overhead_ratio: share of that time in which nothing was measured, if known.
        earlier: number of cases that were measured before the run was continued.
    """
    statuses = ", ".join(f"{number} {status}" for status, number in status_counts(records).items())
    before = f" ({earlier} of them measured earlier)" if earlier else ""
    parts = [f"{count(len(records), 'case')}{before} in {seconds_text(wall_s)}"]
    parts[0] += f": {statuses}" if statuses else ""
    warned = sum(bool(record.warnings) for record in records)
    if warned:
        parts.append(f"{count(warned, 'case')} with a measurement warning")
    if overhead_ratio is not None and wall_s >= _LEAST_WALL_S:
        parts.append(f"overhead of the benchmark {percent_text(overhead_ratio)} of the time")
    return "; ".join(parts)


def _shown_and_hidden(
    groups: Sequence[list[Record]], most: int | None
) -> tuple[list[list[Record]], list[list[Record]]]:
    """Divide groups of cases so that every implementation has some shown."""
    if most is None or len(groups) <= most:
        return list(groups), []
    seen: Counter[str] = Counter()
    ranks = []  # of each group within its implementation
    for place, group in enumerate(groups):
        name = group[0].case.implementation
        ranks.append((seen[name], place))
        seen[name] += 1
    shown = {place for _, place in sorted(ranks)[:most]}
    return (
        [group for place, group in enumerate(groups) if place in shown],
        [group for place, group in enumerate(groups) if place not in shown],
    )

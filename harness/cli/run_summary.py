"""What a finished run says: statuses, the cases to look at, measurement warnings, what to do next.

Where a run has few cases the table has a row for each; this is what stands below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from harness.cli.next_commands import Step, closer_look, command_line
from harness.records import Record, Status
from harness.records.text import count, seconds_text

__all__ = [
    "case_lines",
    "next_step",
    "note_lines",
    "outcome_line",
    "problems_of",
    "status_counts",
    "warning_lines",
]

# what a user has to act upon, the most urgent first; a run can be asked to fail on more
_PROBLEMS = (Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR)
_START_UP_S = 30.0  # ours: a shorter run mostly imports torch, and its overhead says nothing


def problems_of(records: Sequence[Record], fail_on: Collection[str] = ()) -> tuple[Record, ...]:
    """Return the cases to act upon: wrong ones first, then those that failed.

    Args:
        records: of the run.
        fail_on: further statuses that the run was asked to fail on.
    """
    order = dict.fromkeys((*_PROBLEMS, *map(Status, fail_on)))
    return tuple(each for status in order for each in records if each.status is status)


def note_lines(
    records: Sequence[Record], fail_on: Collection[str] = (), most: int | None = None
) -> Iterator[str]:
    """Name the cases that ended otherwise than ok and are no problem, at most so many a status."""
    elsewhere = {Status.OK, *(each.status for each in problems_of(records, fail_on))}
    yield from case_lines([each for each in records if each.status not in elsewhere], most)


def case_lines(records: Sequence[Record], most: int | None = None) -> Iterator[str]:
    """Name cases and reasons below each status, at most so many lines a status.

    Cases of one implementation that have the same reason share a line, wrong ones apart, since
    which inputs are wrong is what one has to know. If not all can be shown,
    each implementation has its first before any has its second.
    """
    for status in dict.fromkeys(each.status for each in records):
        found = [each for each in records if each.status is status and each.reason]
        if not found:
            continue
        yield f"{status} ({count(len(found), 'case')}):"
        groups: dict[tuple[str, str, str], list[Record]] = {}
        for each in found:
            own = each.case.id if status is Status.WRONG else ""
            groups.setdefault((each.case.implementation, each.reason, own), []).append(each)
        shown, hidden = _some(list(groups.values()), most)
        for first, *others in shown:
            more = f" and {count(len(others), 'more case')}" if others else ""
            yield f"  {first.case.id}{more}: {first.reason}"
        if hidden:
            names = Counter(each.case.implementation for group in hidden for each in group)
            total = sum(names.values())
            listed = ", ".join(f"{name} {number}" for name, number in names.items())
            yield f"  and {count(total, 'more case')} ({listed}): --verbose or the page lists all"


def warning_lines(records: Sequence[Record]) -> list[str]:
    """One line for each kind of measurement warning: how many cases, and advice for the first."""
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
    """How many cases have each status, the most frequent first."""
    counts = Counter(each.status for each in records)
    return {str(status): number for status, number in counts.most_common()}


def outcome_line(
    records: Sequence[Record], wall_s: float, overhead_ratio: float | None, earlier: int = 0
) -> str:
    """How many cases ended in which status, and what that took.

    Args:
        records: of the run.
        wall_s: time that the run took.
        overhead_ratio: share of it that went into nothing that was measured, if known.
        earlier: cases that were measured before the run was continued.
    """
    statuses = ", ".join(f"{number} {status}" for status, number in status_counts(records).items())
    before = f" ({earlier} of them measured earlier)" if earlier else ""
    parts = [f"{count(len(records), 'case')}{before} in {seconds_text(wall_s)}"]
    parts[0] += f": {statuses}" if statuses else ""
    warned = sum(bool(each.warnings) for each in records)
    if warned:
        parts.append(f"{count(warned, 'case')} with a measurement warning")
    if overhead_ratio is not None and wall_s >= _START_UP_S:
        parts.append(f"overhead of the benchmark {overhead_ratio:.0%} of the time")
    return "; ".join(parts)


def next_step(
    records: Sequence[Record], problems: Sequence[Record], results: Path, *, has_page: bool
) -> Step | None:
    """Return what to do next: look at the first problem, or else use the results."""
    for each in problems:
        if step := closer_look(each):
            return step
    if len({each.case.implementation for each in records if each.latency is not None}) > 1:
        command = command_line("choose", str(results))
        return Step("choose an implementation from these results", command)
    if any(each.errors is not None for each in records) and not has_page:
        return Step("make a page of these results", command_line("report", str(results)))
    return None


def _some(
    groups: Sequence[list[Record]], most: int | None
) -> tuple[list[list[Record]], list[list[Record]]]:
    """Divide groups of cases into those to show and the rest, fairly by implementation."""
    if most is None or len(groups) <= most:
        return list(groups), []
    seen: Counter[str] = Counter()
    turns = []
    for place, group in enumerate(groups):
        name = group[0].case.implementation
        turns.append((seen[name], place))
        seen[name] += 1
    shown = {place for _, place in sorted(turns)[:most]}
    return (
        [group for place, group in enumerate(groups) if place in shown],
        [group for place, group in enumerate(groups) if place not in shown],
    )

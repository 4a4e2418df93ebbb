"""A comparison in words: phrases of its reasons, its notes, and the lines of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import expm1, isfinite
from typing import Any

from harness.records import Environment, Record, Status
from harness.records.text import count, percent_text
from harness.regression.changes import Change, ChangeKind, Comparison
from harness.store import Results
from harness.store.plain import to_plain

__all__ = [
    "RECORD_BASELINE",
    "comparison_as_plain",
    "comparison_lines",
    "figures_text",
    "notes_on",
    "slower_text",
    "status_text",
]

RECORD_BASELINE = (
    "record a baseline of as many with `layernorm-bench check RUN --baseline FILE "
    "--record-baseline`"
)
_MOST_ROWS = 50  # trade-off: a page of a terminal can be read; --json has every row
# fields of an environment that are not part of its fingerprint
_NO_DIFFERENCE = {
    "memory_bytes", "git_commit", "git_commit_utc", "git_dirty", "load_average", "repository_url",
}  # fmt: skip
_NOT_RIGHT = {Status.WRONG, Status.TIMEOUT, Status.CRASHED, Status.ERROR}


# --- phrases -------------------------------------------------------------------------------------


def status_text(status: Status) -> str:
    """Return a status in words, such as "out of memory"."""
    return status.replace("_", " ")


def figures_text(before: float, after: float) -> str:
    """Return "1 before, 2 now", with as many digits as tell the figures apart."""
    first, second = f"{before}", f"{after}"
    if not (isinstance(before, int) and isinstance(after, int)):
        for digits in (3, 6, 9, 12, 17):
            first, second = f"{before:.{digits}g}", f"{after:.{digits}g}"
            if first != second:
                break
    return f"{first} before, {second} now"


def slower_text(moved: float) -> str:
    """Return the logarithm of a ratio of times as "10 % slower" or "10 % faster"."""
    share = round(abs(expm1(moved)), 3)  # trade-off: less than 0.1 % is of no interest
    return f"{percent_text(share)} {'slower' if moved > 0 else 'faster'}"


# --- notes ---------------------------------------------------------------------------------------


def notes_on(
    baseline: Results,
    head: Results,
    old: Mapping[str, Record],
    new: Mapping[str, Record],
    least_processes: int,
    advice: str,
) -> Iterator[str]:
    """Yield notes on all cases; ``old`` and ``new`` are the records by id of their case."""
    if baseline.records == head.records:
        yield "both files hold the same measurements, so every case is unchanged"
    both = [(old[name], new[name]) for name in old if name in new]
    moved = [(first, second) for first, second in both if first.environment != second.environment]
    if moved:
        first, second = moved[0]
        differences = _differences(
            baseline.environments.get(first.environment),
            head.environments.get(second.environment),
        )
        yield (
            f"another machine or other software ({differences}): latency of "
            f"{count(len(moved), 'case')} is not compared; errors are compared only beyond what "
            "another order of the same sums explains"
        )
    few = sum(
        first.latency is not None
        and first.latency.processes < least_processes
        and second.latency is not None
        and first.latency.timer == second.latency.timer
        for first, second in both
        if first.environment == second.environment
    )
    if few:
        yield (
            f"latency of {count(few, 'case')} is not judged, because the baseline has fewer than "
            f"{least_processes} processes; {advice}"
        )
    gone, added = len(old) - len(both), len(new) - len(both)
    if gone or added:
        yield (
            f"the runs are not of one sweep: {count(gone, 'case')} of the baseline gone, "
            f"{count(added, 'case')} of the run new"
        )
    bad = [
        record for name, record in new.items() if name not in old and record.status in _NOT_RIGHT
    ]
    if bad:
        yield (
            f"{count(len(bad), 'new case')} did not end well, such as {bad[0].case.id}: "
            f"{status_text(bad[0].status)}; the baseline holds nothing to compare them with"
        )
    if any(first.cold is not None and second.cold is not None for first, second in both):
        yield "cold latencies are not compared"


def _differences(before: Environment | None, after: Environment | None) -> str:
    if before is None or after is None:
        return "one of the files does not say which"
    changed = [
        f"{field.name} {_field_text(getattr(before, field.name))} before, "
        f"{_field_text(getattr(after, field.name))} now"
        for field in fields(Environment)
        if field.name not in _NO_DIFFERENCE
        and getattr(before, field.name) != getattr(after, field.name)
    ]
    return "; ".join(changed) or "with the same description"


def _field_text(value: object) -> str:
    """Return a field of an environment; packages as "torch 2.13.0, numpy 2.4.6"."""
    if not isinstance(value, tuple):
        return str(value)
    parts = (
        " ".join(part) if isinstance(part, tuple) else str(getattr(part, "name", part))
        for part in value
    )
    return ", ".join(parts) or "none"


# --- the whole comparison ------------------------------------------------------------------------


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the number of changes of each kind, then a row per change, worst first."""
    counts = ", ".join(f"{number} {kind}" for kind, number in comparison.counts.items())
    rows = [
        (str(alike[0].kind), alike[0].case.id, f"{alike[0].reason}{_and_more(alike)}")
        for alike in _alike(comparison.changes)
    ]
    shown = rows[:_MOST_ROWS]
    widths = [max((len(row[column]) for row in shown), default=0) for column in (0, 1)]
    lines = [f"{comparison.head} against {comparison.baseline}: {counts}"]
    lines += [f"  {kind:<{widths[0]}}  {case:<{widths[1]}}  {why}" for kind, case, why in shown]
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown)} more")
    return [*lines, *(f"note: {note}" for note in comparison.notes)]


def _alike(changes: Iterable[Change]) -> Iterable[Sequence[Change]]:
    """Group changes of one kind with one reason, in the given order.

    Each failure is a group of its own; unchanged cases are left out.
    """
    groups: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        own = (change.case.id,) if change.kind.is_failure else ()
        if change.kind is not ChangeKind.UNCHANGED:
            groups.setdefault((change.kind, change.reason, *own), []).append(change)
    return groups.values()


def _and_more(alike: Sequence[Change]) -> str:
    return f" (and {count(len(alike) - 1, 'more case')})" if len(alike) > 1 else ""


def comparison_as_plain(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as values that JSON can hold; infinite ends of intervals become null."""
    return {
        "baseline": comparison.baseline,
        "head": comparison.head,
        "failed": comparison.failed,
        "counts": {str(kind): number for kind, number in comparison.counts.items()},
        "notes": list(comparison.notes),
        "changes": [_change_as_plain(change) for change in comparison.changes],
    }


def _change_as_plain(change: Change) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(change)
    if change.ratio is not None:
        plain["ratio"] = {
            name: value if isfinite(value) else None for name, value in plain["ratio"].items()
        }
    return {"id": change.case.id, **plain}

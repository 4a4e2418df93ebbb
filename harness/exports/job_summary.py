"""GitHub's job summary: markdown with the worst cases first, cut to the size that GitHub shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.exports.markdown import escaped
from harness.records import Estimate, Record, Status
from harness.records.speed import as_speed, speed_interval_text
from harness.records.text import count, seconds_text, ulp_text
from harness.regression.changes import Change, ChangeKind, Comparison
from harness.regression.text import status_text
from harness.store import Results

__all__ = ["LIMIT_BYTES", "summary_of_comparison", "summary_of_refusal", "summary_of_run"]

LIMIT_BYTES = 1024 * 1024
"""GitHub's limit for the summary of a step; it shows nothing of a longer one."""
_SPARE_BYTES = 1024  # for the sentence that says what was left out, and the end of a section
# the order of the sections of a run
_BAD_FIRST = (
    Status.WRONG,
    Status.CRASHED,
    Status.TIMEOUT,
    Status.ERROR,
    Status.OUT_OF_GUARANTEE,
    Status.OUT_OF_MEMORY,
    Status.UNSUPPORTED,
    Status.OK,
)

Section = tuple[str, str, Sequence[str]]
"""A heading, the head of its table, and the rows."""


def summary_of_comparison(
    comparison: Comparison, *, limit_bytes: int = LIMIT_BYTES, rest: str = ""
) -> str:
    """Return a comparison as markdown of at most ``limit_bytes`` in UTF-8.

    Args:
        comparison: the changes; unchanged cases are only counted.
        limit_bytes: the room left; the result is empty if the verdict does not fit.
        rest: a clause that says where to find what is left out.
    """
    by_kind: dict[ChangeKind, list[Change]] = {}
    for change in comparison.changes:
        by_kind.setdefault(change.kind, []).append(change)
    bad = sum(len(changes) for kind, changes in by_kind.items() if kind.is_failure)
    verdict = "✅ no case got worse"
    if bad:
        verdict = f"❌ {count(bad, 'case')} got worse"
    elif not any(kind.is_judged for kind in by_kind):
        verdict = "⚠️ no case could be judged in full"
    counts = ", ".join(f"{number} {kind}" for kind, number in comparison.counts.items())
    lead = [
        f"## layernorm-bench: {verdict}",
        "",
        f"{escaped(comparison.head)} against {escaped(comparison.baseline)}: {counts}",
        *_notes(comparison.notes),
    ]
    sections = [
        (
            f"{len(changes)} {kind}",
            "| case | speed now against before | why |\n|---|---|---|",
            [_change_row(change) for change in changes],
        )
        for kind, changes in by_kind.items()
        if kind is not ChangeKind.UNCHANGED
    ]
    opened = sum(kind.is_failure for kind in by_kind)
    return _page(lead, sections, opened, limit_bytes, rest)


def summary_of_refusal(why: str) -> str:
    """Return why nothing could be compared, as markdown."""
    return f"## layernorm-bench: ❌ nothing was compared\n\n{escaped(why)}\n"


def summary_of_run(
    results: Results, name: str, *, limit_bytes: int = LIMIT_BYTES, rest: str = ""
) -> str:
    """Return a run as markdown; ``limit_bytes`` and ``rest`` as for a comparison."""
    by_status = {
        status: [record for record in results.records if record.status is status]
        for status in _BAD_FIRST
    }
    headings = {
        status: f"{len(records)} {status_text(status)}"
        for status, records in by_status.items()
        if records
    }
    bad = [status for status in headings if status is Status.WRONG or status.is_failure]
    why = results.why_unfinished
    passed = not bad and not why and any(status.is_measured for status in headings)
    lead = [
        f"## layernorm-bench: {'✅' if passed else '❌'} {', '.join(headings.values())}",
        "",
        escaped(name),
        *_notes([f"the run was cut short: {why}"] if why else []),
    ]
    sections = [
        (
            heading,
            "| case | worst error | time per call | speed relative to the reference | why |\n"
            "|---|---|---|---|---|",
            [_run_row(record) for record in by_status[status]],
        )
        for status, heading in headings.items()
    ]
    return _page(lead, sections, len(bad), limit_bytes, rest)


def _page(
    lead: Sequence[str], sections: Sequence[Section], opened: int, limit_bytes: int, rest: str
) -> str:
    """Return the lead and as many rows as there is room for; empty if the lead does not fit.

    All sections but the first ``opened`` are folded.
    """
    lines = [*lead, ""]
    room = limit_bytes - _SPARE_BYTES - _size(lines)
    if room < 0:
        return ""
    left = 0
    for number, (heading, head, rows) in enumerate(sections):
        opening = [f"### {heading}", "", head]
        closing = [""]
        if number >= opened:
            opening = [f"<details><summary>{heading}</summary>", "", head]
            closing = ["", "</details>", ""]
        room -= _size(opening) + _size(closing)
        kept = [] if left else list(_fitting(rows, room))
        room -= _size(kept)
        left += len(rows) - len(kept)
        if kept:
            lines += [*opening, *kept, *closing]
    if left:
        where = f"; {escaped(rest)}" if rest else ""
        lines += [f"no room here for {count(left, 'more case')}{where}", ""]
    return "\n".join(lines)


def _fitting(rows: Iterable[str], room: int) -> Iterator[str]:
    """Yield rows until the first that does not fit."""
    for row in rows:
        room -= _size([row])
        if room < 0:
            return
        yield row


def _size(lines: Iterable[str]) -> int:
    """Return the number of bytes of lines, with their line ends."""
    return sum(len(line.encode()) + 1 for line in lines)


def _notes(notes: Sequence[str]) -> list[str]:
    return ["", *(f"- {escaped(note)}" for note in notes)] if notes else []


def _change_row(change: Change) -> str:
    return f"| {escaped(change.case.id)} | {_speed(change.ratio)} | {escaped(change.reason)} |"


def _run_row(record: Record) -> str:
    error = time = speed = "–"
    if record.errors is not None:
        worst = record.errors.worst
        error = f"{ulp_text(worst.worst_ulp)} in {worst.output}"
    if record.latency is not None:
        invalid = "" if record.latency.is_valid else " (invalid)"
        time = f"{seconds_text(record.latency.per_call_s.value)}{invalid}"
        speed = _speed(record.latency.reference_ratio)
    cells = (escaped(record.case.id), error, time, speed, escaped(record.reason))
    return f"| {' | '.join(cells)} |"


def _speed(ratio: Estimate | None) -> str:
    if ratio is None:
        return "–"
    return speed_interval_text(as_speed(ratio))

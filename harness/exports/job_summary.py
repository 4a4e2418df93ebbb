"""GitHub's job summary: markdown, the worst first, cut before GitHub would drop it whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

from harness.records import Estimate, Record, Status
from harness.regression.changes import Change, ChangeKind, Comparison
from harness.store import Results

__all__ = ["LIMIT_BYTES", "summary_of_comparison", "summary_of_refusal", "summary_of_run"]

LIMIT_BYTES = 1024 * 1024
"""What the summary of a step may hold; GitHub shows nothing of a longer one."""
_SPARE_BYTES = 1024  # ours: for the sentence that says what was left out, and to end a section
# what markdown, or HTML in it, would take for its own; not the underscores within names
_MARKS = re.compile(r"[\\`*{}\[\]<>#|~&!]|(?<!\w)_|_(?!\w)")
_BREAKS = re.compile(r"\s+")
# the first of a run to be looked at
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
        comparison: what became of the cases; those that stayed the same are counted alone.
        limit_bytes: what there is room for; where it is too little for the verdict, it is empty.
        rest: where what is left out can be found, as a clause.
    """
    by_kind: dict[ChangeKind, list[Change]] = {}
    for each in comparison.changes:
        by_kind.setdefault(each.kind, []).append(each)
    bad = sum(len(found) for kind, found in by_kind.items() if kind.is_failure)
    verdict = "✅ no case got worse"
    if bad:
        verdict = f"❌ {_cases(bad)} got worse"
    elif not any(kind.is_judged for kind in by_kind):
        verdict = "⚠️ no case could be judged in full"
    counts = ", ".join(f"{number} {kind}" for kind, number in comparison.counts.items())
    lead = [
        f"## layernorm-bench: {verdict}",
        "",
        f"{_text(comparison.head)} against {_text(comparison.baseline)}: {counts}",
        *_notes(comparison.notes),
    ]
    sections = [
        (
            f"{len(found)} {kind}",
            "| case | time now over before | why |\n|---|---|---|",
            [_change_row(each) for each in found],
        )
        for kind, found in by_kind.items()
        if kind is not ChangeKind.UNCHANGED
    ]
    opened = sum(each.is_failure for each in by_kind)
    return _page(lead, sections, opened, limit_bytes, rest)


def summary_of_refusal(why: str) -> str:
    """Return why nothing could be compared, as markdown."""
    return f"## layernorm-bench: ❌ nothing was compared\n\n{_text(why)}\n"


def summary_of_run(
    results: Results, name: str, *, limit_bytes: int = LIMIT_BYTES, rest: str = ""
) -> str:
    """Return a run as markdown of at most ``limit_bytes`` in UTF-8; see there."""
    counts = Counter(each.status for each in results.records)
    ended = ", ".join(
        f"{counts[status]} {_words(status)}" for status in _BAD_FIRST if counts[status]
    )
    bad = [each for each in counts if each is Status.WRONG or each.is_failure]
    why = results.why_unfinished
    passed = not bad and not why and any(each.is_measured for each in counts)
    lead = [
        f"## layernorm-bench: {'✅' if passed else '❌'} {ended}",
        "",
        _text(name),
        *_notes([f"the run was cut short: {why}"] if why else []),
    ]
    sections = [
        (
            f"{counts[status]} {_words(status)}",
            "| case | worst error | time of a call | over the reference | why |\n"
            "|---|---|---|---|---|",
            [_run_row(each) for each in results.records if each.status is status],
        )
        for status in _BAD_FIRST
        if counts[status]
    ]
    return _page(lead, sections, len(bad), limit_bytes, rest)


def _page(
    lead: Sequence[str], sections: Sequence[Section], opened: int, limit_bytes: int, rest: str
) -> str:
    """Put the lines together, as many rows as there is room for; all but ``opened`` folded.

    Empty where there is no room for the lead.
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
        where = f"; {_text(rest)}" if rest else ""
        lines += [f"{_cases(left)} more for which there is no room here{where}", ""]
    return "\n".join(lines)


def _fitting(rows: Iterable[str], room: int) -> Iterator[str]:
    """Yield rows until the first that is too long for what is left."""
    for each in rows:
        room -= _size([each])
        if room < 0:
            return
        yield each


def _size(lines: Iterable[str]) -> int:
    """Bytes of some lines with their ends."""
    return sum(len(each.encode()) + 1 for each in lines)


def _notes(notes: Sequence[str]) -> list[str]:
    return ["", *(f"- {_text(each)}" for each in notes)] if notes else []


def _change_row(change: Change) -> str:
    return f"| {_text(change.case.id)} | {_ratio(change.ratio)} | {_text(change.reason)} |"


def _run_row(record: Record) -> str:
    error = time = ratio = "–"
    if record.errors is not None:
        worst = record.errors.worst
        size = worst.scaled_max_ulp
        error = f"{size:.3g} ulp in {worst.output}" if isfinite(size) else "not finite"
    if record.latency is not None:
        warning = "" if record.latency.is_valid else " (not believed)"
        time = f"{record.latency.per_call_s.value * 1e6:,.4g} µs{warning}"
        ratio = _ratio(record.latency.reference_ratio)
    cells = (_text(record.case.id), error, time, ratio, _text(record.reason))
    return f"| {' | '.join(cells)} |"


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _text(text: str) -> str:
    """Return text that markdown leaves as it is, on one line, and that UTF-8 can hold."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return _MARKS.sub(r"\\\g<0>", _BREAKS.sub(" ", whole))


def _words(status: Status) -> str:
    return status.replace("_", " ")


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"

"""GitHub's annotations: lines of a step's output that GitHub shows beside the pull request.

GitHub shows ten of each level per step and drops the others silently. So the worst come first, and
the tenth line says how many more there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from harness.records.text import count
from harness.regression.changes import Change, ChangeKind, Comparison

__all__ = ["annotations_of_comparison", "annotations_of_refusal"]

_MOST = 10  # GitHub's limit, per level and step
_LONGEST_TITLE = 255  # the limit of GitHub's checks API


class Level(StrEnum):
    """The level of an annotation; the value is the name of its workflow command."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


def annotations_of_comparison(comparison: Comparison) -> list[str]:
    """Return an error per case that fails the gate, then warnings, then the notes as notices.

    Cases that were not judged share one warning per kind, since a busy machine has some in every
    run.
    """
    failing = [
        (f"{change.kind}: {change.case.id}", change.reason)
        for change in comparison.changes
        if change.kind.is_failure
    ]
    notes = [("layernorm-bench", note) for note in comparison.notes]
    return [
        *_lines(Level.ERROR, failing),
        *_lines(Level.WARNING, list(_not_judged(comparison.changes))),
        *_lines(Level.NOTICE, notes),
    ]


def annotations_of_refusal(why: str) -> list[str]:
    """Return an error that says why nothing could be compared."""
    return [_line(Level.ERROR, "layernorm-bench: nothing was compared", why)]


def _not_judged(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    for kind in ChangeKind:
        alike = [change for change in changes if change.kind is kind]
        if alike and not kind.is_judged and kind is not ChangeKind.NEW:  # a new case is no problem
            cases = f"{count(len(alike), 'case')} {'is' if len(alike) == 1 else 'are'}"
            yield f"{cases} {kind}", f"such as {alike[0].case.id}: {alike[0].reason}"


def _lines(level: Level, annotations: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a line per title and message, ten at most."""
    shown = annotations if len(annotations) <= _MOST else annotations[: _MOST - 1]
    for title, message in shown:
        yield _line(level, title, message)
    if left := len(annotations) - len(shown):
        yield _line(level, "layernorm-bench", f"and {left} more; see the job's summary and output")


def _line(level: Level, title: str, message: str) -> str:
    title = _data(title[:_LONGEST_TITLE]).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message)}"


def _data(text: str) -> str:
    """Escape what would end the command. The percent sign is first, since it begins each escape."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

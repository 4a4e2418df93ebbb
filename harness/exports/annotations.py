"""GitHub's annotations: lines of a step's output that it shows beside the pull request.

GitHub shows ten of a kind for each step and drops the others without a word, so the worst come
first and the tenth says how many there are more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from harness.records.text import count
from harness.regression.changes import Change, ChangeKind, Comparison

__all__ = ["annotations_of_comparison", "annotations_of_refusal"]

_MOST = 10
_LONGEST_TITLE = 255  # of an annotation in the interface for checks


class Level(StrEnum):
    """How loud an annotation is, by the name of its command."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


def annotations_of_comparison(comparison: Comparison) -> list[str]:
    """Return a line a case that fails the gate, and what else a reviewer should know.

    What was not judged is one warning a kind, since on a busy machine it is there in every run;
    what holds for all cases is a notice.
    """
    failing = [
        (f"{each.kind}: {each.case.id}", each.reason)
        for each in comparison.changes
        if each.kind.is_failure
    ]
    notes = [("layernorm-bench", each) for each in comparison.notes]
    return [
        *_lines(Level.ERROR, failing),
        *_lines(Level.WARNING, list(_not_judged(comparison.changes))),
        *_lines(Level.NOTICE, notes),
    ]


def annotations_of_refusal(why: str) -> list[str]:
    """Return the line that says why nothing could be compared."""
    return [_line(Level.ERROR, "layernorm-bench: nothing was compared", why)]


def _not_judged(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    for kind in ChangeKind:
        alike = [change for change in changes if change.kind is kind]
        if alike and not kind.is_judged and kind is not ChangeKind.NEW:  # a new case is no problem
            cases = f"{count(len(alike), 'case')} {'is' if len(alike) == 1 else 'are'}"
            yield f"{cases} {kind}", f"such as {alike[0].case.id}: {alike[0].reason}"


def _lines(level: Level, told: Sequence[tuple[str, str]]) -> Iterator[str]:
    shown = told if len(told) <= _MOST else told[: _MOST - 1]
    for title, message in shown:
        yield _line(level, title, message)
    if left := len(told) - len(shown):
        yield _line(level, "layernorm-bench", f"and {left} more; see the job's summary and output")


def _line(level: Level, title: str, message: str) -> str:
    title = _data(title[:_LONGEST_TITLE]).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message)}"


def _data(text: str) -> str:
    """Escape what would end the command; the percent sign first, since it begins the others."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

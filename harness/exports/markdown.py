"""Tables and text in GitHub's markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["escaped", "table_lines"]

# characters with a meaning in markdown, or in HTML within it; not the underscores within names
_MARKS = re.compile(r"[\\`*{}\[\]<>#|~&!]|(?<!\w)_|_(?!\w)")
_BREAKS = re.compile(r"\s+")


def escaped(text: str) -> str:
    """Escape text for markdown, on one line, in characters that UTF-8 can hold."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return _MARKS.sub(r"\\\g<0>", _BREAKS.sub(" ", whole))


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; a cell may hold several lines."""
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]


def _cell(text: str) -> str:
    return "<br>".join(map(escaped, text.splitlines())) or "–"

"""The blocks of a section: text, tables, figures. They hold data; the template draws them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlencode

from harness.records import Status
from harness.records.text import in_words
from harness.report.figures.theme import Draw, page_markup
from harness.report.frame import Findings
from harness.report.quantities import DASH

__all__ = [
    "MOST_DRAWN",
    "Block",
    "CaseTable",
    "Cell",
    "Column",
    "Facts",
    "FigureBlock",
    "LeftOut",
    "LegendEntry",
    "Panel",
    "Section",
    "Table",
    "Text",
    "heading",
    "left_out",
    "name_of",
    "number",
    "pill",
]

MOST_DRAWN = 8
"""Drawings of a section, of its first group at least. A trade-off: each takes 20 kB and 60 ms."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str = DASH
    note: str = ""
    """A second line, in smaller letters."""
    status: str = ""
    """A status drawn as a pill beside the text."""
    is_number: bool = False
    title: str = ""
    """Shown when the pointer is over the cell."""
    is_long: bool = False
    """Whether the text may be broken into lines."""
    is_strong: bool = False
    """Whether it is the answer of its row."""
    link: str = ""
    """Web address that the text leads to."""
    is_code: bool = False
    """Whether the text is to be typed, and is drawn in letters of equal width."""
    heat: float | None = None
    """From -1, the worst, to 1, the best, drawn as the cell's colour; 0 has none."""


def number(text: str, note: str = "", title: str = "") -> Cell:
    """Make a cell that is aligned as a number."""
    return Cell(text, note=note, is_number=True, title=title)


def pill(status: str, text: str = "", *, note: str = "", title: str = "") -> Cell:
    """Make a cell that shows a status, except ok, so that the others stand out."""
    shown = "" if status == Status.OK else status
    return Cell(text, note=note, status=shown, is_number=bool(text), title=title)


@dataclass(frozen=True, slots=True)
class Column:
    """Heading of a column."""

    text: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a figure, made only when it is asked for."""

    name: str
    """By which it is exported; unique in the page; letters, digits and dashes."""
    title: str
    draw: Draw
    view: tuple[tuple[str, str], ...] = ()
    """Names and values of the view of all cases that shows the same, as its address has them."""

    @property
    def address(self) -> str:
        """The view of all cases that shows the same, as a link of the page."""
        return f"#all_cases?{urlencode(self.view)}"

    @property
    def svg(self) -> str:
        """Markup from matplotlib, which escapes the texts in it."""
        return page_markup(self.draw, self.name, self.title)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the first cell of each row is its heading."""

    kind: ClassVar[str] = "table"
    name: str = ""
    """By which it is exported; unique in the page."""
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False
    """Whether it is closed until the reader opens it."""
    drawings: tuple[Panel, ...] = ()
    """The same numbers as figures, for export."""
    row_needs: tuple[tuple[int, ...], ...] = ()
    """For each row the numbers of the requirements that it answers, none if it answers all; empty
    if the rows do not depend on the requirement."""
    default_need: int = 0
    """The number of the requirement that is in force until the reader changes it."""

    @property
    def shown_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows under the default requirement."""
        if not self.row_needs:
            return self.rows
        pairs = zip(self.rows, self.row_needs, strict=True)
        return tuple(row for row, needs in pairs if not needs or self.default_need in needs)


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    title: str
    pairs: tuple[tuple[str, str], ...]
    is_glossary: bool = False
    """Whether the names are terms, which captions lead to."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of a figure's legend."""

    text: str
    colour: str
    """A CSS value."""
    series: str = ""
    """CSS class of the drawn lines; empty if the entry explains a marker."""
    mark: str = ""
    """Character that looks like the marker; if empty, a line is drawn."""
    dashes: tuple[float, ...] = ()
    """Lengths drawn and left out in turn, in widths of the line; empty if it is solid."""
    is_thin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBlock:
    """Drawings that share a title, a legend and a caption."""

    kind: ClassVar[str] = "figure"
    title: str
    caption: str
    panels: tuple[Panel, ...]
    conclusion: str = ""
    """What the drawings show, in a sentence or two above them."""
    legend: tuple[LegendEntry, ...] = ()
    is_wide: bool = False
    """Whether each drawing has the width of the page."""
    is_narrow: bool = False
    """Whether each drawing fits a phone without scrolling."""
    is_folded: bool = False
    """Whether it is closed until the reader opens it."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Figures that are not drawn, for the page to stay small: they are linked to and exported."""

    kind: ClassVar[str] = "left_out"
    drawings: tuple[Panel, ...]


def left_out(panels: Sequence[Panel]) -> tuple[LeftOut, ...]:
    """Return the block of the drawings that are not drawn; none if there are none."""
    return (LeftOut(tuple(panels)),) if panels else ()


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Every case as a picture and as a table, which the page's script draws from ``data``."""

    kind: ClassVar[str] = "cases"
    count: int
    data: str
    """JSON that can stand in a script element."""


Block = Text | Table | Facts | FigureBlock | LeftOut | CaseTable

Section = Callable[[Findings], tuple[Block, ...]]
"""A section of the page: findings -> blocks. Its name is its heading; the page leaves out a section
without a block."""


def name_of(*words: str) -> str:
    """Return a name for export, and for ids: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")


def heading(section: Section) -> str:
    """Return the heading of a section: its name in words."""
    words = in_words(section.__name__)
    return words[0].upper() + words[1:]

"""What is shown is a document: texts, tables, facts and figures, which hold data and no format.

Three functions render a document: :func:`show` in a terminal, :func:`markdown` and :func:`html`.
Each escapes in its own way, in one place; nothing else knows a format. JSON is made of the values
themselves, not of their texts, by :func:`json_text`. Importing this module takes neither matplotlib
nor pandas.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import accumulate
from math import floor, inf, isfinite, isinf, isnan, log10
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from markupsafe import Markup, escape

from harness.records import Case, Status
from harness.records.text import count, in_words
from harness.store import to_plain

if TYPE_CHECKING:
    from jinja2 import Environment as Templates
    from matplotlib.figure import Figure

    from harness.report.frame import PageData

__all__ = [
    "DASH",
    "SYMBOLS",
    "SYMBOLS_TEXT",
    "Block",
    "CaseTable",
    "Cell",
    "Document",
    "Facts",
    "FigureBlock",
    "LegendEntry",
    "Panel",
    "Section",
    "Table",
    "Text",
    "case_cell",
    "columns",
    "definitions",
    "escaped",
    "first_open",
    "heading",
    "html",
    "json_text",
    "markdown",
    "name_of",
    "number",
    "pill",
    "rounded",
    "show",
    "templates",
    "terminal_lines",
    "with_terms",
]

# --- numbers as the page writes them: three significant digits, powers of ten as superscripts -----

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DASH = "–"  # printed where nothing was measured


def rounded(value: float | None, digits: int = 3, *, as_power: bool = False) -> str:
    """Return ``value`` with that many significant digits; a dash for None or NaN.

    Args:
        value: any number.
        digits: that are shown.
        as_power: whether numbers that need no power of ten have one, too.
    """
    if value is None or isnan(value):
        return DASH
    if isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    shown = float(f"{value:.{digits}g}")
    exponent = floor(log10(abs(shown)))
    if -4 <= exponent < 5 and not as_power:
        return f"{shown:,.10g}"
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    mantissa = f"{shown / 10.0**exponent:.{digits}g}"
    return power if mantissa == "1" else f"{mantissa} × {power}"


# --- blocks --------------------------------------------------------------------------------------


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
    parts: tuple[str, ...] = ()
    """What the text is made of, if a terminal may leave out the parts that all rows have."""


def case_cell(case: Case, environment: str = "") -> Cell:
    """Make a cell that names a case; a terminal shows what differs between the rows."""
    parts = (*case.parts, *filter(None, [environment]))
    return Cell(", ".join(filter(None, [case.id, environment])), is_long=True, parts=parts)


SYMBOLS: dict[str, str] = {Status.WRONG: "✕", Status.INACCURATE: "≈", Status.OUT_OF_GUARANTEE: "○"}
"""Statuses of measured cases beside a number; ok has none."""
SYMBOLS_TEXT = "✕ wrong, ≈ inaccurate, ○ out of guarantee."


def number(text: str, note: str = "", title: str = "") -> Cell:
    """Make a cell that is aligned as a number."""
    return Cell(text, note=note, is_number=True, title=title)


def pill(status: str, text: str = "", *, title: str = "") -> Cell:
    """Make a cell that shows a status, except ok, so that the others stand out."""
    shown = "" if status == Status.OK else status
    return Cell(text, status=shown, is_number=bool(text), title=title)


def columns(*heads: str) -> tuple[Cell, ...]:
    """Return headings of columns; "Cases#" is one of numbers."""
    return tuple(Cell(head.removesuffix("#"), is_number=head.endswith("#")) for head in heads)


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a figure, made only when it is asked for."""

    name: str
    """By which it is exported; unique in the page; letters, digits and dashes."""
    title: str
    draw: Callable[[], Figure]

    @property
    def svg(self) -> str:
        """Markup from matplotlib, which escapes the texts in it."""
        from harness.report.figures import page_markup

        return page_markup(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the first cell of each row is its heading."""

    name: str = ""
    """By which it is exported; unique in the page."""
    title: str = ""
    caption: str = ""
    columns: tuple[Cell, ...]
    """Their headings."""
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False
    """Whether it is closed until the reader opens it."""
    panels: tuple[Panel, ...] = ()
    """The same numbers as figures, for export."""
    row_needs: tuple[tuple[int, ...], ...] = ()
    """For each row the numbers of the requirements that it answers, none if it answers all; empty
    if the rows do not depend on the requirement."""
    default_need: int = 0
    """The number of the requirement that is in force until the reader changes it."""

    @property
    def shown_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows under the default requirement."""
        pairs = zip(self.rows, self.row_needs or [()] * len(self.rows), strict=True)
        return tuple(row for row, needs in pairs if not needs or self.default_need in needs)


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, or a line."""

    text: str
    style: str = ""
    """``title``, ``note`` (one of a list), ``code`` (a command), or none."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    title: str
    pairs: tuple[tuple[str, str], ...]
    is_glossary: bool = False
    """Whether the names are terms, which captions lead to."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of a figure's legend."""

    text: str
    series: str = ""
    """CSS class of the drawn lines, and name of their colour; empty if the entry explains a line
    of every class."""
    mark: str = ""
    """Character that looks like the marker; if empty, a line is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBlock:
    """Drawings that share a title, a legend and a caption."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    conclusion: str = ""
    """What the drawings show, in a sentence or two above them."""
    legend: tuple[LegendEntry, ...] = ()
    width: str = ""
    """``wide`` if each drawing is as wide as the page, ``narrow`` if each fits a phone."""
    is_folded: bool = False
    """Whether it is closed until the reader opens it."""


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Every case as a picture and as a table, which the page's script draws from ``data``."""

    data: dict[str, Any]


Foldable = TypeVar("Foldable", Table, FigureBlock)


def first_open(blocks: Iterable[Foldable]) -> tuple[Foldable, ...]:
    """Return blocks of which all but the first are closed until the reader opens them."""
    return tuple(replace(block, is_folded=index > 0) for index, block in enumerate(blocks))


Block = Text | Table | Facts | FigureBlock | CaseTable
Document = Sequence[Block]

Section = Callable[["PageData"], Iterable[Block]]
"""A section of the page: data -> blocks. Its name is its heading; the page leaves out a section
without a block."""


def name_of(*words: str) -> str:
    """Return a name for export, and for ids: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")


def heading(section: Section) -> str:
    """Return the heading of a section: its name in words."""
    return in_words(section.__name__).capitalize()


def _words(cell: Cell, write: Callable[[str], str] = str, *, symbols: bool = False) -> str:
    """Return what a cell says in one line, without its note: the text, and a status beside it.

    Args:
        cell: the cell.
        write: escapes the text.
        symbols: whether a status that has a symbol is written as that.
    """
    status = in_words(cell.status)
    text = "" if status and cell.text in {DASH, status} else write(cell.text)
    shown = SYMBOLS.get(cell.status, status) if symbols else status
    return " ".join(filter(None, [text, shown]))


# --- terminal ------------------------------------------------------------------------------------


_WIDEST = 100  # characters. Trade-off: longer lines of text are hard to read
_UNBROKEN = re.compile(r"`[^`]*`|\[[^\[\]]{,30}\]")  # commands and intervals stay on one line
_NOTHING = {"", DASH}


def show(document: Document) -> None:
    """Print a document on standard output; rows with a status are yellow."""
    from rich.console import Console
    from rich.text import Text as Line

    console = Console(highlight=False, markup=False, emoji=False)
    width = min(console.width, _WIDEST) if sys.stdout.isatty() else _WIDEST
    for line, style in terminal_lines(document, width):
        console.print(Line(line, style), soft_wrap=True)


def terminal_lines(document: Document, width: int = _WIDEST) -> Iterator[tuple[str, str]]:
    """Yield lines of at most ``width`` characters, unless a word is longer, and their styles.

    Texts and facts are wrapped. Figures are left out.
    """
    for block in document:
        match block:
            case Text(style="code"):
                yield from _wrapped(block.text, width, end=" \\")
            case Text():
                note = "note: " if block.style == "note" else ""
                yield from _wrapped(f"{note}{block.text}", width)
            case Facts():
                yield from _wrapped(block.title, width) if block.title else ()
                names = max((len(name) for name, _ in block.pairs), default=0) + 5
                for name, value in block.pairs:
                    yield from _wrapped(value, width, f"  {name}".ljust(names), " " * names)
            case Table():
                yield from _terminal_table(block, width)
                yield from _wrapped(block.caption, width) if block.caption else ()


def _wrapped(
    text: str, width: int, first: str = "", rest: str = "  ", *, end: str = "", style: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, broken between words, and their style.

    Args:
        text: what to break.
        width: characters per line; a longer word has a line of its own.
        first: what precedes the first line.
        rest: what precedes each of the others.
        end: what follows each line but the last.
        style: of the lines.
    """
    for paragraph in text.splitlines() or [""]:
        *lines, last = wrap(
            _UNBROKEN.sub(lambda found: found[0].replace(" ", "\xa0"), paragraph),
            max(width - len(end), len(first) + 20),
            initial_indent=first,
            subsequent_indent=rest,
            # no word is broken: paths, and options of commands, have hyphens
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]
        for line in (*(f"{line}{end}" for line in lines), last):
            yield line.replace("\xa0", " "), style


def _terminal_table(table: Table, width: int) -> Iterator[tuple[str, str]]:
    """Yield a table; what has no room beside the other cells has lines of its own.

    The first cell stands above the others, once for the rows that share it, or long cells stand
    below the others, or both. If rows are still too wide, each cell follows its heading in a text.
    """
    rows = table.shown_rows
    common, names = _names(rows)
    cells = [[name, *map(_words, row[1:])] for name, row in zip(names, rows, strict=True)]
    heads = [column.text for column in table.columns]
    sizes = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    every = list(range(len(heads)))
    long = [at for at in every[1:] if any(row[at].is_long for row in rows)]
    short = [at for at in every if at not in long]
    layouts = [(every, []), (every[1:], []), (short, long), (short[1:], long)]
    fitting = (one for one in layouts if sum(sizes[at] + 2 for at in one[0]) <= width + 1)
    shown, below = next(fitting, ([], []))
    is_grouped = 0 not in shown
    indent = "  " if is_grouped else " "

    def line(row: Sequence[str]) -> str:
        return f"{indent}{'  '.join(f'{row[at]:<{sizes[at]}}' for at in shown)}".rstrip()

    if title := ", ".join(filter(None, [table.title, common and f"all {common}"])):
        yield from _wrapped(title, width)
    if any(heads) and shown:
        yield line(heads), ""
    group = None
    for row, texts in zip(rows, cells, strict=True):
        style = "yellow" if any(cell.status for cell in row) else ""
        if is_grouped and texts[0] != group:
            group = texts[0]
            yield group, "bold"
        if shown:
            yield line(texts), style
        else:
            pairs = zip(heads[1:], texts[1:], strict=True)
            known = (f"{head} {text}".lstrip() for head, text in pairs if text not in _NOTHING)
            yield from _wrapped(", ".join(known), width, "  ", "    ", style=style)
        for text in [*(texts[at] for at in below), *(cell.note for cell in row)]:
            if text not in _NOTHING:
                yield from _wrapped(text, width, "    ", "      ", style=style)


def _names(rows: Sequence[Sequence[Cell]]) -> tuple[str, list[str]]:
    """Return the parts that all first cells share, and their texts without these."""
    first = [row[0] for row in rows]
    shared = set.intersection(*(set(cell.parts[1:]) for cell in first)) if len(rows) > 1 else set()
    names = ["/".join(part for part in cell.parts if part not in shared) for cell in first]
    if not shared or len(set(names)) < len(names):  # of cases in several environments
        return "", list(map(_words, first))
    return "/".join(part for part in first[0].parts if part in shared), names


# --- Markdown ------------------------------------------------------------------------------------

# characters with a meaning in Markdown, or in HTML within it; not the underscores within names
_MARKS = re.compile(r"[\\`*{}\[\]<>#|~&!]|(?<!\w)_|_(?!\w)")
_SPARE_BYTES = 1024  # for the sentence that says what was left out


def escaped(text: str) -> str:
    """Escape text for Markdown, line by line, in characters that UTF-8 can hold."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    lines = (" ".join(line.split()) for line in whole.splitlines())
    return "<br>".join(_MARKS.sub(r"\\\g<0>", line) for line in lines)


def markdown(document: Document, *, limit_bytes: float = inf, rest: str = "") -> str:
    """Return a document in GitHub's Markdown, of at most ``limit_bytes`` in UTF-8.

    Lines for which there is no room are counted in the last line. Figures are left out.

    Args:
        document: what must be seen comes first.
        limit_bytes: the room; the result is empty if not even the first line fits.
        rest: a clause that says where to find the lines that are left out.
    """
    lines: list[str] = []
    for block, following in zip(document, [*document[1:], None], strict=True):
        match block:
            case Text(style="code"):
                lines += ["```", block.text, "```", ""]
            case Text():
                mark = {"title": "## ", "note": "- "}.get(block.style, "")
                in_list = mark == "- " and getattr(following, "style", "") == "note"
                lines += [mark + escaped(block.text), *([] if in_list else [""])]
            case Facts():
                pairs = (f"- {escaped(name)}: {escaped(value)}" for name, value in block.pairs)
                lines += [*([f"### {escaped(block.title)}", ""] if block.title else []), *pairs, ""]
            case Table():
                lines += _markdown_table(block)
    room = limit_bytes - _SPARE_BYTES
    kept = sum(size <= room for size in accumulate(len(line.encode()) + 1 for line in lines))
    if 0 < kept < len(lines):
        where = f"; {escaped(rest)}" if rest else ""
        more = ["", f"no room here for {count(len(lines) - kept, 'more line')}{where}", ""]
        return "\n".join(lines[:kept] + more)
    return "\n".join(lines[:kept])


def _markdown_table(table: Table) -> Iterator[str]:
    if table.is_folded:
        yield from (f"<details><summary>{escape(table.title)}</summary>", "")
    elif table.title:
        yield from (f"### {escaped(table.title)}", "")
    yield _markdown_row(escaped(column.text) for column in table.columns)
    yield f"|{'|'.join('---:' if column.is_number else '---' for column in table.columns)}|"
    yield from (_markdown_row(map(_markdown_cell, row)) for row in table.shown_rows)
    yield ""
    if table.caption:
        yield from (escaped(table.caption), "")
    if table.is_folded:
        yield from ("</details>", "")


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    if cell.is_code:
        return f"`{cell.text.replace('|', chr(92) + '|')}`"
    text = _words(cell, escaped, symbols=True)
    text = f"[{text}]({cell.link})" if cell.link else text
    text = f"**{text}**" if cell.is_strong else text
    return f"{text}<br>{escaped(cell.note)}" if cell.note else text


# --- HTML ----------------------------------------------------------------------------------------


def html(document: Document) -> Markup:
    """Return a document as parts of a page; jinja escapes all texts."""
    text = templates().get_template("blocks.html.j2").render(document=document)
    return Markup(text.lstrip("\n").removesuffix("\n"))


@cache
def templates() -> Templates:
    """Return the page's templates, with filters for terms, names and breakable text."""
    from jinja2 import Environment as Templates
    from jinja2 import PackageLoader, StrictUndefined

    found = Templates(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["symbols"] = SYMBOLS
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    found.filters |= {"terms": with_terms, "slug": name_of}
    found.filters["kind"] = lambda block: type(block).__name__
    # a long name may be broken after _, + and /
    found.filters["breakable"] = lambda text: Markup(
        re.sub(r"[_+/]", r"\g<0><wbr>", str(escape(text)))
    )
    return found


@cache
def definitions() -> dict[str, str]:
    """Return the definitions of the terms that captions use, in plain text, by heading.

    glossary.json holds a copy of those in docs/glossary.md, which the package does not carry. A
    test compares the two; with WRITE_GOLDEN=1 it writes the file anew.
    """
    text = files("harness.report").joinpath("glossary.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


_TERM = Markup('<a class="term" href="#term-{}" data-definition="{}">{}</a>')


def with_terms(text: str) -> Markup:
    """Return ``text`` as HTML in which the first use of each term leads to its definition.

    The definition is shown when the pointer is over the term, or when the term has the focus.
    """
    headings = {heading.lower(): heading for heading in definitions()}
    headings["disqualified"] = "Eligible"
    words = "|".join(sorted(headings, key=len, reverse=True))
    seen: set[str] = set()

    def linked(found: re.Match[str]) -> str:
        heading = headings[found[0].lower()]
        if heading in seen:
            return found[0]
        seen.add(heading)
        return _TERM.format(name_of(heading), definitions()[heading], found[0])

    # the text has no entity that is a term
    return Markup(re.sub(rf"\b(?:{words})\b", linked, str(escape(text)), flags=re.IGNORECASE))


# --- JSON ----------------------------------------------------------------------------------------


def json_text(value: object) -> str:
    """Return values as JSON: null for a number that is NaN or infinite, text for a path."""
    return json.dumps(_plain(value), allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    value = to_plain(value)
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value

"""Single figures and tables of the page, as files for a README, a paper or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.content import Cell, FigureBlock, LeftOut, Panel, Table, name_of
from harness.report.figures.theme import file_of
from harness.report.frame import gather
from harness.report.quantities import DASH
from harness.report.sections import SECTIONS
from harness.store import Results

__all__ = ["drawings_of", "figure_file", "markdown_of", "tables_of"]

_MARKS = {"wrong": "✕", "out_of_guarantee": "○"}


def drawings_of(results: Sequence[Results]) -> dict[str, Panel]:
    """Return the figures by name; none is drawn before it is asked for."""
    drawings: dict[str, Panel] = {}
    for block in _blocks(results):
        panels = block.panels if isinstance(block, FigureBlock) else block.drawings
        drawings |= {panel.name: panel for panel in panels}
    return drawings


def tables_of(results: Sequence[Results]) -> dict[str, Table]:
    """Return the tables by name."""
    tables = [block for block in _blocks(results) if isinstance(block, Table)]
    return {table.name or name_of(table.title): table for table in tables}


def _blocks(results: Sequence[Results]) -> list[FigureBlock | LeftOut | Table]:
    findings = gather(results)
    blocks = (block for section in SECTIONS for block in section(findings))
    return [block for block in blocks if isinstance(block, FigureBlock | LeftOut | Table)]


def figure_file(panel: Panel, form: str) -> bytes:
    """Return a figure as a file of its own: ``form`` is svg or png."""
    return file_of(panel.draw, form)


def markdown_of(table: Table) -> str:
    """Return a table in GitHub's Markdown, with its title and its caption."""
    head = [_escaped(column.text) for column in table.columns]
    rule = ["---:" if column.is_number else "---" for column in table.columns]
    lines = [head, rule, *([_cell(cell) for cell in row] for row in table.shown_rows)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {_escaped(table.title)}\n\n{rows}\n\n{_escaped(table.caption)}\n"


def _cell(cell: Cell) -> str:
    parts = [] if cell.text == DASH and cell.status else [cell.text]
    if cell.status:
        parts.append(_MARKS.get(cell.status, cell.status.replace("_", " ")))
    if cell.is_code:
        return f"`{cell.text}`"
    text = _escaped(" ".join(filter(None, parts)))
    if cell.is_strong:
        text = f"**{text}**"
    return f"{text}<br>{_escaped(cell.note)}" if cell.note else text


def _escaped(text: str) -> str:
    """Return text that no character of which means anything in a table of Markdown."""
    for character in "\\`*_[]<>|~&":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", "<br>")

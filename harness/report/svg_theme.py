"""Drawings as SVG that follows the light and the dark theme of the page.

Figures are drawn in sentinel colours, each of which is replaced by a CSS variable of the page in
the SVG. Ids and style classes are made unique in the page. Removing unused markup makes it a third
to a half smaller.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.content import Panel

__all__ = [
    "DASHES",
    "FACE",
    "GRID",
    "INK",
    "MUTED",
    "SERIES",
    "canvas",
    "series_variable",
    "to_panel",
]

INK, MUTED, GRID, FACE = "#010203", "#040506", "#070809", "#0a0b0c"
SERIES = tuple(f"#0d0e{number:02x}" for number in range(1, 13))
"""Sentinels of the colours that tell implementations apart; page.css has as many."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.6), (7, 1.6, 1.2, 1.6), (2.6, 1.4))
"""Lengths drawn and left out in turn, in widths of the line. They tell lines of similar colours
apart, and show a line under another. Five of them and twelve colours make sixty different lines."""

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    FACE: "var(--card)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)},
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text can be searched, and takes a tenth of the bytes of outlines
    "svg.hashsalt": "layernorm-bench",  # equal figures give equal ids
    "text.parse_math": False,  # a name may contain two dollar signs
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}


def series_variable(position: int) -> str:
    """Return the CSS value of the colour of the implementation at ``position``."""
    return _VARIABLES[SERIES[position % len(SERIES)]]


@contextmanager
def canvas(
    width_in: float,
    height_in: float,
    *,
    left_in: float = 0.62,
    bottom_in: float = 0.46,
    top_in: float = 0.3,
    right_in: float = 0.12,
    grid: bool = True,
) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure with one pair of axes and fixed margins: measuring text would draw it twice."""
    with mpl.rc_context({**_STYLE, "axes.grid": grid}), warnings.catch_warnings():
        # the browser draws the text, with its own fonts
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        figure = Figure(figsize=(width_in, height_in))
        box = (
            left_in / width_in,
            bottom_in / height_in,
            1 - (left_in + right_in) / width_in,
            1 - (bottom_in + top_in) / height_in,
        )
        yield figure, figure.add_axes(box)


def to_panel(figure: Figure, name: str, title: str) -> Panel:
    """Return a figure as markup for the page.

    Args:
        figure: what was drawn on a :func:`canvas`.
        name: unique in the page; letters, digits and dashes.
        title: what the figure shows, for screen readers.
    """
    file = io.StringIO()
    nothing: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", metadata=nothing)
    width_pt = float(figure.get_figwidth()) * 72
    text = file.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = _with_classes(_reduced(body), name)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    box = f"0 0 {width_pt:g} {float(figure.get_figheight()) * 72:g}"
    head = f'<svg viewBox="{box}" role="img" aria-labelledby="{name}-title" focusable="false">'
    return Panel(f'{head}<title id="{name}-title">{escape(title)}</title>{body}', width_pt)


def _reduced(body: str) -> str:
    """Remove markup that browsers do not need, and digits beyond a hundredth of a point."""
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)  # page.css
    body = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", body)
    body = re.sub(r'<g id="(series-\d+)">', r'<g class="\1">', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"<[^>]*>", _with_short_numbers, body)  # only in tags, not in text
    # the cells of a heat map, none of which needs clipping
    cell = r'd="M ?(\S+) (\S+)\s*L (\S+) \2\s*L \3 (\S+)\s*L \1 \4\s*L \1 \2\s*" clip-path="[^"]*"'
    body = re.sub(cell, r'd="M\1 \2H\3V\4H\1z"', body)
    body = re.sub(r"\s*\n\s*", "\n", body).replace('\n"', '"')
    return re.sub(r"\n(?=[LCQz])|(?<=[ML]) (?=[\d-])|(?<=>)\n(?=<)", "", body)


def _with_short_numbers(tag: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d+", lambda found: f"{round(float(found[0]), 2):g}", tag[0])


def _with_classes(body: str, name: str) -> str:
    """Make ids unique in the page, and replace equal styles by one class."""
    body = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", body)
    classes: dict[str, str] = {}

    def to_class(found: re.Match[str]) -> str:
        style = re.sub(r"font: ([^;]*?px)[^;]*", r"font: \1 var(--sans)", found[1])
        style = re.sub(r"font-family: [^;]*", "font-family: var(--sans)", style)
        return f' class="{classes.setdefault(style, f"{name}-{len(classes)}")}"'

    body = re.sub(r' style="([^"]*)"', to_class, body)
    rules = "".join(f".{each}{{{style}}}" for style, each in classes.items())
    return f"<style>{rules}</style>{body}"

"""Drawings as SVG that follows the light and the dark theme of the page, or as files of their own.

A drawing takes its colours from a theme. Those of the page are sentinels, each of which is replaced
by a CSS variable in the SVG.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "DASHED",
    "DASHES",
    "ON_PAGE",
    "ON_PAPER",
    "Theme",
    "canvas",
    "file_of",
    "page_markup",
    "series_variable",
]


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a drawing."""

    ink: str
    muted: str
    grid: str
    face: str
    series: tuple[str, ...]
    """They tell implementations, or classes of algorithms, apart."""

    def series_id(self, colour: str) -> str:
        """Return the id of everything drawn in a colour; the page highlights a series by it."""
        return f"series-{self.series.index(colour)}"


ON_PAGE = Theme(
    "#010203", "#040506", "#070809", "#0a0b0c", tuple(f"#0d0e{number:02x}" for number in range(12))
)
"""Sentinels; page.css has a variable for each."""
ON_PAPER = Theme(
    "#16191d",
    "#59616b",
    "#dfe3e8",
    "#ffffff",
    (
        "#0072b2", "#d55e00", "#008a65", "#9a7200", "#c0508f", "#5560e0",
        "#3f4752", "#4f8622", "#d0316f", "#0f7f94", "#8a52b0", "#6d7a00",
    ),
)  # fmt: skip
"""The light colours of page.css, for files of their own."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.6), (7, 1.6, 1.2, 1.6), (2.6, 1.4))
"""Lengths drawn and left out in turn, in widths of the line. They tell lines of similar colours
apart, and show a line under another. Five of them and twelve colours make sixty different lines."""
DASHED: dict[str, Any] = {"lw": 0.9, "ls": (0, (4, 3))}
"""A line that marks a level."""

_VARIABLES = {
    ON_PAGE.ink: "var(--ink)",
    ON_PAGE.muted: "var(--muted)",
    ON_PAGE.grid: "var(--line)",
    ON_PAGE.face: "var(--card)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(ON_PAGE.series)},
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
    "axes.titley": 1.0,  # a height of its own takes a look at every tick
    "grid.linewidth": 0.7,
    "axes.facecolor": "none",
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
    """Return the CSS value of the colour of the series at ``position``."""
    return f"var(--series-{position % len(ON_PAGE.series)})"


@contextmanager
def canvas(
    theme: Theme,
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
    colours: dict[Any, Any] = {
        **dict.fromkeys(("axes.titlecolor", "text.color"), theme.ink),
        **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), theme.muted),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), theme.grid),
        "figure.facecolor": "none" if theme is ON_PAGE else theme.face,
        "axes.grid": grid,
    }
    with mpl.rc_context({**_STYLE, **colours}), warnings.catch_warnings():
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


Draw = Callable[[Theme], Figure]


def page_markup(draw: Draw, name: str, title: str) -> str:
    """Return a drawing as SVG for the page: with its colours, and with ids that are unique there.

    Args:
        draw: makes the drawing on a :func:`canvas`.
        name: unique in the page; letters, digits and dashes.
        title: what the drawing shows, for screen readers.
    """
    figure = draw(ON_PAGE)
    text = _saved(figure, "svg").decode()
    body = text[text.index("</defs>") + len("</defs>") :]  # its style is in page.css
    prefix = f"f{sha256(name.encode()).hexdigest()[:6]}"  # short: an SVG has it a hundred times
    for pattern, new in (
        (r"<!--.*?-->", ""),
        (r"\n *", ""),
        (r'<g id="(series-\d+)">', r'<g class="\1">'),
        (r'<g id="[^"]*"', "<g"),
        (r"<g/>", ""),
        (r"(\.\d\d)\d+(?=[^<>]*>)", r"\1"),  # only in tags, not in text
        (r' transform="rotate\(-0 [^"]*"', ""),
        (r'font-family: [^;"]*', "font-family: var(--sans)"),
        (r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-"),
        *_VARIABLES.items(),
    ):
        body = re.sub(pattern, new, body)
    box = f"0 0 {figure.get_figwidth() * 72:g} {figure.get_figheight() * 72:g}"
    head = f'<svg viewBox="{box}" role="img" aria-labelledby="{prefix}-title" focusable="false">'
    return f'{head}<title id="{prefix}-title">{escape(title)}</title>{body}'


def file_of(draw: Draw, form: str) -> bytes:
    """Return a drawing as a file of its own, on white: ``form`` is svg or png."""
    return _saved(draw(ON_PAPER), form)


def _saved(figure: Figure, form: str) -> bytes:
    file = io.BytesIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        metadata: dict[str, Any] = (
            {"Date": None, "Creator": None, "Format": None, "Type": None}
            if form == "svg"
            else {"Software": None}
        )
        # 200 dots per inch: sharp in a README at twice its width in points
        figure.savefig(file, format=form, metadata=metadata, dpi=200 if form == "png" else None)
    return file.getvalue()

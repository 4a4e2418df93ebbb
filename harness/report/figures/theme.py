"""Drawings as SVG that follows the light and the dark theme of the page, or as files of their own.

A drawing takes its colours from a theme. Those of the page are sentinels, each of which is replaced
by a CSS variable in the SVG. Ids and style classes are made unique in the page. Removing unused
markup makes it a third to a half smaller.
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
    """Return a drawing as SVG for the page.

    Args:
        draw: makes the drawing on a :func:`canvas`.
        name: unique in the page; letters, digits and dashes.
        title: what the drawing shows, for screen readers.
    """
    figure = draw(ON_PAGE)
    text = _saved(figure, "svg").decode()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    prefix = f"f{sha256(name.encode()).hexdigest()[:6]}"  # short: an SVG has it a hundred times
    body = _with_classes(_reduced(body), prefix)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
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


def _reduced(body: str) -> str:
    """Remove markup that browsers do not need, and digits beyond a hundredth of a point."""
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)  # page.css
    body = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", body)
    body = re.sub(r'<g id="(series-\d+)">', r'<g class="\1">', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"<g>\s*<g/>\s*</g>|<g/>|<g>\s*</g>", "", body)
    body = re.sub(r"<[^>]*>", _with_short_numbers, body)  # only in tags, not in text
    # the cells of a heat map, none of which needs clipping
    cell = r'd="M ?(\S+) (\S+)\s*L (\S+) \2\s*L \3 (\S+)\s*L \1 \4\s*L \1 \2\s*" clip-path="[^"]*"'
    body = re.sub(cell, r'd="M\1 \2H\3V\4H\1z"', body)
    body = re.sub(r"\s*\n\s*", "\n", body).replace('\n"', '"')
    return re.sub(r"\n(?=[LCQz])|(?<=[ML]) (?=[\d-])|(?<=>)\n(?=<)", "", body)


def _with_short_numbers(tag: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d+", lambda found: f"{round(float(found[0]), 2):g}", tag[0])


def _with_classes(body: str, prefix: str) -> str:
    """Make ids unique in the page, and replace equal styles by one class."""
    body = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    classes: dict[str, str] = {}

    def to_class(found: re.Match[str]) -> str:
        style = re.sub(r"font: ([^;]*?px)[^;]*", r"font: \1 var(--sans)", found[1])
        style = re.sub(r"font-family: [^;]*", "font-family: var(--sans)", style)
        return f' class="{classes.setdefault(style, f"{prefix}-{len(classes)}")}"'

    body = re.sub(r' style="([^"]*)"', to_class, body)
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    return f"<style>{rules}</style>{body}"

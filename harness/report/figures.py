"""The figures of the page, drawn by matplotlib. A section chooses the rows of each.

They are SVG that follows the light and the dark theme of the page, or files of their own. On the
page each colour is replaced by the CSS variable that has its value in the light theme. Error
against condition is drawn beside its section.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from math import exp, floor, inf, isnan, log10
from operator import itemgetter
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from harness.records import Mode
from harness.records.text import seconds_text
from harness.regression import History, Series
from harness.report.document import Panel, rounded

INK, MUTED, GRID, FACE = "#16191d", "#59616b", "#dfe3e8", "#ffffff"
SERIES = (
    "#0072b2", "#b85100", "#00805e", "#8f6a00", "#b34a85", "#5560e0",
    "#3f4752", "#4a7d20", "#d0316f", "#0f7f94", "#8a52b0", "#6d7a00",
)  # fmt: skip
"""The light colours of page.css; those of SERIES tell implementations, or classes, apart."""
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (7, 1.6, 1.2, 1.6)), (0, (2.6, 1.4)),
)  # fmt: skip
"""Lengths drawn and left out in turn, in widths of the line. They tell lines of similar colours
apart, and show a line under another. Five of them and twelve colours make sixty different lines."""
DASHED: dict[str, Any] = {"lw": 0.9, "ls": (0, (4, 3))}
"""A line that marks a level."""

_VARIABLES = {
    INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", FACE: "var(--card)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)},
}  # fmt: skip

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text can be searched, and takes a tenth of the bytes of outlines
    "svg.hashsalt": "layernorm-bench",  # equal figures give equal ids
    "text.parse_math": False,  # a name may contain two dollar signs
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.edgecolor": GRID,
    "grid.color": GRID,
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
}


def series_id(colour: str) -> str:
    """Return the id of everything drawn in a colour; the page highlights a series by it."""
    return f"series-{SERIES.index(colour)}"


_TOP_IN = 0.3  # the title


@contextmanager
def canvas(
    width_in: float,
    height_in: float,
    *,
    left_in: float = 0.62,
    bottom_in: float = 0.46,
    right_in: float = 0.12,
) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure with one pair of axes and fixed margins: measuring text would draw it twice."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # the browser draws the text, with its own fonts
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        figure = Figure(figsize=(width_in, height_in))
        box = (
            left_in / width_in,
            bottom_in / height_in,
            1 - (left_in + right_in) / width_in,
            1 - (bottom_in + _TOP_IN) / height_in,
        )
        yield figure, figure.add_axes(box)


def page_markup(panel: Panel) -> str:
    """Return a drawing as SVG for the page, with its colours, and with ids that are unique."""
    text = file_of(panel, "svg", "none").decode()
    body = text[text.index("</defs>") + len("</defs>") :]  # its style is in page.css
    # short: an SVG has it a hundred times
    prefix = f"f{sha256(panel.name.encode()).hexdigest()[:6]}"
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
    box = re.findall(r'viewBox="[^"]*"', text)[0]
    head = f'<svg {box} role="img" aria-labelledby="{prefix}-title" focusable="false">'
    return f'{head}<title id="{prefix}-title">{escape(panel.title)}</title>{body}'


def file_of(panel: Panel, form: str, face: str = FACE) -> bytes:
    """Return a drawing as a file of its own: ``form`` is svg or png, ``face`` its background."""
    file = io.BytesIO()
    figure = panel.draw()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        # 200 dots per inch: sharp in a README at twice its width in points
        figure.savefig(file, format=form, metadata={"Date": None}, dpi=200, facecolor=face)
    return file.getvalue()


# --- logarithmic axes, their ticks, and names beside what is drawn --------------------------------

_MANY_TICKS = 7  # labels of more decades overlap
_LINE_IN = 0.135  # height of a line of text of 8 pt, with a gap


EndLabel = tuple[str, float, float, str]
"""The name of a point, or of a line at its right end: text, x, y and colour."""


def end_labels(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write names to the right of the axes, pushed apart so that none overlap.

    Args:
        axes: with logarithmic axes, whose limits are set.
        labels: in any order; as many as fit are written.
    """
    height_in = axes.get_window_extent().height / axes.figure.dpi
    most = floor(height_in / _LINE_IN)
    ordered = sorted(labels, key=itemgetter(2, 0))
    if len(ordered) > most:  # those at the ends of the range are looked for first
        half = (most - 1) // 2
        rest = len(ordered) - 2 * half
        ordered = [*ordered[:half], *ordered[-half:]]
        axes.annotate(
            f"and {rest} between", (1.02, 1.02), xycoords="axes fraction", color=MUTED,
            fontsize=7.5, annotation_clip=False,
        )  # fmt: skip
    on_screen = axes.transData.transform([(x, y) for _, x, y, _ in ordered])
    ends = axes.transAxes.inverted().transform(on_screen)
    heights = _spread(ends[:, 1], _LINE_IN / height_in)
    for (text, _, _, colour), height in zip(ordered, heights, strict=True):
        axes.text(
            1.024, height, _shortened(text, 24), transform=axes.transAxes,
            color=colour, fontsize=8, va="center",
        )  # fmt: skip
    # a collection takes a tenth of the time of as many annotations with arrows
    lines = [(end, (1.018, height)) for end, height in zip(ends, heights, strict=True)]
    leaders = LineCollection(
        lines, colors=GRID, linewidths=0.7, transform=axes.transAxes, clip_on=False, zorder=1
    )
    axes.add_collection(leaders, autolim=False)


def _spread(wanted: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Return positions from 0 to 1 at least ``gap`` apart, near the wanted ones, which ascend."""
    gaps = gap * np.arange(len(wanted))  # what the gaps below each position take
    free = np.maximum.accumulate(wanted - gaps).clip(0.0, 1.0 - gaps[-1])
    spread: NDArray[np.float64] = gaps + free
    return spread


def level(axes: Axes, height: float, words: str) -> None:
    """Draw a dashed line with words under its left end."""
    axes.axhline(height, color=MUTED, zorder=1, **DASHED)
    axes.annotate(
        words, (0.01, height), xytext=(0, -3), color=MUTED, fontsize=7.5, va="top",
        xycoords=("axes fraction", "data"), textcoords="offset points",
    )  # fmt: skip


def _shortened(label: str, most: int = 36) -> str:
    """Cut a long name in its middle: a path ends in its file and function."""
    start = most // 3
    return label if len(label) <= most else f"{label[:start]}…{label[start + 1 - most :]}"


def log_scales(
    axes: Axes, x: pd.Series, y: tuple[float, float], write_y: Callable[..., str] | None = None
) -> None:
    """Make both axes logarithmic, with labels at decades, and between them if decades are few.

    Args:
        axes: that are empty.
        x: values, positive and finite; the limits are a little beyond them.
        y: the limits.
        write_y: makes the labels of y; by default as those of x, which are all powers of ten if
            one has to be.
    """
    low, high = x.min(), x.max()
    margin = max(1.25, (high / low) ** 0.04)
    axes.set(xscale="log", yscale="log", xlim=(low / margin, high * margin), ylim=y)
    for axis, write in ((axes.xaxis, None), (axes.yaxis, write_y)):
        low, high = axis.get_view_interval()
        span = log10(high / low)
        between = () if span >= 3 else (2, 5) if span > 0.6 else (1.5, 2, 3, 4, 5, 7)
        write = write or partial(rounded, as_power=low < 1e-4 or high >= 1e5)
        axis.set_major_locator(LogLocator(subs=(1, *between), numticks=_MANY_TICKS))
        axis.set_major_formatter(FuncFormatter(lambda value, _, write=write: write(value)))
        axis.set_minor_locator(NullLocator())


# --- latency against size, with the time of a copy of the same bytes ------------------------------

_WIDTH_IN = 5.4  # two panels side by side on a screen, one on a phone
_HEIGHT_IN = 3.4
_WIDTHS_PT = {Mode.EAGER.value: 1.5, Mode.COMPILED.value: 0.7}
_LEAST_BAND = 1.1  # a line of 1.5 pt covers 10 % of a value where 170 pt are five decades


def latency_figure(title: str, rows: pd.DataFrame, implementations: tuple[str, ...]) -> Figure:
    """Draw the time of a call with its interval, and of a copy, against the size of x.

    Args:
        title: of the figure.
        rows: one per implementation, mode and size, with the columns implementation, mode, label,
            elements, time_s, low_s, high_s and copy_ratio.
        implementations: all names, in the order of their colours and dashes.
    """
    rows = rows.sort_values("elements", kind="stable")
    time, size = rows["time_s"], rows["elements"]
    copies = (time * rows["copy_ratio"]).groupby(size).median().dropna()
    least = min(time.min(), copies.min() if len(copies) else inf) / 1.5
    most = max(time.max(), copies.max() if len(copies) else 0.0) * 1.5
    with canvas(_WIDTH_IN, _HEIGHT_IN, left_in=0.74, right_in=1.45) as (figure, axes):
        log_scales(axes, size, (least, most), seconds_text)
        labels = [
            _line(axes, group, implementations)
            for _, group in rows.groupby(["implementation", "mode"], sort=False, observed=True)
        ]
        if len(copies):
            sizes, times = copies.index.to_numpy(float), copies.to_numpy()
            axes.fill_between(sizes, least, times, color=MUTED, alpha=0.13, lw=0)
            axes.plot(sizes, times, color=MUTED, lw=1.1, ls=(0, (1, 1.5)), zorder=1)
            labels.append(("a copy", sizes[-1], times[-1], MUTED))
        end_labels(axes, labels)
        axes.set(title=title, xlabel="elements of x", ylabel="time per call")
        return figure


def _line(axes: Axes, group: pd.DataFrame, implementations: tuple[str, ...]) -> EndLabel:
    """Draw the times of one implementation, and the intervals that are wider than the line."""
    name, mode, label = (str(group[key].iloc[0]) for key in ("implementation", "mode", "label"))
    size, time, below, above, copy = (
        group[key].to_numpy(float)
        for key in ("elements", "time_s", "low_s", "high_s", "copy_ratio")
    )
    index = implementations.index(name)
    colour = SERIES[index % len(SERIES)]
    gid = series_id(colour)
    position = index % len(DASHES)
    axes.plot(
        size, time, color=colour, lw=_WIDTHS_PT[mode], ls=DASHES[position], gid=gid,
        marker="o", ms=3, mew=0, zorder=2.1 if position else 2,  # a solid line hides the others
    )  # fmt: skip
    low, high = axes.get_ylim()
    below, above = np.maximum(below, low / 9), np.minimum(above, high * 9)
    if (above > _LEAST_BAND * below).any():
        axes.fill_between(size, below, above, color=colour, alpha=0.2, lw=0, gid=gid)
    share = "" if isnan(copy[-1]) else f" {copy[-1]:.0%}"
    return f"{label}{share}", size[-1], time[-1], colour


# --- the map of speeds, for files of their own: the page has a table with coloured cells ----------

LIMIT_LOG2 = 2.0  # log2: colours are strongest at 4 times as fast, and as slow


def speed_map(title: str, rows: pd.DataFrame, shapes: Sequence[str]) -> Figure:
    """Draw the speed of every implementation and dtype at every shape, relative to the reference.

    Args:
        title: of the figure.
        rows: one per cell, with the columns label, dtype, shape, speed and text.
        shapes: in the order of display.
    """
    import seaborn as sns  # a second to import: only files of their own need it

    rows = rows.sort_values(["dtype", "label"], kind="stable")
    rows = rows.assign(name=rows["label"].astype(str) + " " + rows["dtype"].astype(str))
    order = list(rows["name"].unique())
    shown = rows.pivot(index="name", columns="shape").reindex(order)
    speeds, words = (shown[part][list(shapes)] for part in ("speed", "text"))
    labels = list(map(_shortened, order))
    left_in = 0.25 + 0.066 * max(map(len, labels))  # 0.066 in: a letter at 8.5 pt
    bottom_in = 0.2 + 0.05 * max(map(len, shapes))  # turned by 40 degrees
    width_in = left_in + max(0.6 * len(shapes), 3.0) + 0.2
    height_in = 0.35 + 0.27 * len(speeds) + bottom_in
    margins = {"left_in": left_in, "bottom_in": bottom_in, "right_in": 0.2}
    with canvas(width_in, height_in, **margins) as (figure, axes):
        sns.heatmap(
            np.log2(speeds.astype(float)), annot=words.fillna("").to_numpy(), fmt="",
            annot_kws={"fontsize": 8}, cmap="PuOr", vmin=-2 * LIMIT_LOG2,
            vmax=2 * LIMIT_LOG2, cbar=False, linewidths=1, linecolor=FACE,
            yticklabels=labels, xticklabels=True, ax=axes,
        )  # fmt: skip
        axes.grid(visible=False)
        axes.tick_params(axis="x", rotation=40)
        axes.set(title=title, xlabel="", ylabel="")
        return figure


# --- one series, run by run, with the noise band and the change points ----------------------------

BAND_SPREADS = 2.0  # normal noise leaves it in 5 of 100 runs
_HISTORY_IN = (4.5, 2.5)  # two panels side by side on a screen, one on a phone


def history_figure(title: str, history: History, series: Series) -> Figure:
    """Draw a series over all runs of its history, two or more, so that gaps show.

    Args:
        title: of the figure.
        history: its runs, in order, are the horizontal axis.
        series: of speeds.
    """
    index_of = {id(run): index for index, run in enumerate(history.runs)}
    at = [index_of[id(run)] for run in series.runs]
    value, low, high = np.transpose([(one.value, one.low, one.high) for one in series.values])
    with canvas(*_HISTORY_IN, bottom_in=0.4) as (figure, axes):
        _bands(axes, series, at)
        axes.errorbar(
            at, value, yerr=np.maximum([value - low, high - value], 0.0), fmt="o", ms=3, mew=0,
            lw=0.9, color=SERIES[0], zorder=3,
        )  # fmt: skip
        last = len(history.runs) - 1
        axes.set_xlim(-0.6, last + 0.6)
        axes.set_xticks([0, last], [history.runs[index].label for index in (0, last)])
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(_shortened(title, 46), fontsize=9)
        axes.set_ylabel("speed")
        return figure


def _bands(axes: Axes, series: Series, at: list[int]) -> None:
    """Draw the level of each segment, the noise around it, and a line at each change."""
    width = exp(BAND_SPREADS * (series.spread or 0.0))
    for first, end, middle in series.segments:
        ends = [at[first] - 0.4, at[end - 1] + 0.4]
        low, high = middle / width, middle * width
        axes.fill_between(ends, low, high, color=SERIES[0], alpha=0.16, lw=0)
        axes.plot(ends, [middle, middle], color=MUTED, lw=0.9, zorder=2)
    for change in series.changes:
        colour = SERIES[1] if change.is_worse else MUTED
        between = (at[change.index - 1] + at[change.index]) / 2
        axes.axvline(between, color=colour, lw=1.1, ls=DASHED["ls"], zorder=1)

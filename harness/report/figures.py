"""The three kinds of figures, drawn by seaborn: error, latency, speed.

Each function draws one panel from rows of the case frame. The sections choose the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, floor, inf, isnan, log2, log10
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.records import Mode, Status
from harness.records.text import seconds_text
from harness.report.content import Panel
from harness.report.quantities import DASH, power_of_ten, rounded
from harness.report.svg_theme import DASHES, FACE, INK, MUTED, SERIES, canvas, to_panel

__all__ = ["condition_panel", "latency_panel", "speed_map"]

Colours = dict[str, str]
"""Sentinel colour of each implementation."""

_WIDTH_IN, _HEIGHT_IN = 4.8, 3.3  # two panels side by side on a screen, one on a phone
_WIDTHS_PT = {Mode.EAGER.value: 1.5, Mode.COMPILED.value: 0.7}  # page.css has the same
_LEAST_ULP = 2.0**-4  # an error of zero has no logarithm: it is drawn here, at the bottom edge
_LIMIT_LOG2 = 2.0  # log2: colours are strongest at 4 times as fast, and as slow
_LEAST_BAND = 1.1  # a line of 1.5 pt covers 10 % of a value where 170 pt are five decades
_MANY_TICKS = 7  # labels of more decades overlap

# blue is faster, orange slower, and transparent as fast as the reference
_SPEED_COLOURS = LinearSegmentedColormap.from_list(
    "speed",
    [
        (0.0, (0.84, 0.37, 0.0, 0.7)),
        (0.5, (0.84, 0.37, 0.0, 0.0)),
        (0.5, (0.0, 0.45, 0.84, 0.0)),
        (1.0, (0.0, 0.45, 0.84, 0.7)),
    ],
)


def condition_panel(
    name: str,
    title: str,
    lines: pd.DataFrame,
    points: pd.DataFrame,
    bits: int | None,
    colours: Colours,
) -> Panel:
    """Draw the error of y against the condition number of the inputs.

    Args:
        name: unique in the page.
        title: of the panel.
        lines: cases of one shape with a growing offset, joined by lines.
        points: cases of the same shape with other inputs.
        bits: significand bits of the dtype; None draws no line where all digits are lost.
        colours: of the implementations.
    """
    both = pd.concat([lines, points])
    finite = both["y_ulp"][np.isfinite(both["y_ulp"])]
    lost = 2.0**bits if bits else 1.0
    top = max(finite.max() if len(finite) else 1.0, lost, 4.0) * 2
    edge = top * (top / _LEAST_ULP) ** 0.06
    with canvas(_WIDTH_IN, _HEIGHT_IN) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        _span(axes, both["condition"])
        axes.set_ylim(_LEAST_ULP / 2, edge * (edge / _LEAST_ULP) ** 0.03)
        _level(axes, 0.5, "correctly rounded")
        if bits:
            _level(axes, lost, "no digit left", at=0.01)
        _ticks(axes)
        joined = lines.assign(y_ulp=lines["y_ulp"].clip(_LEAST_ULP, edge))
        _lines(axes, joined, "condition", "y_ulp", colours)
        _error_marks(axes, points, colours, scale=0.5, edge=edge)
        _error_marks(axes, lines, colours, scale=1.0, edge=edge)
        axes.set_title(title)
        axes.set(xlabel="condition number of the inputs", ylabel="largest error of y, ulp")
        return to_panel(figure, name, f"Error against condition: {title}")


def _level(axes: Axes, height: float, words: str, at: float = 0.99) -> None:
    axes.axhline(height, color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=1)
    axes.annotate(
        words,
        (at, height),
        xytext=(0, -3),
        color=MUTED,
        fontsize=7.5,
        ha="left" if at < 0.5 else "right",
        va="top",
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
    )


def _error_marks(
    axes: Axes, rows: pd.DataFrame, colours: Colours, *, scale: float, edge: float
) -> None:
    """Mark each case by its status: dot, circle, cross; a triangle where y is not finite."""
    for (implementation, status), group in rows.groupby(["implementation", "status"], sort=False):
        colour = colours[str(implementation)]
        lost = ~np.isfinite(group["y_ulp"])
        plain = group[~lost]
        filled = {"color": colour, "lw": 0}
        hollow = {"facecolor": FACE, "edgecolor": colour, "lw": 1.2}
        look: dict[str, Any] = {
            Status.OK.value: {"marker": "o", "s": 14 * scale, **filled},
            Status.WRONG.value: {"marker": "X", "s": 42 * scale, **filled},
        }.get(str(status), {"marker": "o", "s": 30 * scale, **hollow})
        gid = _gid(colour)
        heights = plain["y_ulp"].clip(_LEAST_ULP)
        axes.scatter(plain["condition"], heights, zorder=3, gid=gid, **look)
        if lost.any():
            places = group["condition"][lost]
            axes.scatter(
                places,
                [edge] * len(places),
                marker="^",
                s=34,
                color=colour,
                lw=0,
                zorder=4,
                gid=gid,
            )


def latency_panel(name: str, title: str, rows: pd.DataFrame, colours: Colours) -> Panel:
    """Draw the time of a call with its interval, and of a copy, against the size of x."""
    time, size = rows["latency_s"], rows["elements"]
    copies = (time * rows["copy_ratio"]).groupby(size).median().dropna()
    least = min(time.min(), copies.min() if len(copies) else inf) / 1.5
    most = max(time.max(), copies.max() if len(copies) else 0.0) * 1.5
    with canvas(_WIDTH_IN, _HEIGHT_IN, left_in=0.74) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        _span(axes, size)
        axes.set_ylim(least, most)
        _ticks(axes, seconds_text)
        axes.plot(copies.index, copies, color=MUTED, lw=1.1, ls=(0, (1, 1.5)), zorder=1)
        _bands(axes, rows, colours)
        _lines(axes, rows, "elements", "latency_s", colours, marker="o", markersize=3)
        axes.set_title(title)
        axes.set(xlabel="elements of x", ylabel="time per call")
        return to_panel(figure, name, f"Latency against size: {title}")


def _bands(axes: Axes, rows: pd.DataFrame, colours: Colours) -> None:
    """Fill the intervals that are wider than the line."""
    low, high = axes.get_ylim()
    bands = pd.DataFrame({
        "series": rows["label"].astype(str),
        "colour": rows["implementation"].map(colours),
        "size": rows["elements"],
        "low": rows["latency_low_s"].clip(lower=low / 9),
        "high": rows["latency_high_s"].clip(upper=high * 9),
    })
    wide = bands["series"][bands["high"] > _LEAST_BAND * bands["low"]].unique()
    for name in wide:
        band = bands[bands["series"] == name].sort_values("size")
        colour = band["colour"].iloc[0]
        sizes, below, above = band["size"], band["low"], band["high"]
        axes.fill_between(sizes, below, above, color=colour, alpha=0.2, lw=0, gid=_gid(colour))


def speed_map(name: str, title: str, speeds: pd.DataFrame, failed: pd.DataFrame) -> Panel:
    """Draw the speed of every implementation at every shape, relative to the reference.

    Args:
        name: unique in the page.
        title: of the panel.
        speeds: rows are implementations, columns shapes; NaN where not measured.
        failed: whether a result was not ok, with the same rows and columns.
    """
    rows, columns = speeds.shape
    labels = [_shortened(str(each)) for each in speeds.index]
    left_in = 0.25 + 0.066 * max(map(len, labels))  # 0.066 in: a letter at 8.5 pt
    top_in = 0.34 + 0.05 * max(len(str(each)) for each in speeds.columns)
    pairs = zip(speeds.to_numpy(float).flat, failed.to_numpy(bool).flat, strict=True)
    words = np.array([_speed_word(*pair) for pair in pairs], dtype=object)
    cell_in = max(0.46, 0.072 * max(map(len, words)))  # 0.072 in: a digit at 8 pt
    width_in, height_in = left_in + max(cell_in * columns, 1.2) + 0.45, top_in + 0.27 * rows + 0.05
    margins = {"left_in": left_in, "top_in": top_in, "bottom_in": 0.05, "right_in": 0.45}
    with canvas(width_in, height_in, grid=False, **margins) as (figure, axes):
        sns.heatmap(
            np.log2(speeds.astype(float)),
            mask=False,
            annot=words.reshape(rows, columns),
            fmt="",
            annot_kws={"fontsize": 8, "color": INK},
            cmap=_SPEED_COLOURS,
            vmin=-_LIMIT_LOG2,
            vmax=_LIMIT_LOG2,
            cbar=False,
            linewidths=1,
            linecolor=FACE,
            xticklabels=False,
            yticklabels=False,
            ax=axes,
        )
        # texts instead of ticks, each of which has three invisible lines in the SVG
        axes.set_axis_off()
        for i, j in zip(*np.nonzero(speeds.isna().to_numpy()), strict=True):
            axes.text(j + 0.5, i + 0.5, DASH, ha="center", va="center", color=MUTED)
        for i, label in enumerate(labels):
            axes.text(-0.12, i + 0.5, label, ha="right", va="center", color=INK)
        for j, shape in enumerate(speeds.columns):
            axes.text(j + 0.4, -0.15, str(shape), color=MUTED, rotation=40, rotation_mode="anchor")
        figure.text(0.004, 1 - 0.16 / height_in, title, fontsize=10, fontweight="bold", color=INK)
        return to_panel(figure, name, f"Speed relative to the reference: {title}")


def _speed_word(speed: float, is_wrong: bool) -> str:
    if isnan(speed):
        return ""
    if speed >= 0.0995:
        text = f"{speed:.{0 if speed >= 9.995 else 2}f}"
    else:  # two digits, if they fit
        text = rounded(speed, 2 if speed >= 1e-4 else 1)
    return f"{text} ✕" if is_wrong else text


def _shortened(label: str, most: int = 36) -> str:
    """Cut a long name in its middle: a path ends in its file and function."""
    return (
        label if len(label) <= most else f"{label[: most // 3]}…{label[-(most - most // 3 - 1) :]}"
    )


def _lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, colours: Colours, **look: object
) -> None:
    """Join the cases of each implementation by a line with its own dashes; thin if compiled."""
    dashes = {name: DASHES[place % len(DASHES)] or "" for place, name in enumerate(colours)}
    before = len(axes.lines)
    sns.lineplot(
        data=rows,
        x=x,
        y=y,
        hue="implementation",
        style="implementation",
        size="mode",
        palette=colours,
        dashes=dashes,
        sizes=_WIDTHS_PT,
        estimator=None,
        legend=False,
        mew=0,
        ax=axes,
        **look,
    )
    for line in axes.lines[before:]:
        line.set_gid(_gid(str(line.get_color())))
        line.set_zorder(2 if line.get_linestyle() == "-" else 2.1)  # a solid line hides the others


def _gid(colour: str) -> str:
    """Return the id of everything drawn in a colour; the page highlights a series by it."""
    return f"series-{SERIES.index(colour)}"


def _span(axes: Axes, values: pd.Series) -> None:
    """Set the limits of x a little beyond the values."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    margin = max(1.25, (high / low) ** 0.04)
    axes.set_xlim(low / margin, high * margin)


def _ticks(axes: Axes, write_y: Callable[[float], str] = power_of_ten) -> None:
    """Label decades, and values between them only if there are few decades.

    Call this before seaborn draws, which computes the labels of unused ticks too.
    """
    for axis, limits, write in (
        (axes.xaxis, axes.get_xlim(), power_of_ten),
        (axes.yaxis, axes.get_ylim(), write_y),
    ):
        places = list(_tick_places(*limits))
        axis.set_major_locator(FixedLocator(places))
        axis.set_major_formatter(FixedFormatter([write(each) for each in places]))
        axis.set_minor_locator(NullLocator())


def _tick_places(low: float, high: float) -> Iterable[float]:
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    decades = last - first + 1
    if decades >= 3:
        step = ceil(decades / _MANY_TICKS)
        return [10.0**exponent for exponent in range(first, last + 1, step)]
    steps = (1, 2, 5) if log2(high / low) > 2 else (1, 1.5, 2, 3, 4, 5, 7)
    every = (10.0**exponent * step for exponent in range(first - 1, last + 1) for step in steps)
    return [each for each in every if low <= each <= high]

"""Latency against size, accuracy against speed, the map of speeds, memory, and histories."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isnan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from harness.records import Mode
from harness.records.text import seconds_text
from harness.regression.history import History, Series
from harness.report.document import DASH, rounded
from harness.report.figures.axes import EndLabel, end_labels, leaders, shortened, span, ticks
from harness.report.figures.theme import DASHED, DASHES, Theme, canvas

__all__ = [
    "BAND_SPREADS",
    "LIMIT_LOG2",
    "MOST_BARS",
    "front_of",
    "history_figure",
    "latency_figure",
    "memory_figure",
    "pareto_figure",
    "speed_map",
    "speed_word",
]

# --- latency against size, with the time of a copy of the same bytes ------------------------------

_WIDTH_IN = 5.4  # two panels side by side on a screen, one on a phone
_LATENCY_IN = 3.4  # height
_MARGINS: dict[str, Any] = {"left_in": 0.74, "bottom_in": 0.46, "top_in": 0.3, "right_in": 1.45}
_WIDTHS_PT = {Mode.EAGER.value: 1.5, Mode.COMPILED.value: 0.7}  # page.css has the same
_LEAST_BAND = 1.1  # a line of 1.5 pt covers 10 % of a value where 170 pt are five decades


def latency_figure(
    theme: Theme, title: str, rows: pd.DataFrame, implementations: tuple[str, ...]
) -> Figure:
    """Draw the time of a call with its interval, and of a copy, against the size of x.

    Args:
        theme: colours.
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
    with canvas(theme, _WIDTH_IN, _LATENCY_IN, **_MARGINS) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        span(axes, size)
        axes.set_ylim(least, most)
        ticks(axes, seconds_text)
        labels = [
            _line(axes, theme, group, implementations)
            for _, group in rows.groupby(["implementation", "mode"], sort=False, observed=True)
        ]
        if len(copies):
            sizes, times = copies.index.to_numpy(float), copies.to_numpy()
            axes.fill_between(sizes, least, times, color=theme.muted, alpha=0.13, lw=0)
            axes.plot(sizes, times, color=theme.muted, lw=1.1, ls=(0, (1, 1.5)), zorder=1)
            labels.append(EndLabel("a copy", sizes[-1], times[-1], theme.muted))
        end_labels(axes, theme, labels, _LATENCY_IN - _MARGINS["bottom_in"] - _MARGINS["top_in"])
        axes.set_title(title)
        axes.set(xlabel="elements of x", ylabel="time per call")
        return figure


def _line(
    axes: Axes, theme: Theme, group: pd.DataFrame, implementations: tuple[str, ...]
) -> EndLabel:
    """Draw the times of one implementation, and the intervals that are wider than the line."""
    name, mode, label = (str(group[key].iloc[0]) for key in ("implementation", "mode", "label"))
    size, time, below, above, copy = (
        group[key].to_numpy(float)
        for key in ("elements", "time_s", "low_s", "high_s", "copy_ratio")
    )
    index = implementations.index(name)
    colour = theme.series[index % len(theme.series)]
    gid = theme.series_id(colour)
    (line,) = axes.plot(
        size, time, color=colour, lw=_WIDTHS_PT[mode], gid=gid, marker="o", ms=3, mew=0
    )
    if dashes := DASHES[index % len(DASHES)]:
        line.set_dashes(dashes)
        line.set_zorder(2.1)  # a solid line hides the others
    low, high = axes.get_ylim()
    below, above = np.maximum(below, low / 9), np.minimum(above, high * 9)
    if (above > _LEAST_BAND * below).any():
        axes.fill_between(size, below, above, color=colour, alpha=0.2, lw=0, gid=gid)
    share = "" if isnan(copy[-1]) else f" {copy[-1]:.0%}"
    return EndLabel(f"{label}{share}", size[-1], time[-1], colour)


# --- accuracy against speed, with the candidates that no other beats in both ----------------------

_PARETO_IN = 3.8  # height
_LETTER_IN, _LINE_IN = 0.062, 0.135  # of the names, 8 pt
_LEAST_ULP = 0.5  # correctly rounded; smaller errors are luck
_MOST_NAMES = 30  # of a thousand points no name could be read
_OFFSETS = [
    (side * 0.07, height)
    for height in (0.0, 0.1, -0.1, 0.19, -0.19, 0.28, -0.28, 0.37, -0.37)
    for side in (1, -1)
]  # inches from the point

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in inches."""


def front_of(rows: pd.DataFrame) -> pd.Series:
    """Return which rows no other row beats in speed and error both.

    Errors that are equal to two digits are equal: their order is that of the inputs' seed.
    """
    errors = rows["error_ulp"].map(lambda error: float(f"{error:.1e}"))
    ordered = rows.assign(error=errors)
    ordered = ordered.sort_values(["speed", "error"], ascending=[False, True], kind="stable")
    best = ordered["error"].cummin()
    is_best = (ordered["error"] == best) & (best < best.shift(fill_value=np.inf))
    return is_best.reindex(rows.index)


def pareto_figure(theme: Theme, title: str, rows: pd.DataFrame) -> Figure:
    """Draw one named point per candidate: right is faster, down is more accurate.

    Args:
        theme: colours.
        title: of the figure.
        rows: one per candidate, with the columns label, speed, error_ulp and is_wrong.
    """
    shown = rows.assign(error_ulp=rows["error_ulp"].clip(lower=_LEAST_ULP))
    finite = shown["error_ulp"][np.isfinite(shown["error_ulp"])]
    top = (finite.max() if len(finite) else 1.0) * 4
    shown["error_ulp"] = shown["error_ulp"].clip(upper=top)
    front = front_of(shown)
    accent, plain = theme.series[0], theme.muted
    with canvas(theme, _WIDTH_IN, _PARETO_IN, left_in=0.68) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        low, high = min(shown["speed"].min(), 1.0), max(shown["speed"].max(), 1.0)
        room = max((high / low) ** 0.18, 1.25)
        axes.set_xlim(low / room, high * room)
        axes.set_ylim(_LEAST_ULP / 1.6, top * 1.5)
        ticks(axes, write_x=lambda value: f"{rounded(value)}x")
        axes.axvline(1.0, color=theme.muted, zorder=1, **DASHED)
        best = shown[front].sort_values("speed")
        axes.plot(best["speed"], best["error_ulp"], color=accent, lw=1.2, ls=(0, (4, 2)), zorder=2)
        for is_best, is_wrong, marker, face, edge in (
            (True, False, "o", accent, accent),
            (True, True, "X", accent, accent),
            (False, False, "o", theme.face, plain),
            (False, True, "X", plain, plain),
        ):
            own = shown[(front == is_best) & (shown["is_wrong"] == is_wrong)]
            axes.plot(
                own["speed"], own["error_ulp"], ls="none", ms=6.5, zorder=3, marker=marker,
                mfc=face, mec=edge,
            )  # fmt: skip
        _name_points(axes, theme, shown, front)
        axes.set_title(title)
        axes.set(xlabel="speed relative to native: right is faster", ylabel="largest error, ulp")
        return figure


def _name_points(axes: Axes, theme: Theme, rows: pd.DataFrame, front: pd.Series) -> None:
    """Name the points, those of the front first, each where it overlaps nothing."""
    width, height = _WIDTH_IN - 0.68 - 0.12, _PARETO_IN - 0.46 - 0.3
    (left, right), (bottom, top) = np.log10(axes.get_xlim()), np.log10(axes.get_ylim())
    xs = (np.log10(rows["speed"]) - left) / (right - left) * width
    ys = (np.log10(rows["error_ulp"]) - bottom) / (top - bottom) * height
    r = 0.05  # inches: of a mark
    taken: list[Box] = [(x - r, y - r, x + r, y + r) for x, y in zip(xs, ys, strict=True)]
    order = sorted(rows.index, key=lambda row: (not front[row], -rows["speed"][row]))
    far: list[tuple[float, float, float, float]] = []
    for row in order[:_MOST_NAMES]:
        text, x, y = shortened(rows["label"][row], 24), float(xs[row]), float(ys[row])
        found = _free_box(x, y, _LETTER_IN * len(text), taken, (width, height))
        if found is None:
            continue
        (dx, dy), box = found
        taken.append(box)
        if abs(dy) > 0.15:  # inches: a name this far away needs a line
            far.append((x / width, y / height, (x + dx) / width, (y + dy) / height))
        axes.annotate(
            text, (rows["speed"][row], rows["error_ulp"][row]), xytext=(dx * 72, dy * 72),
            textcoords="offset points", ha="left" if dx > 0 else "right", va="center",
            fontsize=8, color=theme.ink if front[row] else theme.muted,
            fontweight="bold" if front[row] else "normal",
        )  # fmt: skip
    leaders(axes, far, theme.muted)


def _free_box(
    x: float, y: float, width: float, taken: Sequence[Box], area: tuple[float, float]
) -> tuple[tuple[float, float], Box] | None:
    """Return an offset from a point, and the box of its name, within the area and of no other."""
    for dx, dy in _OFFSETS:
        start = x + dx if dx > 0 else x + dx - width
        low, high = y + dy - _LINE_IN / 2, y + dy + _LINE_IN / 2
        end = start + width
        if start < 0 or low < 0 or end > area[0] or high > area[1]:
            continue
        if all(end <= a or start >= c or high <= b or low >= d for a, b, c, d in taken):
            return (dx, dy), (start, low, end, high)
    return None


# --- the map of speeds, for files of their own: the page has a table with coloured cells ----------

LIMIT_LOG2 = 2.0  # log2: colours are strongest at 4 times as fast, and as slow

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


def speed_map(theme: Theme, title: str, speeds: pd.DataFrame, failed: pd.DataFrame) -> Figure:
    """Draw the speed of every implementation at every shape, relative to the reference.

    Args:
        theme: colours.
        title: of the figure.
        speeds: rows are implementations, columns shapes; NaN where not measured.
        failed: whether a result was not ok, with the same rows and columns.
    """
    rows, columns = speeds.shape
    labels = [shortened(str(label)) for label in speeds.index]
    left_in = 0.25 + 0.066 * max(map(len, labels))  # 0.066 in: a letter at 8.5 pt
    top_in = 0.34 + 0.05 * max(len(str(shape)) for shape in speeds.columns)
    pairs = zip(speeds.to_numpy(float).flat, failed.to_numpy(bool).flat, strict=True)
    words = np.array([speed_word(*pair) for pair in pairs], dtype=object)
    cell_in = max(0.46, 0.072 * max(map(len, words)))  # 0.072 in: a digit at 8 pt
    width_in, height_in = left_in + max(cell_in * columns, 1.2) + 0.45, top_in + 0.27 * rows + 0.05
    margins = {"left_in": left_in, "top_in": top_in, "bottom_in": 0.05, "right_in": 0.45}
    import seaborn as sns  # a second to import: only files of their own need it

    with canvas(theme, width_in, height_in, grid=False, **margins) as (figure, axes):
        sns.heatmap(
            np.log2(speeds.astype(float)), mask=speeds.isna(), annot=words.reshape(rows, columns),
            fmt="", annot_kws={"fontsize": 8, "color": theme.ink}, cmap=_SPEED_COLOURS,
            vmin=-LIMIT_LOG2, vmax=LIMIT_LOG2, cbar=False, linewidths=1, linecolor=theme.face,
            xticklabels=False, yticklabels=False, ax=axes,
        )  # fmt: skip
        axes.set_axis_off()
        for i, j in zip(*np.nonzero(speeds.isna().to_numpy()), strict=True):
            axes.text(j + 0.5, i + 0.5, DASH, ha="center", va="center", color=theme.muted)
        for i, label in enumerate(labels):
            axes.text(-0.12, i + 0.5, label, ha="right", va="center", color=theme.ink)
        turned: dict[str, Any] = {"rotation": 40, "rotation_mode": "anchor"}
        for j, shape in enumerate(speeds.columns):
            axes.text(j + 0.4, -0.15, str(shape), color=theme.muted, **turned)
        figure.text(0.004, 1 - 0.16 / height_in, title, fontsize=10, fontweight="bold")
        return figure


def speed_word(speed: float, is_wrong: bool) -> str:
    """Return a speed as a cell shows it: 2.00, 0.50, 0.0025; with a cross where it was not ok."""
    if isnan(speed):
        return ""
    if speed >= 0.0995:
        text = f"{speed:.{0 if speed >= 9.995 else 2}f}"
    else:  # two digits, if they fit
        text = rounded(speed, 2 if speed >= 1e-4 else 1)
    return f"{text} ✕" if is_wrong else text


# --- memory of a call against the least possible --------------------------------------------------

MOST_BARS = 30  # of more, the names cannot be read on a screen
_BARS_IN, _BAR_IN = 9.6, 0.23  # width of the figure, height of a bar


def memory_figure(theme: Theme, title: str, rows: pd.DataFrame) -> Figure:
    """Draw peak memory and memory saved for the backward, as multiples of the size of the results.

    Args:
        theme: colours.
        title: of the figure.
        rows: one per candidate, the leanest first, with the columns label, peak_ratio and
            saved_ratio, which is NaN where no gradient is recorded.
    """
    names = [shortened(str(label)) for label in rows["label"]]
    left_in = 0.25 + 0.066 * max(map(len, names))  # 0.066 in: a letter at 8.5 pt
    height_in = 0.85 + _BAR_IN * len(names)
    heights = np.arange(len(names))
    peaks, saved = rows["peak_ratio"].to_numpy(float), rows["saved_ratio"].to_numpy(float)
    margins: dict[str, Any] = {"left_in": left_in, "right_in": 0.6, "bottom_in": 0.5}
    with canvas(theme, _BARS_IN, height_in, **margins) as (figure, axes):
        axes.barh(heights, peaks, height=0.62, color=theme.series[0], alpha=0.35)
        axes.plot(saved, heights, ls="none", marker="D", ms=5, mew=0, color=theme.series[1])
        axes.axvline(1.0, color=theme.muted, **DASHED)
        for height, peak in zip(heights, peaks, strict=True):
            axes.annotate(
                f"{rounded(peak)}x", (peak, height), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=8, color=theme.muted,
            )  # fmt: skip
        axes.set_yticks(heights, names)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, max(1.0, np.nanmax(peaks), np.nanmax(saved, initial=0.0)) * 1.04)
        axes.set_title(title)
        axes.set_xlabel("bytes, as a multiple of the size of the results")
        return figure


# --- one series, run by run, with the noise band and the change points ----------------------------

BAND_SPREADS = 2.0  # normal noise leaves it in 5 of 100 runs
_HISTORY_IN = (4.5, 2.5)  # two panels side by side on a screen, one on a phone
_LABEL_SHARE = 0.33  # of the axis: a name of ten letters that starts at a run, and half of the next


def history_figure(theme: Theme, title: str, unit: str, history: History, series: Series) -> Figure:
    """Draw a series over all runs of its history, so that gaps show.

    Args:
        theme: colours.
        title: of the figure.
        unit: label of the values.
        history: its runs, in order, are the horizontal axis.
        series: of speeds or times; its values are positive.
    """
    index_of = {id(run): index for index, run in enumerate(history.runs)}
    at = [index_of[id(point.run)] for point in series.points]
    values = [point.value for point in series.points]
    error = [
        [max(one.value - one.low, 0.0) for one in values],
        [max(one.high - one.value, 0.0) for one in values],
    ]
    with canvas(theme, *_HISTORY_IN, left_in=0.62, bottom_in=0.4) as (figure, axes):
        _bands(axes, theme, series, at)
        axes.errorbar(
            at, [one.value for one in values], yerr=error, fmt="o", ms=3, mew=0, lw=0.9,
            color=theme.series[0], zorder=3,
        )  # fmt: skip
        shown = _labelled(len(history.runs), [at[change.index] for change in series.changes])
        axes.set_xlim(-0.6, len(history.runs) - 0.4)
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_major_formatter(FixedFormatter([history.runs[i].label for i in shown]))
        for label, index in zip(axes.get_xticklabels(), shown, strict=True):
            label.set_horizontalalignment("left" if not index else "center")
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(shortened(title, 46), fontsize=9)
        axes.set_ylabel(unit)
        return figure


def _labelled(runs: int, changes: Sequence[int]) -> list[int]:
    """Return the runs whose names fit below the axis: the ends, and changes that are apart."""
    last = runs - 1
    shown = [0]
    for index in sorted(changes):
        if min(index - shown[-1], last - index) > _LABEL_SHARE * last:
            shown.append(index)
    return [*shown, last] if last else shown


def _bands(axes: Axes, theme: Theme, series: Series, at: list[int]) -> None:
    """Draw the level of each segment, the noise around it, and a line at each change."""
    width = exp(BAND_SPREADS * (series.spread or 0.0))
    for first, end, level in series.segments:
        ends = [at[first] - 0.4, at[end - 1] + 0.4]
        axes.fill_between(
            ends, level / width, level * width, color=theme.series[0], alpha=0.16, lw=0
        )
        axes.plot(ends, [level, level], color=theme.muted, lw=0.9, zorder=2)
    for change in series.changes:
        colour = theme.series[1] if change.is_worse else theme.muted
        middle = (at[change.index - 1] + at[change.index]) / 2
        axes.axvline(middle, color=colour, lw=1.1, ls=DASHED["ls"], zorder=1)

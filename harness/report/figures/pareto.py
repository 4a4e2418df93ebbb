"""Accuracy against speed, with the candidates that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.figures.axes import leaders, shortened, ticks
from harness.report.figures.theme import Theme, canvas
from harness.report.quantities import rounded

__all__ = ["front_of", "pareto_figure"]

_WIDTH_IN, _HEIGHT_IN = 5.4, 3.8
_LETTER_IN, _LINE_IN = 0.062, 0.135  # of the names, 8 pt
_LEAST_ULP = 0.5  # correctly rounded; smaller errors are luck
_MOST_NAMES = 30  # of a thousand points no name could be read
_OFFSETS = [
    (side * along, height)
    for height in (0.0, 0.1, -0.1, 0.19, -0.19, 0.28, -0.28, 0.37, -0.37)
    for side in (1, -1)
    for along in (0.07,)
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
    with canvas(theme, _WIDTH_IN, _HEIGHT_IN, left_in=0.68) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        low, high = min(shown["speed"].min(), 1.0), max(shown["speed"].max(), 1.0)
        room = (high / low) ** 0.18
        axes.set_xlim(low / max(room, 1.25), high * max(room, 1.25))
        axes.set_ylim(_LEAST_ULP / 1.6, top * 1.5)
        ticks(axes, write_x=lambda value: f"{rounded(value)}x")
        axes.axvline(1.0, color=theme.muted, lw=0.9, ls=(0, (4, 3)), zorder=1)
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
    width, height = _WIDTH_IN - 0.68 - 0.12, _HEIGHT_IN - 0.46 - 0.3
    (left, right), (bottom, top) = np.log10(axes.get_xlim()), np.log10(axes.get_ylim())
    xs = (np.log10(rows["speed"]) - left) / (right - left) * width
    ys = (np.log10(rows["error_ulp"]) - bottom) / (top - bottom) * height
    r = 0.05  # inches: of a mark
    taken: list[Box] = [(x - r, y - r, x + r, y + r) for x, y in zip(xs, ys, strict=True)]
    order = sorted(rows.index, key=lambda row: (not front[row], -rows["speed"][row]))
    far: list[tuple[float, float, float, float]] = []
    for row in order[:_MOST_NAMES]:
        text, x, y = shortened(rows["label"][row], 24), float(xs[row]), float(ys[row])
        place = _free_place(x, y, _LETTER_IN * len(text), taken, (width, height))
        if place is None:
            continue
        (dx, dy), box = place
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


def _free_place(
    x: float, y: float, width: float, taken: Sequence[Box], area: tuple[float, float]
) -> tuple[tuple[float, float], Box] | None:
    for dx, dy in _OFFSETS:
        start = x + dx if dx > 0 else x + dx - width
        box = (start, y + dy - _LINE_IN / 2, start + width, y + dy + _LINE_IN / 2)
        if box[0] < 0 or box[1] < 0 or box[2] > area[0] or box[3] > area[1]:
            continue
        if all(
            box[2] <= other[0] or box[0] >= other[2] or box[3] <= other[1] or box[1] >= other[3]
            for other in taken
        ):
            return (dx, dy), box
    return None

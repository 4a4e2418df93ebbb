"""Error against condition: measured points over the error bound of each class of algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10, sqrt
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.numerics.bound_terms import (
    SIGNIFICAND_BITS,
    chain_length,
    condition_limit,
    largest_error_ulp,
)
from harness.records import Mode, Status
from harness.records.text import in_words
from harness.report.document import rounded
from harness.report.figures.axes import EndLabel, end_labels, leaders, level, span, spread, ticks
from harness.report.figures.theme import DASHES, ON_PAGE, Theme, canvas

__all__ = ["CLASSES", "BoundLine", "condition_figure"]

CLASSES = ("one_pass", "two_pass", "welford", "recentred", "shifted")
"""Classes of algorithms, in the order of their colours and marker shapes."""
_MARKERS = dict(zip(CLASSES, "vsDoP", strict=True))
_WIDTH_IN, _HEIGHT_IN = 9.6, 4.3
_TOP_IN = 0.52  # for the names of the bounds
_TITLE_IN = 0.2  # on paper: the page has a heading instead
_MARGINS: dict[str, Any] = {"left_in": 0.68, "bottom_in": 0.72, "right_in": 1.75}
_LEAST_ULP = 2.0**-4  # an error of zero has no logarithm: it is drawn here, at the bottom edge
# Of the rows of normal numbers that the lines are about: beyond 5 standard deviations are 6 in ten
# million. Only the bound of shifted depends on it.
_DISTANCE = 5.0
_STEPS = 60  # points of a bound: smooth at the width of the page
_LABEL_IN = 0.74  # width of a name above the axes
_KEY = "filled: within its bound · hollow: out of guarantee · ✕: wrong · at the top: not finite"


@dataclass(frozen=True, slots=True)
class BoundLine:
    """The bound of a class of algorithms, with sums of one kind."""

    algorithm: str
    reduction: str
    statistics: str
    """Name of the dtype in which mean and variance are formed."""
    hidden: int
    dtype: str
    """Of the results."""

    @property
    def limit(self) -> float:
        """The condition number from which on nothing is guaranteed."""
        u = 2.0 ** -SIGNIFICAND_BITS[self.statistics]
        limit = condition_limit(self.algorithm, chain_length(self.hidden, self.reduction), u)
        return limit if self.algorithm != "shifted" or isfinite(self.ulp(1.0)) else 1.0

    def ulp(self, condition: float) -> float:
        """The largest error at a condition number; infinite from the limit on."""
        return largest_error_ulp(
            self.algorithm, self.reduction, self.hidden, condition,
            statistics=self.statistics, dtype=self.dtype, distance=_DISTANCE,
        )  # fmt: skip

    @property
    def words(self) -> str:
        """The name of the line: of its class, and of its sums and dtype if they are unusual."""
        parts = [in_words(self.algorithm)]
        parts += [] if self.reduction == "tree" else [f"in {self.reduction}"]
        wide = "float64" if self.dtype == "float64" else "float32"
        parts += [] if self.statistics == wide else [self.statistics]
        return "\n".join(parts).replace("in sequential", "one sum")


def condition_figure(
    theme: Theme, title: str, lines: pd.DataFrame, points: pd.DataFrame, bounds: Sequence[BoundLine]
) -> Figure:
    """Draw the error of y against the condition number of the inputs, over the bounds.

    Args:
        theme: colours.
        title: of the figure.
        lines: cases of one shape and dtype with a growing offset, joined by lines.
        points: cases of the same shape with other inputs.
        bounds: of the classes that the implementations declare.
    """
    both = pd.concat([lines, points])
    finite = both["y_ulp"][np.isfinite(both["y_ulp"])]
    lost = 2.0 ** SIGNIFICAND_BITS[bounds[0].dtype] if bounds else 1.0
    top = max(finite.max() if len(finite) else 1.0, lost, 4.0) * 2
    edge = top * (top / _LEAST_ULP) ** 0.05
    title_in = 0.0 if theme is ON_PAGE else _TITLE_IN
    full_in = _HEIGHT_IN + title_in
    with canvas(theme, _WIDTH_IN, full_in, top_in=_TOP_IN + title_in, **_MARGINS) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        span(axes, both["condition"])
        axes.set_ylim(_LEAST_ULP / 2, edge * (edge / _LEAST_ULP) ** 0.03)
        level(axes, theme, 0.5, "correctly rounded", at=0.01)
        if bounds:
            level(axes, theme, lost, "no digit left", at=0.01)
        ticks(axes)
        _bounds(axes, theme, bounds)
        _measured(axes, theme, lines, edge)
        for (algorithm, status), group in points.groupby(["algorithm", "status"], sort=False):
            _marks(axes, theme, str(algorithm), str(status), group, edge, scale=0.45)
        height_in = _HEIGHT_IN - _MARGINS["bottom_in"] - _TOP_IN
        _names(axes, theme, lines, edge, height_in)
        axes.set(xlabel="condition number of the inputs", ylabel="largest error of y, ulp")
        if title_in:
            figure.text(0.006, 1 - 0.2 / full_in, title, fontsize=10, fontweight="bold")
        left = _MARGINS["left_in"] / _WIDTH_IN
        figure.text(left, 0.12 / full_in, _KEY, fontsize=7.5, color=theme.muted)
        return figure


def _colour(theme: Theme, algorithm: str) -> str:
    return theme.series[CLASSES.index(algorithm)] if algorithm in CLASSES else theme.series[-1]


def _bounds(axes: Axes, theme: Theme, bounds: Sequence[BoundLine]) -> None:
    """Draw each bound up to its limit in theory, where it rises without end; mark the limit."""
    (low, high), (_, top) = axes.get_xlim(), axes.get_ylim()
    ending: list[tuple[float, BoundLine]] = []
    for bound in bounds:
        colour, limit = _colour(theme, bound.algorithm), bound.limit
        last = min(limit, high)
        if last > low:
            # up to a millionth below the limit, where the bound leaves the axes
            steps = np.geomspace(low, last * (1 - 1e-6), _STEPS)
            heights = np.array([bound.ulp(step) for step in steps])
            known = np.isfinite(heights)
            axes.plot(
                np.append(steps[known], [last] if limit < high else []),
                np.append(heights[known], [top * 10] if limit < high else []),
                color=colour, lw=2.6, alpha=0.5, zorder=1.5, solid_joinstyle="round",
                gid=theme.series_id(colour),
            )  # fmt: skip
        if low < limit < high:
            ending.append((limit, bound))
    width_in = _WIDTH_IN - _MARGINS["left_in"] - _MARGINS["right_in"]
    ending.sort(key=lambda pair: pair[0])
    wanted = [log10(limit / low) / log10(high / low) for limit, _ in ending]
    named = spread(wanted, _LABEL_IN / width_in, 0.08, 0.98)
    for (limit, bound), at in zip(ending, named, strict=True):
        axes.text(
            at, 1.05, f"{bound.words}\nto {rounded(limit, 2)}", transform=axes.transAxes,
            ha="center", va="bottom", fontsize=7.5, linespacing=1.15,
            color=_colour(theme, bound.algorithm),
        )  # fmt: skip
    lines = [(start, 1.0, at, 1.04) for start, at in zip(wanted, named, strict=True)]
    leaders(axes, lines, [_colour(theme, bound.algorithm) for _, bound in ending])
    _level_bounds(axes, theme, [bound for bound in bounds if bound.limit >= high])


def _level_bounds(axes: Axes, theme: Theme, bounds: Sequence[BoundLine]) -> None:
    """Name the bounds that reach the right edge, above their lines."""
    _, high = axes.get_xlim()
    heights: dict[float, list[BoundLine]] = {}
    for bound in bounds:
        heights.setdefault(float(f"{bound.ulp(high):.1g}"), []).append(bound)
    for same in heights.values():
        words = " and ".join(dict.fromkeys(bound.words.replace("\n", ", ") for bound in same))
        axes.annotate(
            f"bound of {words}", (0.99, same[0].ulp(high)), xytext=(0, 4),
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            va="bottom", fontsize=7.5, color=_colour(theme, same[0].algorithm),
        )  # fmt: skip


def _measured(axes: Axes, theme: Theme, lines: pd.DataFrame, edge: float) -> None:
    """Join the cases of each implementation; those of a class differ in their dashes."""
    seen: dict[str, int] = {}
    for (algorithm, _, mode), group in lines.groupby(
        ["algorithm", "implementation", "mode"], sort=False, observed=True
    ):
        colour = _colour(theme, str(algorithm))
        dashes = DASHES[seen.get(str(algorithm), 0) % len(DASHES)]
        seen[str(algorithm)] = seen.get(str(algorithm), 0) + 1
        (line,) = axes.plot(
            group["condition"], group["y_ulp"].clip(_LEAST_ULP, edge), color=colour, zorder=2,
            lw=1.1 if mode == Mode.EAGER else 0.6, gid=theme.series_id(colour),
        )  # fmt: skip
        if dashes:
            line.set_dashes(dashes)
        for (status,), own in group.groupby(["status"], sort=False):
            _marks(axes, theme, str(algorithm), str(status), own, edge)


def _marks(
    axes: Axes, theme: Theme, algorithm: str, status: str, rows: pd.DataFrame, edge: float,
    scale: float = 1.0,
) -> None:  # fmt: skip
    """Mark cases: the shape is that of the class, and it is hollow if out of guarantee."""
    colour = _colour(theme, algorithm)
    heights = rows["y_ulp"].clip(_LEAST_ULP, edge).fillna(edge)
    face = colour if status == Status.OK else theme.face
    axes.plot(
        rows["condition"], heights, ls="none", marker=_MARKERS.get(algorithm, "h"),
        ms=5.4 * sqrt(scale), mfc=face, mec=colour, mew=0.0 if status == Status.OK else 1.1,
        zorder=3, gid=theme.series_id(colour), clip_on=False,
    )  # fmt: skip
    if status == Status.WRONG:
        axes.plot(
            rows["condition"], heights, ls="none", marker="x", ms=8 * sqrt(scale), mew=1.6,
            mec=theme.ink, zorder=4, gid=theme.series_id(colour),
        )  # fmt: skip


def _names(axes: Axes, theme: Theme, lines: pd.DataFrame, edge: float, height_in: float) -> None:
    labels = []
    for (label, algorithm), group in lines.groupby(
        ["label", "algorithm"], sort=False, observed=True
    ):
        last = group.iloc[-1]
        height = edge if np.isnan(last["y_ulp"]) else min(max(last["y_ulp"], _LEAST_ULP), edge)
        colour = _colour(theme, str(algorithm))
        words = in_words(str(algorithm))
        name = str(label) if words in in_words(str(label)) else f"{label} ({words})"
        labels.append(EndLabel(name, last["condition"], height, colour))
    end_labels(axes, theme, labels, height_in)

"""Error against condition: measured points over the error bound of each class of algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
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
from harness.report.figures.plots import EndLabel, end_labels, level, span, ticks
from harness.report.figures.theme import DASHES, Theme, canvas

__all__ = ["CLASSES", "BoundLine", "condition_figure"]

CLASSES = ("one_pass", "two_pass", "welford", "recentred", "shifted")
"""Classes of algorithms, in the order of their colours and marker shapes."""
_MARKERS = dict(zip(CLASSES, "vsDoP", strict=True))
_WIDTH_IN, _HEIGHT_IN = 9.6, 4.1
_MARGINS: dict[str, Any] = {"left_in": 0.68, "bottom_in": 0.46, "right_in": 1.75}
_LEAST_ULP = 2.0**-4  # an error of zero has no logarithm: it is drawn here, at the bottom edge
# Of the rows of normal numbers that the lines are about: beyond 5 standard deviations are 6 in ten
# million. Only the bound of shifted depends on it.
_DISTANCE = 5.0
_STEPS = 60  # points of a bound: smooth at the width of the page


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
        """The class, its sums and the dtype of its statistics."""
        return f"{in_words(self.algorithm)} ({self.reduction} sums in {self.statistics})"


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
    with canvas(theme, _WIDTH_IN, _HEIGHT_IN, **_MARGINS) as (figure, axes):
        axes.set(xscale="log", yscale="log")
        span(axes, both["condition"])
        axes.set_ylim(_LEAST_ULP / 2, edge * (edge / _LEAST_ULP) ** 0.03)
        level(axes, theme, 0.5, "correctly rounded")
        if bounds:
            level(axes, theme, lost, "no digit left")
        ticks(axes)
        for bound in bounds:
            _bound(axes, theme, bound)
        labels = _measured(axes, theme, lines, edge)
        for (algorithm, status), group in points.groupby(["algorithm", "status"], sort=False):
            _marks(axes, theme, str(algorithm), str(status), group, edge, scale=0.45)
        end_labels(axes, theme, labels, _HEIGHT_IN - 0.76)
        axes.set_title(title)
        axes.set(xlabel="condition number of the inputs", ylabel="largest error of y, ulp")
        return figure


def _colour(theme: Theme, algorithm: str) -> str:
    return theme.series[CLASSES.index(algorithm)] if algorithm in CLASSES else theme.series[-1]


def _bound(axes: Axes, theme: Theme, bound: BoundLine) -> None:
    """Draw a bound up to its limit in theory, where it rises without end."""
    (low, high), (_, top) = axes.get_xlim(), axes.get_ylim()
    last = min(bound.limit, high)
    if last <= low:
        return
    # up to a millionth below the limit, where the bound leaves the axes
    steps = np.geomspace(low, last * (1 - 1e-6), _STEPS)
    heights = np.array([bound.ulp(step) for step in steps])
    known = np.isfinite(heights)
    colour, end = _colour(theme, bound.algorithm), bound.limit < high
    axes.plot(
        [*steps[known], *([last] if end else [])], [*heights[known], *([top * 10] if end else [])],
        color=colour, lw=2.6, alpha=0.5, zorder=1.5, solid_joinstyle="round",
        gid=theme.series_id(colour),
    )  # fmt: skip


def _measured(axes: Axes, theme: Theme, lines: pd.DataFrame, edge: float) -> list[EndLabel]:
    """Join the cases of each implementation; those of a class differ in their dashes."""
    seen: dict[str, int] = {}
    labels = []
    by = ["algorithm", "implementation", "mode"]
    for (name, _, mode), group in lines.groupby(by, sort=False, observed=True):
        algorithm = str(name)
        colour = _colour(theme, algorithm)
        heights = group["y_ulp"].clip(_LEAST_ULP, edge).fillna(edge)
        (line,) = axes.plot(
            group["condition"], heights, color=colour, zorder=2,
            lw=1.1 if mode == Mode.EAGER else 0.6, gid=theme.series_id(colour),
        )  # fmt: skip
        seen[algorithm] = seen.get(algorithm, -1) + 1
        if dashes := DASHES[seen[algorithm] % len(DASHES)]:
            line.set_dashes(dashes)
        for status, own in group.groupby("status", sort=False):
            _marks(axes, theme, algorithm, str(status), own, edge)
        last = group.iloc[-1]
        labels.append(EndLabel(str(last["label"]), last["condition"], heights.iloc[-1], colour))
    return labels


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

"""What several figures need: logarithmic axes, their ticks, and names beside what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.report.document import power_of_ten
from harness.report.figures.theme import DASHED, Theme

__all__ = ["EndLabel", "end_labels", "leaders", "level", "shortened", "span", "spread", "ticks"]

_MANY_TICKS = 7  # labels of more decades overlap
_LINE_IN = 0.135  # height of a line of text of 8 pt, with a gap


@dataclass(frozen=True, slots=True)
class EndLabel:
    """The name of a line, beside its right end."""

    text: str
    x: float
    y: float
    colour: str


def end_labels(axes: Axes, theme: Theme, labels: Sequence[EndLabel], height_in: float) -> None:
    """Write the names of lines to the right of the axes, pushed apart so that none overlap.

    Args:
        axes: with logarithmic axes, whose limits are set.
        theme: colours.
        labels: in any order; as many as fit are written.
        height_in: of the axes, in inches.
    """
    most = floor(height_in / _LINE_IN)
    ordered = sorted(labels, key=lambda label: (label.y, label.text))
    if len(ordered) > most:  # those at the ends of the range are looked for first
        half = (most - 1) // 2
        rest = len(ordered) - 2 * half
        ordered = [*ordered[:half], *ordered[-half:]]
        axes.annotate(
            f"and {rest} between", (1.02, 1.02), xycoords="axes fraction", color=theme.muted,
            fontsize=7.5, annotation_clip=False,
        )  # fmt: skip
    (left, right), (low, high) = np.log10(axes.get_xlim()), np.log10(axes.get_ylim())
    ends = [
        (float((np.log10(label.x) - left) / (right - left)),
         float((np.log10(label.y) - low) / (high - low)))
        for label in ordered
    ]  # fmt: skip
    heights = spread([height for _, height in ends], _LINE_IN / height_in, 0, 1)
    for label, height in zip(ordered, heights, strict=True):
        axes.text(
            1.024, height, shortened(label.text, 24), transform=axes.transAxes,
            color=label.colour, fontsize=8, va="center",
        )  # fmt: skip
    lines = [(*end, 1.018, height) for end, height in zip(ends, heights, strict=True)]
    leaders(axes, lines, theme.grid)


def leaders(axes: Axes, lines: Sequence[tuple[float, float, float, float]], colour: object) -> None:
    """Draw thin lines from what is named to its name, in fractions of the axes.

    A collection takes a tenth of the time of as many annotations with arrows.
    """
    pairs = [((x, y), (to_x, to_y)) for x, y, to_x, to_y in lines]
    axes.add_collection(
        LineCollection(
            pairs, colors=colour, linewidths=0.7, transform=axes.transAxes, clip_on=False, zorder=1
        ),
        autolim=False,
    )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending positions at least ``gap`` apart and within limits, near the wanted ones."""
    found: list[float] = []
    for position in wanted:
        found.append(max(position, found[-1] + gap if found else low))
    limit = high
    for index in reversed(range(len(found))):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found


def level(axes: Axes, theme: Theme, height: float, words: str, at: float = 0.99) -> None:
    """Draw a dashed line with words under it."""
    axes.axhline(height, color=theme.muted, zorder=1, **DASHED)
    axes.annotate(
        words, (at, height), xytext=(0, -3), color=theme.muted, fontsize=7.5, va="top",
        ha="left" if at < 0.5 else "right", xycoords=("axes fraction", "data"),
        textcoords="offset points",
    )  # fmt: skip


def shortened(label: str, most: int = 36) -> str:
    """Cut a long name in its middle: a path ends in its file and function."""
    return (
        label if len(label) <= most else f"{label[: most // 3]}…{label[-(most - most // 3 - 1) :]}"
    )


def span(axes: Axes, values: pd.Series) -> None:
    """Set the limits of x a little beyond the values."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    margin = max(1.25, (high / low) ** 0.04)
    axes.set_xlim(low / margin, high * margin)


def ticks(
    axes: Axes,
    write_y: Callable[[float], str] | None = None,
    write_x: Callable[[float], str] | None = None,
) -> None:
    """Label decades, and values between them only if there are few decades; as powers of ten."""
    for axis, limits, write in (
        (axes.xaxis, axes.get_xlim(), write_x),
        (axes.yaxis, axes.get_ylim(), write_y),
    ):
        values = list(_tick_values(*limits))
        axis.set_major_locator(FixedLocator(values))
        largest = max(values, default=1.0)
        texts = [write(value) if write else power_of_ten(value, largest) for value in values]
        axis.set_major_formatter(FixedFormatter(texts))
        axis.set_minor_locator(NullLocator())


def _tick_values(low: float, high: float) -> Iterable[float]:
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    decades = last - first + 1
    if decades >= 3:
        step = ceil(decades / _MANY_TICKS)
        return [10.0**exponent for exponent in range(first, last + 1, step)]
    steps = (1, 2, 5) if log2(high / low) > 2 else (1, 1.5, 2, 3, 4, 5, 7)
    every = (10.0**exponent * step for exponent in range(first - 1, last + 1) for step in steps)
    return [value for value in every if low <= value <= high]

"""Memory of a call against the least possible: a bar per candidate."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from harness.report.figures.axes import shortened
from harness.report.figures.theme import Theme, canvas
from harness.report.quantities import rounded

__all__ = ["MOST_BARS", "memory_figure"]

MOST_BARS = 30  # of more, the names cannot be read on a screen
_WIDTH_IN, _BAR_IN, _LETTER_IN = 9.6, 0.23, 0.066


def memory_figure(theme: Theme, title: str, rows: pd.DataFrame) -> Figure:
    """Draw peak memory and memory saved for the backward, as multiples of the size of the results.

    Args:
        theme: colours.
        title: of the figure.
        rows: one per candidate, the leanest first, with the columns label, peak_ratio and
            saved_ratio, which is NaN where no gradient is recorded.
    """
    names = [shortened(str(label)) for label in rows["label"]]
    left_in = 0.25 + _LETTER_IN * max(map(len, names))
    height_in = 0.85 + _BAR_IN * len(names)
    places = np.arange(len(names))
    peaks, saved = rows["peak_ratio"].to_numpy(float), rows["saved_ratio"].to_numpy(float)
    with canvas(theme, _WIDTH_IN, height_in, left_in=left_in, right_in=0.6, bottom_in=0.5) as (
        figure,
        axes,
    ):
        axes.barh(places, peaks, height=0.62, color=theme.series[0], alpha=0.35)
        axes.plot(saved, places, ls="none", marker="D", ms=5, mew=0, color=theme.series[1])
        axes.axvline(1.0, color=theme.muted, lw=0.9, ls=(0, (4, 3)))
        for place, peak in zip(places, peaks, strict=True):
            axes.annotate(
                f"{rounded(peak)}x", (peak, place), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=8, color=theme.muted,
            )  # fmt: skip
        axes.set_yticks(places, names)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, max(1.0, np.nanmax(peaks), np.nanmax(saved, initial=0.0)) * 1.04)
        axes.set_title(title)
        axes.set_xlabel("bytes, as a multiple of the size of the results")
        return figure

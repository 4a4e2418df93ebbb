"""Speed relative to native as a map of implementations and shapes, for files of their own.

The page shows the same numbers as a table with coloured cells.
"""

from __future__ import annotations

from math import isnan

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from harness.report.figures.axes import shortened
from harness.report.figures.theme import Theme, canvas
from harness.report.quantities import DASH, rounded

__all__ = ["LIMIT_LOG2", "speed_map", "speed_word"]

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
    labels = [shortened(str(each)) for each in speeds.index]
    left_in = 0.25 + 0.066 * max(map(len, labels))  # 0.066 in: a letter at 8.5 pt
    top_in = 0.34 + 0.05 * max(len(str(each)) for each in speeds.columns)
    pairs = zip(speeds.to_numpy(float).flat, failed.to_numpy(bool).flat, strict=True)
    words = np.array([speed_word(*pair) for pair in pairs], dtype=object)
    cell_in = max(0.46, 0.072 * max(map(len, words)))  # 0.072 in: a digit at 8 pt
    width_in, height_in = left_in + max(cell_in * columns, 1.2) + 0.45, top_in + 0.27 * rows + 0.05
    margins = {"left_in": left_in, "top_in": top_in, "bottom_in": 0.05, "right_in": 0.45}
    import seaborn as sns  # a second to import: only files of their own need it

    with canvas(theme, width_in, height_in, grid=False, **margins) as (figure, axes):
        sns.heatmap(
            np.log2(speeds.astype(float)),
            mask=speeds.isna(),
            annot=words.reshape(rows, columns),
            fmt="",
            annot_kws={"fontsize": 8, "color": theme.ink},
            cmap=_SPEED_COLOURS,
            vmin=-LIMIT_LOG2,
            vmax=LIMIT_LOG2,
            cbar=False,
            linewidths=1,
            linecolor=theme.face,
            xticklabels=False,
            yticklabels=False,
            ax=axes,
        )
        axes.set_axis_off()
        for i, j in zip(*np.nonzero(speeds.isna().to_numpy()), strict=True):
            axes.text(j + 0.5, i + 0.5, DASH, ha="center", va="center", color=theme.muted)
        for i, label in enumerate(labels):
            axes.text(-0.12, i + 0.5, label, ha="right", va="center", color=theme.ink)
        for j, shape in enumerate(speeds.columns):
            axes.text(
                j + 0.4, -0.15, str(shape), color=theme.muted, rotation=40, rotation_mode="anchor"
            )
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

"""Latency against size, with the time of a copy of the same bytes."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.records import Mode
from harness.records.text import seconds_text
from harness.report.figures.axes import EndLabel, end_labels, span, ticks
from harness.report.figures.theme import DASHES, Theme, canvas

__all__ = ["latency_figure"]

_WIDTH_IN, _HEIGHT_IN = 5.4, 3.4  # two panels side by side on a screen, one on a phone
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
    with canvas(theme, _WIDTH_IN, _HEIGHT_IN, **_MARGINS) as (figure, axes):
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
        end_labels(axes, theme, labels, _HEIGHT_IN - _MARGINS["bottom_in"] - _MARGINS["top_in"])
        axes.set_title(title)
        axes.set(xlabel="elements of x", ylabel="time per call")
        return figure


def _line(
    axes: Axes, theme: Theme, group: pd.DataFrame, implementations: tuple[str, ...]
) -> EndLabel:
    """Draw the times of one implementation, and the intervals that are wider than the line."""
    name, mode, label = (str(group[each].iloc[0]) for each in ("implementation", "mode", "label"))
    size, time, below, above, copy = (
        group[each].to_numpy(float)
        for each in ("elements", "time_s", "low_s", "high_s", "copy_ratio")
    )
    place = implementations.index(name)
    colour = theme.series[place % len(theme.series)]
    dashes = DASHES[place % len(DASHES)]
    gid = theme.series_id(colour)
    (line,) = axes.plot(
        size, time, color=colour, lw=_WIDTHS_PT[mode], gid=gid, marker="o", ms=3, mew=0
    )
    if dashes:
        line.set_dashes(dashes)
        line.set_zorder(2.1)  # a solid line hides the others
    low, high = axes.get_ylim()
    below, above = np.maximum(below, low / 9), np.minimum(above, high * 9)
    if (above > _LEAST_BAND * below).any():
        axes.fill_between(size, below, above, color=colour, alpha=0.2, lw=0, gid=gid)
    share = "" if isnan(copy[-1]) else f" {copy[-1]:.0%}"
    return EndLabel(f"{label}{share}", size[-1], time[-1], colour)

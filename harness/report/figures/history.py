"""The values of one series, run by run, with the noise band and the change points."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

from harness.regression.history.runs import History
from harness.regression.history.series import Series
from harness.report.figures.axes import shortened
from harness.report.figures.theme import Theme, canvas

__all__ = ["BAND_SPREADS", "history_figure"]

BAND_SPREADS = 2.0  # normal noise leaves it in 5 of 100 runs
_WIDTH_IN, _HEIGHT_IN = 4.5, 2.5  # two panels side by side on a screen, one on a phone
_LABEL_SHARE = 0.33  # of the axis: a name of ten letters that starts at a run, and half of the next


def history_figure(theme: Theme, title: str, unit: str, history: History, series: Series) -> Figure:
    """Draw a series over all runs of its history, so that gaps show.

    Args:
        theme: colours.
        title: of the figure.
        unit: label of the values.
        history: its runs are the places on the horizontal axis.
        series: of speeds or times; its values are positive.
    """
    place_of = {id(run): place for place, run in enumerate(history.runs)}
    places = [place_of[id(point.run)] for point in series.points]
    with canvas(theme, _WIDTH_IN, _HEIGHT_IN, left_in=0.62, bottom_in=0.4) as (figure, axes):
        _bands(axes, theme, series, places)
        values = [point.value for point in series.points]
        axes.errorbar(
            places,
            [each.value for each in values],
            yerr=[
                [max(each.value - each.low, 0.0) for each in values],
                [max(each.high - each.value, 0.0) for each in values],
            ],
            fmt="o",
            ms=3,
            mew=0,
            lw=0.9,
            color=theme.series[0],
            zorder=3,
        )
        shown = _labelled(len(history.runs), [places[each.place] for each in series.changes])
        axes.set_xlim(-0.6, len(history.runs) - 0.4)
        axes.xaxis.set_major_locator(FixedLocator(shown))
        names = [history.runs[place].label for place in shown]
        axes.xaxis.set_major_formatter(FixedFormatter(names))
        for label, place in zip(axes.get_xticklabels(), shown, strict=True):
            label.set_horizontalalignment("left" if not place else "center")
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(shortened(title, 46), fontsize=9)
        axes.set_ylabel(unit)
        return figure


def _labelled(runs: int, changes: Sequence[int]) -> list[int]:
    """Return the runs whose names fit below the axis: the ends, and changes that are apart."""
    last = runs - 1
    shown = [0]
    for place in sorted(changes):
        if min(place - shown[-1], last - place) > _LABEL_SHARE * last:
            shown.append(place)
    return [*shown, last] if last else shown


def _bands(axes: Axes, theme: Theme, series: Series, places: list[int]) -> None:
    """Draw the level of each segment, the noise around it, and a line at each change."""
    width = exp(BAND_SPREADS * (series.spread or 0.0))
    for first, end in series.segments:
        level = series.level(first, end)
        left, right = places[first] - 0.4, places[end - 1] + 0.4
        axes.fill_between(
            [left, right], level / width, level * width, color=theme.series[0], alpha=0.16, lw=0
        )
        axes.plot([left, right], [level, level], color=theme.muted, lw=0.9, zorder=2)
    for change in series.changes:
        axes.axvline(
            (places[change.place - 1] + places[change.place]) / 2,
            color=theme.series[1] if change.is_worse else theme.muted,
            lw=1.1,
            ls=(0, (4, 3)),
            zorder=1,
        )

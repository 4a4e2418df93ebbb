"""The figures of the page, drawn by matplotlib. A section chooses the rows of each."""

from harness.report.figures.condition import CLASSES, BoundLine, condition_figure
from harness.report.figures.plots import (
    BAND_SPREADS,
    LIMIT_LOG2,
    MOST_BARS,
    history_figure,
    latency_figure,
    memory_figure,
    pareto_figure,
    speed_map,
    speed_word,
)

__all__ = [
    "BAND_SPREADS",
    "CLASSES",
    "LIMIT_LOG2",
    "MOST_BARS",
    "BoundLine",
    "condition_figure",
    "history_figure",
    "latency_figure",
    "memory_figure",
    "pareto_figure",
    "speed_map",
    "speed_word",
]

"""The figures of the page, drawn by matplotlib. A section chooses the rows of each."""

from harness.report.figures.condition import BoundLine, condition_figure
from harness.report.figures.history import history_figure
from harness.report.figures.latency import latency_figure
from harness.report.figures.memory import memory_figure
from harness.report.figures.pareto import pareto_figure
from harness.report.figures.speed_map import speed_map

__all__ = [
    "BoundLine",
    "condition_figure",
    "history_figure",
    "latency_figure",
    "memory_figure",
    "pareto_figure",
    "speed_map",
]

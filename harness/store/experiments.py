"""The tables of experiments under results/published, which are not records of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Experiment", "experiment_of"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment, and where its table is explained."""

    about: str
    page: str
    """Name of the page in docs/."""


_BY_COLUMNS: dict[tuple[str, ...], Experiment] = {
    ("condition", "run", "case"): Experiment(
        "how often --benchmark-compare-fail fails unchanged code", "pytest"
    ),
    ("question", "rule", "condition"): Experiment(
        "how often intervals hold the value of other processes", "timing"
    ),
    ("distribution", "grad_output", "rows"): Experiment(
        "the smallest wrong results that the checks detect", "detection-limits"
    ),
    ("condition", "gate", "planted"): Experiment(
        "how often the gates fail unchanged and changed code", "gates"
    ),
    ("detector", "condition", "runs"): Experiment(
        "which planted changes are found in a history", "history"
    ),
    ("phase", "acknowledged", "is_torn"): Experiment(
        "what is left after the driver of a run is killed", "many-machines"
    ),
    ("question", "files", "time_s"): Experiment(
        "how long questions to ten million records take", "sizes"
    ),
    ("stage", "cases", "time_s"): Experiment("how the cost of storing grows", "sizes"),
    ("strength", "dtype", "subject"): Experiment(
        "which planted mistakes verify detects", "verification"
    ),
    ("experiment", "condition", "timer"): Experiment("the sampler against other timers", "timing"),
    ("question", "condition", "measurements"): Experiment(
        "times of functions whose calls are uneven", "timing"
    ),
}
"""By the first columns, which all versions of a table have."""


def experiment_of(columns: Sequence[str]) -> Experiment | None:
    """Return the experiment whose table has these columns; None if it is not known."""
    return _BY_COLUMNS.get(tuple(columns[:3]))

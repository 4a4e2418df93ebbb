"""The time budget of a verification, and predictions of how long a case will take."""

from __future__ import annotations

from time import monotonic

from harness.records import Case
from harness.verify.trial import Trial

__all__ = ["TimeBudget"]

_MOST_S = 30.0  # for one case; the whole catalogue takes about as long on a slow target


class TimeBudget:
    """Predicts a case's time from its rows and elements: interpreters take milliseconds per row.

    The smallest time per row and per element of the cases so far are upper bounds of the two costs.
    The smallest excludes first calls, which include compilation.
    """

    def __init__(self, budget_s: float | None = None) -> None:
        """Start the clock; ``budget_s`` is for the whole verification, None for no limit."""
        self._began_at = monotonic()
        self._stop_at = None if budget_s is None else self._began_at + budget_s
        self._per_row_s = self._per_element_s = float("inf")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return monotonic() - self._began_at

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return float("inf") if self._stop_at is None else self._stop_at - monotonic()

    def add(self, trial: Trial) -> None:
        """Learn from the time of a case."""
        rows, elements = trial.case.rows, trial.case.rows * trial.case.hidden
        if trial.implementation_s and elements:
            self._per_row_s = min(self._per_row_s, trial.implementation_s / rows)
            self._per_element_s = min(self._per_element_s, trial.implementation_s / elements)

    def predicted_s(self, case: Case) -> float:
        """Return the seconds that the target will take for a case; 0 before the first case."""
        if self._per_row_s == float("inf"):
            return 0.0
        return self._per_row_s * case.rows + self._per_element_s * case.rows * case.hidden

    def is_too_slow(self, case: Case) -> bool:
        """Whether a case would take longer than the limit per case, or than the time left."""
        return self.predicted_s(case) > min(_MOST_S, max(self.left_s, 0.0))

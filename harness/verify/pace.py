"""How long a case will take, told from those before it, and when the time is over."""

from __future__ import annotations

from time import monotonic

from harness.records import Case
from harness.verify.trial import Trial

__all__ = ["Pace"]

_MOST_S = 30.0  # for one case; the whole catalogue takes a slow target as long


class Pace:
    """Predicts times by rows and by elements: an interpreter takes milliseconds per row.

    No case takes less than what each of its rows, and each of its elements, costs. So the least
    time per row and per element of the cases so far are bounds of these costs from above, which
    hold little of what a first call compiles.
    """

    def __init__(self, budget_s: float | None = None) -> None:
        """Start the clock.

        Args:
            budget_s: seconds for all of the verification; None for no end.
        """
        self._stop_at = None if budget_s is None else monotonic() + budget_s
        self._per_row_s = self._per_element_s = float("inf")

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return float("inf") if self._stop_at is None else self._stop_at - monotonic()

    def add(self, trial: Trial) -> None:
        """Take in the time of a case."""
        rows, elements = trial.case.rows, trial.case.rows * trial.case.hidden
        if trial.implementation_s and elements:
            self._per_row_s = min(self._per_row_s, trial.implementation_s / rows)
            self._per_element_s = min(self._per_element_s, trial.implementation_s / elements)

    def predicted_s(self, case: Case) -> float:
        """Seconds that the target will take for a case; 0 if nothing is known."""
        if self._per_row_s == float("inf"):
            return 0.0
        return self._per_row_s * case.rows + self._per_element_s * case.rows * case.hidden

    def is_too_slow(self, case: Case) -> bool:
        """Whether a case would take longer than one may, or than is left."""
        return self.predicted_s(case) > min(_MOST_S, max(self.left_s, 0.0))

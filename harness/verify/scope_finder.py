"""What finding a target's scope shares: the scope so far, and how a part of it is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.numerics.computed import ImplementationError
from harness.records import Case, Status
from harness.verify.findings import Remark
from harness.verify.scope import Scope
from harness.verify.trial import first_case
from implementations.contract import Implementation

__all__ = ["RANKS", "SEVERAL", "ScopeFinder", "TryOne", "case_of_rank"]

RANKS = (2, 3, 4, 1, 5)
"""Numbers of axes of x, the most usual first."""
SEVERAL = (2, 3, 5, 7)
"""A shape whose sizes are all different, so that no axis is taken for another."""
_WIDTH = 32  # of the first case
_LEADING = (2, 3, 2, 2)  # sizes of the other axes

TryOne = Callable[[Implementation, Case], ImplementationError | None]
"""Runs a case and returns what was raised; None if a result came back, even a wrong one."""


def case_of_rank(implementation: Implementation, rank: int, dtype: str, device: str) -> Case:
    """Return a case with so many axes."""
    case = first_case(implementation.name, dtype, device)
    return replace(case, shape=(*_LEADING[: rank - 1], _WIDTH))


class ScopeFinder:
    """The scope of a target as far as it is known, and what lies outside it."""

    def __init__(
        self,
        implementation: Implementation,
        case: Case,
        scope: Scope,
        try_one: TryOne,
    ) -> None:
        self.implementation, self.case, self.scope = implementation, case, scope
        self.backward: Case | None = None
        """A backward that does not raise; None if none was found."""
        self.reasons: list[str] = []
        """What is outside the scope, each with what the target raised."""
        self.remarks: list[Remark] = []
        self._try_one = try_one

    def declines(self, case: Case) -> ImplementationError | None:
        """Return what the target raises for a case and for the same case of other sizes.

        None if one of them returns, even a wrong result: cases outside the scope are never tried,
        so that a mistake there would be missed.
        """
        raised = self._try_one(self.implementation, case)
        other = self._with_other_sizes(case)
        if raised is None or raised.status is Status.UNSUPPORTED or other is None:
            return raised
        return raised if self._try_one(self.implementation, other) is not None else None

    def _with_other_sizes(self, case: Case) -> Case | None:
        """Return the case with odd sizes; None for an empty x, which is about its size."""
        if 0 in case.shape:
            return None
        leading = tuple(size + 1 for size in case.shape[: len(case.shape) - case.normalized_dims])
        axes = case.normalized_shape
        if self.scope.normalized_shape is None:
            axes = tuple(size + 4 for size in axes)
        return replace(case, shape=(*leading, *axes))

    def by_rank(self) -> dict[int, Case]:
        """Return a case for each number of axes of x."""
        cases = (
            case_of_rank(self.implementation, rank, self.case.dtype, self.case.device)
            for rank in sorted(RANKS)
        )
        fitted = (self.scope.fit(case) or case for case in cases)
        return {len(case.shape): case for case in fitted}

"""The verification state: what was found of a target so far, case by case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harness.records import Case, Status
from harness.verify.cases.group import Group
from harness.verify.findings import Count, Declined, Extent, Failure, RunningSums
from harness.verify.trial import Trial
from implementations.contract import Implementation

__all__ = ["State"]

_MOST_FAILURES = 200  # enough to see a pattern, in a message that can be read
_REFUSED = {Status.ERROR, Status.UNSUPPORTED, Status.OUT_OF_MEMORY}


@dataclass(slots=True)
class State:
    """Cases by how they ended, and what explains those outside the first bound."""

    claims: tuple[Implementation, ...] = ()
    """What the target could have declared, strictest first."""
    ok: list[Trial] = field(default_factory=list)
    out_of_guarantee: list[Trial] = field(default_factory=list)
    failed: list[Trial] = field(default_factory=list)
    catches: dict[Case, str] = field(default_factory=dict)
    """What the group of each failed case is there to catch."""
    declined: list[Declined] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    """By dtype: cases that the target declined."""
    oracle_s: float = 0.0
    implementation_s: float = 0.0
    _left: dict[str, tuple[Implementation, ...]] = field(default_factory=dict)
    """By dtype, which claims explain every failure so far; all where there is none."""

    def add(self, trial: Trial, group: Group) -> None:
        """Take in one case."""
        dtype = trial.case.dtype
        self.oracle_s += trial.oracle_s
        self.implementation_s += trial.implementation_s
        if trial.status in _REFUSED:
            self.refusals[dtype] += 1
            self.declined.append(
                Declined(
                    what=trial.case.id,
                    cases=1,
                    reason=trial.reason,
                    raised=trial.status is Status.ERROR,
                )
            )
        elif trial.status is Status.OK:
            self.ok.append(trial)
        elif trial.status is Status.OUT_OF_GUARANTEE:
            self.out_of_guarantee.append(trial)
        else:
            self.failed.append(trial)
            self.catches[trial.case] = group.catches
            self._left[dtype] = tuple(
                each for each in self.claims_left(dtype) if each.algorithm in trial.again
            )

    def claims_left(self, dtype: str) -> tuple[Implementation, ...]:
        """Return what the target could have declared with nothing wrong in ``dtype`` so far."""
        return self._left.get(dtype, self.claims)

    @property
    def answered(self) -> tuple[str, ...]:
        """Dtypes in which it gave results that are not wrong, in the order tried."""
        right = [*self.ok, *self.out_of_guarantee, *self._explained()]
        return tuple(dict.fromkeys(each.case.dtype for each in right))

    @property
    def unexplained(self) -> list[Trial]:
        """Cases that failed and that no claim explains."""
        return [each for each in self.failed if not self._left[each.case.dtype]]

    def held(self, dtype: str, implementation: Implementation) -> Implementation:
        """Return what the target is held to in ``dtype``: its own declaration, or running sums."""
        return self._claim() if self._left.get(dtype) else implementation

    def _explained(self) -> list[Trial]:
        return [each for each in self.failed if self._left[each.case.dtype]]

    def _claim(self) -> Implementation:
        """The strictest claim that explains the failures of every dtype in which one does."""
        return max((claims[0] for claims in self._left.values() if claims), key=self.claims.index)

    def running_sums(self) -> RunningSums | None:
        """Say what the target was taken for where that explains what it loses."""
        explained = self._explained()
        if not explained:
            return None
        worst = max(explained, key=_beyond)
        return RunningSums(
            algorithm=self._claim().algorithm.value,
            dtypes=tuple(dict.fromkeys(each.case.dtype for each in explained)),
            cases=len(explained),
            worst=f"{worst.case.id}: {worst.reason}",
        )

    def ok_count(self) -> int:
        """Cases within the bound, of running sums where those explain them."""
        return len(self.ok) + self._explained_with(Status.OK)

    def out_of_guarantee_count(self) -> int:
        """Cases where nothing is promised."""
        return len(self.out_of_guarantee) + self._explained_with(Status.OUT_OF_GUARANTEE)

    def _explained_with(self, status: Status) -> int:
        explained = self._explained()
        if not explained:
            return 0
        algorithm = self._claim().algorithm
        return sum(each.again[algorithm].status is status for each in explained)

    def counts(self) -> tuple[Count, ...]:
        """Cases answered, and those that failed, by dtype."""
        answers = Counter(
            each.case.dtype for each in (*self.ok, *self.out_of_guarantee, *self.failed)
        )
        failed = Counter(each.case.dtype for each in self.unexplained)
        return tuple(
            Count(dtype=dtype, cases=cases, failed=failed[dtype])
            for dtype, cases in answers.items()
        )

    def extents(self, dtypes: tuple[str, ...]) -> tuple[Extent, ...]:
        """Return how much was answered in each dtype."""
        answers = {each.dtype: each.cases for each in self.counts()}
        return tuple(
            Extent(dtype=each, answered=answers.get(each, 0), declined=self.refusals[each])
            for each in dtypes
        )

    def failures(self) -> tuple[Failure, ...]:
        """Return the smallest failures, smallest first."""
        smallest = sorted(self.unexplained, key=lambda each: each.case.rows * each.case.hidden)
        return tuple(
            Failure(
                case=each.case,
                status=each.status,
                reason=each.reason,
                catches=self.catches[each.case],
            )
            for each in smallest[:_MOST_FAILURES]
        )


def _beyond(trial: Trial) -> float:
    """How many times the bound the worst output is off."""
    outputs = trial.errors.outputs if trial.errors else ()
    return max((each.bound_ratio or 0.0 for each in outputs), default=0.0)

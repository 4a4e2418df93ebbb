"""The cases that were tried, by how they ended, and whether running sums explain the failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harness.records import Case, Status
from harness.verify.findings import Count, Declined, Extent, Failure, RunningSums
from harness.verify.trial import Trial
from implementations.contract import Implementation

__all__ = ["CaseResults"]

_MOST_FAILURES = 200  # enough to see a pattern, in a verdict of readable size
_REFUSED = {Status.ERROR, Status.UNSUPPORTED, Status.OUT_OF_MEMORY}
_RIGHT = {Status.OK, Status.OUT_OF_GUARANTEE}


@dataclass(slots=True)
class CaseResults:
    """Every case that was tried; all counts are derived from them."""

    claims: tuple[Implementation, ...] = ()
    """What the target could have declared, strictest first (:mod:`harness.verify.running_sums`)."""
    trials: list[Trial] = field(default_factory=list)
    failed: list[Trial] = field(default_factory=list)
    """Those of ``trials`` that are outside the first bound, or crashed."""
    catches: dict[Case, str] = field(default_factory=dict)
    """By failed case: what it is there to catch."""

    def add(self, trial: Trial, catches: str) -> None:
        """Add one case, and what it is there to catch."""
        self.trials.append(trial)
        if trial.status not in _REFUSED | _RIGHT:
            self.failed.append(trial)
            self.catches[trial.case] = catches

    def claims_left(self, dtype: str) -> tuple[Implementation, ...]:
        """Return the claims, strictest first, unless a failure in ``dtype`` has no explanation."""
        failed = [each for each in self.failed if each.case.dtype == dtype]
        return self.claims if all(each.again for each in failed) else ()

    def claim_for(self, dtype: str, implementation: Implementation) -> Implementation:
        """Return what the target is held to in ``dtype``: its declaration, or running sums."""
        return self._claim() if dtype in self._explained_dtypes() else implementation

    @property
    def unexplained(self) -> list[Trial]:
        """Failed cases that no claim explains."""
        dtypes = self._explained_dtypes()
        return [each for each in self.failed if each.case.dtype not in dtypes]

    @property
    def explained(self) -> list[Trial]:
        """Failed cases that running sums explain."""
        dtypes = self._explained_dtypes()
        return [each for each in self.failed if each.case.dtype in dtypes]

    def running_sums(self) -> RunningSums | None:
        """Summarise the cases that running sums explain; None if there are none."""
        explained = self.explained
        if not explained:
            return None
        worst = max(explained, key=_bound_ratio)
        return RunningSums(
            algorithm=self._claim().algorithm.value,
            dtypes=tuple(dict.fromkeys(each.case.dtype for each in explained)),
            cases=len(explained),
            worst=f"{worst.case.id}: {worst.reason}",
        )

    def _explained_dtypes(self) -> set[str]:
        """Return the dtypes whose failures are all explained by a claim."""
        return {dtype for dtype in self._failed_dtypes() if self.claims_left(dtype)}

    def _failed_dtypes(self) -> set[str]:
        return {each.case.dtype for each in self.failed}

    def _claim(self) -> Implementation:
        """Return the loosest claim that an explained failure needs."""
        needed = {next(iter(each.again)) for each in self.explained}
        return next(each for each in reversed(self.claims) if each.algorithm in needed)

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes with at least one result that is not wrong, in the order tried."""
        right = [each for each in self.trials if each.status in _RIGHT]
        return tuple(dict.fromkeys(each.case.dtype for each in (*right, *self.explained)))

    def count(self, status: Status) -> int:
        """Count the cases of a status, by the bound of running sums where those explain them."""
        explained = self.explained
        own = sum(each.status is status for each in self.trials)
        if not explained:
            return own
        # by the strictest claim that explains it
        return own + sum(next(iter(each.again.values())).status is status for each in explained)

    def counts(self) -> tuple[Count, ...]:
        """Count the results, and the failures among them, by dtype."""
        results = Counter(each.case.dtype for each in self.trials if each.status not in _REFUSED)
        failed = Counter(each.case.dtype for each in self.unexplained)
        return tuple(
            Count(dtype=dtype, cases=cases, failed=failed[dtype])
            for dtype, cases in results.items()
        )

    def extents(self, dtypes: tuple[str, ...]) -> tuple[Extent, ...]:
        """Return how many cases the target answered and declined, by dtype."""
        results = {each.dtype: each.cases for each in self.counts()}
        declined = Counter(each.case.dtype for each in self.trials if each.status in _REFUSED)
        return tuple(
            Extent(dtype=dtype, answered=results.get(dtype, 0), declined=declined[dtype])
            for dtype in dtypes
        )

    def declined(self) -> tuple[Declined, ...]:
        """Return the cases that the target declined, or raised in."""
        return tuple(
            Declined(
                what=trial.case.id,
                cases=1,
                reason=trial.reason,
                raised=trial.status is Status.ERROR,
            )
            for trial in self.trials
            if trial.status in _REFUSED
        )

    def failures(self) -> tuple[Failure, ...]:
        """Return the smallest failures, smallest first."""
        smallest = sorted(self.unexplained, key=lambda each: each.case.rows * each.case.hidden)
        return tuple(
            Failure(
                case=trial.case,
                status=trial.status,
                reason=trial.reason,
                catches=self.catches[trial.case],
            )
            for trial in smallest[:_MOST_FAILURES]
        )


def _bound_ratio(trial: Trial) -> float:
    """Return the largest error of a case, as a multiple of its bound."""
    return max((each.bound_ratio or 0.0 for each in trial.ratios), default=0.0)

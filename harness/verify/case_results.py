"""The cases that were tried, by how they ended, and whether running sums explain the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.records import Case, Status
from harness.records.finding import Finding, Severity, limit
from harness.run.attempt import Judged
from harness.verify.cases.plan import PlannedCase
from harness.verify.findings import Count, RunningSums
from harness.verify.running_sums import explanations
from implementations.contract import Algorithm, Implementation

__all__ = ["CaseResults"]

_MOST_FAILURES = 200  # enough to see a pattern, in a verdict of readable size
_REFUSED = {Status.ERROR, Status.UNSUPPORTED, Status.OUT_OF_MEMORY}
_RIGHT = {Status.OK, Status.OUT_OF_GUARANTEE}


@dataclass(slots=True)
class CaseResults:
    """Every case that was tried; all counts are derived from them."""

    claims: tuple[Implementation, ...] = ()
    """What the target could have declared, strictest first (:mod:`harness.verify.running_sums`)."""
    trials: list[Judged] = field(default_factory=list)
    """Without outputs."""
    failed: list[Judged] = field(default_factory=list)
    """Those of ``trials`` that are outside the first bound, or crashed."""
    catches: dict[Case, str] = field(default_factory=dict)
    """By failed case: what it is there to catch."""
    again: dict[Case, dict[Algorithm, Judged]] = field(default_factory=dict)
    """By failed case: its outputs judged by the claims that explain them, strictest first."""

    def add(self, judged: Judged, catches: str) -> None:
        """Add one case, and what it is there to catch."""
        case = judged.case
        kept = replace(judged, outputs=None, function=None)
        self.trials.append(kept)
        if judged.status not in _REFUSED | _RIGHT:
            claims = () if case.dtype in self._unexplained_dtypes() else self.claims
            self.again[case] = explanations(judged, claims)
            self.failed.append(kept)
            self.catches[case] = catches

    def _unexplained_dtypes(self) -> set[str]:
        """Return the dtypes with a failure that running sums do not explain."""
        return {trial.case.dtype for trial in self.failed if not self.again[trial.case]}

    @property
    def unexplained(self) -> list[Judged]:
        """Failed cases of the dtypes in which no claim explains all of them."""
        dtypes = self._unexplained_dtypes()
        return [trial for trial in self.failed if trial.case.dtype in dtypes]

    @property
    def explained(self) -> list[Judged]:
        """Failed cases that running sums explain."""
        dtypes = self._unexplained_dtypes()
        return [trial for trial in self.failed if trial.case.dtype not in dtypes]

    def claim_for(self, dtype: str, implementation: Implementation) -> Implementation:
        """Return what the target is held to in ``dtype``: its declaration, or running sums."""
        is_by_sums = any(trial.case.dtype == dtype for trial in self.explained)
        return self._claim() if is_by_sums else implementation

    def _claim(self) -> Implementation:
        """Return the loosest claim that an explained failure needs."""
        needed = {next(iter(self.again[trial.case])) for trial in self.explained}
        return next(claim for claim in reversed(self.claims) if claim.algorithm in needed)

    def running_sums(self) -> RunningSums | None:
        """Summarise the cases that running sums explain; None if there are none."""
        explained = self.explained
        if not explained:
            return None
        worst = max(explained, key=_bound_ratio)
        return RunningSums(
            algorithm=self._claim().algorithm.value,
            dtypes=tuple(dict.fromkeys(trial.case.dtype for trial in explained)),
            cases=len(explained),
            worst=f"{worst.case.id}: {worst.reason}",
        )

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes with at least one result that is not wrong, in the order tried."""
        right = [trial for trial in self.trials if trial.status in _RIGHT]
        return tuple(dict.fromkeys(trial.case.dtype for trial in (*right, *self.explained)))

    def counts(self, dtypes: tuple[str, ...]) -> tuple[Count, ...]:
        """Count the cases by dtype, by the bound of running sums where those explain them."""
        ended = Counter((trial.case.dtype, trial.status) for trial in self.trials)
        for trial in self.explained:  # by the strictest claim that explains it
            again = next(iter(self.again[trial.case].values()))
            ended[trial.case.dtype, trial.status] -= 1
            ended[trial.case.dtype, again.status] += 1
        return tuple(
            Count(
                dtype=dtype,
                ok=ended[dtype, Status.OK],
                out_of_guarantee=ended[dtype, Status.OUT_OF_GUARANTEE],
                failed=sum(ended[dtype, status] for status in {*Status} - _REFUSED - _RIGHT),
                declined=sum(ended[dtype, status] for status in _REFUSED),
            )
            for dtype in dtypes
        )

    def findings(self) -> Iterator[Finding]:
        """Yield the smallest failures, smallest first, and the cases that the target declined."""
        smallest = sorted(self.unexplained, key=lambda trial: trial.case.rows * trial.case.hidden)
        for trial in smallest[:_MOST_FAILURES]:
            evidence = PlannedCase(trial.case, self.catches[trial.case])
            dtypes = (trial.case.dtype,)
            yield Finding(trial.status, Severity.WRONG, trial.reason, dtypes, evidence)
        for trial in self.trials:
            if trial.status in _REFUSED:
                kind = "raised" if trial.status is Status.ERROR else "declined"
                yield limit(kind, trial.case.id, trial.reason)


def _bound_ratio(trial: Judged) -> float:
    """Return the largest error of a case, as a multiple of its bound."""
    return max((ratio.bound_ratio or 0.0 for ratio in trial.ratios), default=0.0)

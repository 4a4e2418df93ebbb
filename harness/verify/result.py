"""The verdict of a verification, as a plain value that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records.reproduction import python_line, unusual
from harness.verify.findings import (
    Count,
    Coverage,
    Declined,
    Extent,
    Failure,
    Instead,
    Outcome,
    Property,
    Remark,
    RunningSums,
    Suspect,
    Trigger,
    Violation,
)
from harness.verify.grade import Grade
from harness.verify.scope import Scope

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a target is a LayerNorm, within which scope, and if not, which mistake it makes."""

    target: str
    handle: str
    """The target in Python code: a quoted string, or the name of an object."""
    algorithm: str
    """The algorithm whose error bound it was held to."""
    instead: Instead | None = None
    """The known function that it computes instead, if any."""
    scope: Scope | None = None
    """None if every call raised."""
    remarks: tuple[Remark, ...] = ()
    ok: int = 0
    """Cases within the bound."""
    out_of_guarantee: int = 0
    """Cases in which the algorithm has no finite bound."""
    failed: int = 0
    """Cases outside the bound, and cases that crashed."""
    left: int = 0
    """Cases that were not tried because the time was over."""
    counts: tuple[Count, ...] = ()
    """By dtype."""
    coverage: Coverage | None = None
    """None if some combinations were not tried."""
    running_sums: RunningSums | None = None
    """Set if the target declares nothing and running sums explain some of its cases."""
    failures: tuple[Failure, ...] = ()
    """The smallest failed cases, smallest first."""
    violations: tuple[Violation, ...] = ()
    """Contract checks that failed."""
    declined: tuple[Declined, ...] = ()
    extents: tuple[Extent, ...] = ()
    """For each requested dtype, in order."""
    suspects: tuple[Suspect, ...] = ()
    """Known mistakes that explain the failures, best first."""
    triggers: tuple[Trigger, ...] = ()
    """What the failed cases have in common, by outputs and dtypes."""
    grades: tuple[Grade, ...] = ()
    properties: tuple[Property, ...] = ()
    ended: str = ""
    """Why the verification ended early, if it did."""
    options: str = ""
    """How the user wants the target called, as an argument of verify_case."""
    wall_s: float = 0.0
    oracle_s: float = 0.0
    """Of ``wall_s``, the time in the exact reference."""
    implementation_s: float = 0.0
    """Of ``wall_s``, the time in the target, error check only."""

    @property
    def outcome(self) -> Outcome:
        """Wrong if anything was wrong; a LayerNorm only if the verification reached its end."""
        if self.failed or self.violations:
            return Outcome.WRONG
        if self.ended or not self.is_verified:
            return Outcome.NOT_VERIFIED
        return Outcome.LAYER_NORM

    @property
    def passed(self) -> bool:
        """Whether the outcome is a LayerNorm."""
        return self.outcome is Outcome.LAYER_NORM

    @property
    def is_wrong(self) -> bool:
        """Whether any result is wrong, or any contract check failed."""
        return self.outcome is Outcome.WRONG

    @property
    def is_verified(self) -> bool:
        """Whether in some dtype most cases gave a result."""
        return self.ok > 0 and any(each.is_verified for each in self.extents)

    @property
    def cases(self) -> int:
        """Cases that gave a result, or crashed."""
        return self.ok + self.out_of_guarantee + self.failed

    @property
    def wrong_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which a case or a contract check failed."""
        wrong = {each.dtype for each in self.counts if each.failed}
        wrong |= {each.dtype for each in self.violations}
        return tuple(each.dtype for each in self.extents if each.dtype in wrong)

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which most cases gave a result and nothing was wrong."""
        wrong = self.wrong_dtypes
        return tuple(
            each.dtype for each in self.extents if each.is_verified and each.dtype not in wrong
        )

    @property
    def reproduce(self) -> str | None:
        """A line of Python that reproduces the plainest failure; None without one."""
        if not self.failures:
            return None
        case = min((each.case for each in self.failures), key=unusual)
        return python_line(case, self.handle, self.options)

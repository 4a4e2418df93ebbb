"""The verdict of a verification, as a plain value that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import Case
from harness.verify.findings import (
    Count,
    Declined,
    Extent,
    Failure,
    Instead,
    Outcome,
    Property,
    Remark,
    RunningSums,
    Suspect,
    Violation,
)
from harness.verify.grade import Grade
from harness.verify.scope import Scope

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a target is a LayerNorm, of what scope, and if it is none, which mistake it makes."""

    target: str
    handle: str
    """How Python code names the target: its text in quotes, or the name it was given by."""
    algorithm: str
    """Class that it was held to."""
    instead: Instead | None = None
    """What it computes instead, if that has a name."""
    scope: Scope | None = None
    """None if it answered nothing."""
    remarks: tuple[Remark, ...] = ()
    ok: int = 0
    """Cases within the bound."""
    out_of_guarantee: int = 0
    """Cases where the class promises nothing."""
    failed: int = 0
    """Cases outside the bound, or that crashed."""
    left: int = 0
    """Cases that were not tried: the time was over, or the verification was ended."""
    counts: tuple[Count, ...] = ()
    """By dtype."""
    running_sums: RunningSums | None = None
    """Set where the target declares nothing and is right, if its sums are running ones."""
    failures: tuple[Failure, ...] = ()
    """The smallest of them, smallest first."""
    violations: tuple[Violation, ...] = ()
    """Contract checks that failed."""
    declined: tuple[Declined, ...] = ()
    extents: tuple[Extent, ...] = ()
    """For each dtype asked, in order."""
    suspects: tuple[Suspect, ...] = ()
    """Known mistakes that explain the failures, best first."""
    grades: tuple[Grade, ...] = ()
    properties: tuple[Property, ...] = ()
    ended: str = ""
    """How the verification was ended from outside, if it was."""
    options: str = ""
    """What the user said of the target, as arguments of verify_case."""
    wall_s: float = 0.0
    oracle_s: float = 0.0
    """Of it, spent in the exact reference."""
    implementation_s: float = 0.0
    """Of it, spent in the target's first calls."""

    @property
    def outcome(self) -> Outcome:
        """Wrong if anything was; a LayerNorm if it was tried to the end, and enough to tell."""
        if self.failed or self.violations:
            return Outcome.WRONG
        if self.ended or not self.is_verified:
            return Outcome.NOT_VERIFIED
        return Outcome.LAYER_NORM

    @property
    def passed(self) -> bool:
        """Right wherever it answers, and in some dtype it answers most."""
        return self.outcome is Outcome.LAYER_NORM

    @property
    def is_wrong(self) -> bool:
        """Whether any result is wrong, or any contract check failed."""
        return self.outcome is Outcome.WRONG

    @property
    def is_verified(self) -> bool:
        """Whether there is a dtype in which enough was answered to tell."""
        return self.ok > 0 and any(each.is_verified for each in self.extents)

    @property
    def cases(self) -> int:
        """Cases that were answered."""
        return self.ok + self.out_of_guarantee + self.failed

    @property
    def wrong_dtypes(self) -> tuple[str, ...]:
        """In which a case or a contract check failed."""
        wrong = {each.dtype for each in self.counts if each.failed}
        wrong |= {each.dtype for each in self.violations}
        return tuple(each.dtype for each in self.extents if each.dtype in wrong)

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """In which enough was answered, and nothing was wrong."""
        wrong = self.wrong_dtypes
        return tuple(
            each.dtype for each in self.extents if each.is_verified and each.dtype not in wrong
        )

    @property
    def reproduce(self) -> str | None:
        """A line of Python that shows the smallest failure."""
        if not self.failures:
            return None
        case = self.failures[0].case
        usual = Case(implementation=case.implementation, shape=case.shape)
        names = (
            "shape",
            *(name for name in _FIELDS if getattr(case, name) != getattr(usual, name)),
        )
        arguments = ", ".join(f"{name}={_source(getattr(case, name))}" for name in names)
        names_used = "CallOptions, " if self.options else ""
        return (
            f"from harness.verify import {names_used}verify_case; "
            f"print(verify_case({self.handle}, {arguments}{self.options}))"
        )


_FIELDS = tuple(
    name for name in Case.__dataclass_fields__ if name not in {"implementation", "shape"}
)


def _source(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)

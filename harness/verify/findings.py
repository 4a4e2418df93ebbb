"""What a verification finds, as plain values that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import Case, Status
from harness.verify.diagnosis import Suspect
from harness.verify.grade import Grade

__all__ = ["Count", "Declined", "Extent", "Failure", "Property", "RunningSums", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A case that went wrong."""

    case: Case
    status: Status
    reason: str
    catches: str
    """What the group of cases that it is from is there to catch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """Cases that were not tried to the end: a limit of the target or of time, not a mistake."""

    what: str
    cases: int
    reason: str
    by_target: bool = True
    """Whether the target declines; if not, the verification leaves them out."""
    raised: bool = False
    """Whether it raised something else than that it declines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """Something kept bit by bit, or an identity kept within the bound, in one dtype.

    Reported, never failed: nothing of it is promised, or its breach is a case that failed.
    """

    name: str
    dtype: str
    holds: bool | None
    """None where it could not be run, or the bound says nothing."""
    is_identity: bool = False
    """Whether it is held to the bound rather than to bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much of what was asked in one dtype was answered."""

    dtype: str
    answered: int
    declined: int
    """By the target, in whatever words."""

    @property
    def is_verified(self) -> bool:
        """More was answered than declined: of less nothing can be said."""
        return self.answered > self.declined


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Cases tried in one dtype."""

    dtype: str
    cases: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Cases beyond the bound of what declares nothing, and within that of plain running sums."""

    algorithm: str
    """Strictest class whose running sums explain all of them."""
    dtypes: tuple[str, ...]
    """In which they are, and nothing failed."""
    cases: int
    worst: str
    """The one furthest beyond, and how far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a target is a LayerNorm, how good, and if it is not one, which mistake it makes."""

    target: str
    handle: str
    """How Python code names the target: its text in quotes, or the name it was given by."""
    algorithm: str
    """Class that it was held to."""
    ok: int
    """Cases within the bound."""
    out_of_guarantee: int
    """Cases where the class promises nothing."""
    failed: int
    """Cases outside the bound, or that raised."""
    counts: tuple[Count, ...]
    """By dtype."""
    running_sums: RunningSums | None
    """Set where the target declares nothing and is right, if its sums are running ones."""
    failures: tuple[Failure, ...]
    """The smallest of them, smallest first."""
    broken_promises: tuple[str, ...]
    """Of the contract, by dtype."""
    declined: tuple[Declined, ...]
    extents: tuple[Extent, ...]
    """For each dtype asked, in order."""
    suspects: tuple[Suspect, ...]
    """Known mistakes that explain the failures, best first."""
    grades: tuple[Grade, ...]
    properties: tuple[Property, ...]
    wall_s: float
    oracle_s: float
    """Of it, spent in the exact reference."""
    guest_s: float
    """Of it, spent in the target's first calls."""

    @property
    def passed(self) -> bool:
        """Right wherever it answers, and in some dtype it answers most."""
        return self.is_verified and not self.is_wrong

    @property
    def is_wrong(self) -> bool:
        """Whether any answer is wrong, or any promise broken."""
        return bool(self.failed or self.broken_promises)

    @property
    def is_verified(self) -> bool:
        """Whether there is a dtype in which enough was answered to tell."""
        return self.ok > 0 and any(each.is_verified for each in self.extents)

    @property
    def cases(self) -> int:
        return self.ok + self.out_of_guarantee + self.failed

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
        return (
            "from harness.verify import verify_case; "
            f"print(verify_case({self.handle}, {arguments}))"
        )


_FIELDS = tuple(
    name for name in Case.__dataclass_fields__ if name not in {"implementation", "shape"}
)


def _source(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)

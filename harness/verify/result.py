"""What to verify of a target, and what was found, as plain values.

A worker process sends them to its parent, which imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.cases.axes import DTYPES, python_line, unusual
from harness.records import Case, Direction, Status
from harness.records.finding import OF_NATIVE, Finding, Severity
from harness.verify.scope import Scope

if TYPE_CHECKING:
    from implementations import CallOptions

__all__ = [
    "DEFAULT",
    "DTYPES",
    "QUICKEST",
    "Count",
    "Example",
    "Explanation",
    "Grade",
    "Outcome",
    "PlannedCase",
    "Step",
    "Verdict",
    "VerifyOptions",
]

QUICKEST, DEFAULT = 2, 3
"""Strengths: the conditions of which every combination is tried."""

_LEAST_TRIED = 200  # cases per dtype: one of each group, and some combinations


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What to verify of a target, and how; the keyword arguments of ``verify``."""

    quick: bool = False
    """Whether to try every combination of two conditions (seconds) instead of three (minutes)."""
    strength: int | None = None
    """The number of conditions of which every combination is tried, 2 to 4; None for that of
    ``quick``."""
    strict: bool = False
    """Whether remarks, and calls that raise, fail a target, too."""
    dtypes: Sequence[str] = DTYPES
    """Of x, by name."""
    directions: Sequence[Direction] = tuple(Direction)
    """Passes to try; without a backward one, gradients are not checked."""
    device: str = "cpu"
    """Kind of device."""
    eps: float | None = None
    """The only eps to verify, for a target whose eps is fixed and cannot be measured."""
    normalized_dims: int | None = None
    """The only number of trailing axes to normalise over."""
    channels_first: bool = False
    """Whether x is (batch, channels, ...) and the channels are normalised."""
    init: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the target's constructor, or of the function, by name."""
    fail_fast: bool = False
    """Whether to stop at the first failure, without diagnosis and grades."""
    time_budget_s: float | None = None
    """Seconds after which no case is begun; the first case of every group comes first."""
    huge_bytes: int | None = None
    """Memory for trying more than 2^31 elements too, at most what is free: that takes 10 GiB for a
    forward and 20 GiB for a backward. None leaves them out."""

    @property
    def conditions(self) -> int:
        """The number of conditions of which every combination is tried."""
        return self.strength or (QUICKEST if self.quick else DEFAULT)

    @property
    def call(self) -> CallOptions:
        """How the target is to be called."""
        from implementations import CallOptions

        return CallOptions(
            eps=self.eps,
            normalized_dims=self.normalized_dims,
            channels_first=self.channels_first,
            init=self.init,
        )


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case, and what it is there to catch."""

    case: Case
    catches: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How the cases of one dtype ended."""

    dtype: str
    ok: int = 0
    """Within the bound."""
    out_of_guarantee: int = 0
    """The algorithm has no finite bound."""
    inaccurate: int = 0
    """Outside the bound, but explained by a looser one."""
    failed: int = 0
    """Wrong, or crashed."""
    declined: int = 0
    """The target raised."""

    @property
    def answered(self) -> int:
        """Cases that gave a result, or crashed."""
        return self.ok + self.out_of_guarantee + self.inaccurate + self.failed

    @property
    def is_verified(self) -> bool:
        """Whether more cases gave a result than raised."""
        return self.answered > self.declined


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One call of a target whose result is wrong or inaccurate, as plain values."""

    case: Case
    """The nearest case; what is not at its simplest value is needed for the mistake."""
    output: str
    """The output that is wrong: "y", "dx", "dweight" or "dbias"."""
    shape: tuple[int, ...]
    """Of x."""
    x: tuple[float, ...] = ()
    """All elements, in row-major order; empty if they are many."""
    weight: tuple[float, ...] | None = None
    """None if it is not given; empty if all are one."""
    bias: tuple[float, ...] | None = None
    """None if it is not given; empty if all are zero."""
    dy: tuple[float, ...] | None = None
    """None without a backward."""
    eps: float = 1e-5
    computed: tuple[float, ...] = ()
    """Of that output, or of its worst element if it is large; empty without a result."""
    exact: tuple[float, ...] = ()
    """The right values of the same elements."""
    error_ulp: float = 0.0
    """The largest error of the output, in ulp at the scale of its row or column."""
    allowed_ulp: float | None = None
    """The error bound in the same unit; None where there is none."""
    conditions: tuple[str, ...] = ()
    """What else must hold, in words."""
    commands: str = ""
    """A line of the command line that repeats the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How accurate a function is on ill-conditioned input, in one dtype."""

    dtype: str
    meets: str | None
    """The strictest algorithm and reduction whose bound it meets; None if it meets none."""
    condition_limit: float | None
    """The largest condition at which it keeps two digits; None if it keeps them at all tried."""


class Outcome(StrEnum):
    """The result of a verification."""

    RIGHT = "right"
    """Every result was right within the target's scope."""
    INACCURATE = "inaccurate"
    """The function is LayerNorm, but some results keep too few digits."""
    WRONG = "wrong"
    """A valid call gave a wrong result, or changed something else."""
    NOT_VERIFIED = "not_verified"
    """Too few cases gave a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a target is a LayerNorm, within which scope, and if not, which mistake it makes."""

    target: str
    handle: str
    """The target in Python code: a quoted string, or the name of an object."""
    bound: str
    """The algorithm whose error bound it was held to."""
    options: str = ""
    """How the user wants the target called, as an argument of verify_case."""
    scope: Scope | None = None
    """None if every call raised."""
    instead: str | None = None
    """The known function that it computes instead, such as "RMSNorm"."""
    findings: tuple[Finding, ...] = ()
    """Of failed cases the smallest, smallest first; of causes the best first."""
    is_right_on_last_axis: bool = False
    """Whether it is wrong for several normalized axes alone: right with ``--normalized-dims 1``."""
    example: Example | None = None
    """The smallest example of what is wrong; of an inaccurate target, the worst case."""
    counts: tuple[Count, ...] = ()
    """For each requested dtype, in order."""
    left: int = 0
    """Cases that were not tried because the time was over."""
    strength: int = DEFAULT
    coverage: Mapping[str, int] | None = None
    """Every combination of ``strength`` of these was tried: the number of values by axis, without
    the axes that have one value within the target's scope. None if some were not."""
    grades: tuple[Grade, ...] = ()
    native_grades: tuple[Grade, ...] = ()
    """Those of PyTorch's own kernel in the same dtypes."""
    ended: str = ""
    """Why the verification ended early, if it did."""
    wall_s: float = 0.0

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of a severity."""
        return tuple(finding for finding in self.findings if finding.severity is severity)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The smallest cases with a wrong result or a crash, smallest first."""
        return tuple(own for own in self.of(Severity.WRONG) if own.evidence is not None)

    @property
    def violations(self) -> tuple[Finding, ...]:
        """Contract checks that failed."""
        return tuple(own for own in self.of(Severity.WRONG) if own.evidence is None)

    @property
    def remarks(self) -> tuple[Finding, ...]:
        """What a user should know."""
        return self.of(Severity.REMARK)

    @property
    def declined(self) -> tuple[Finding, ...]:
        """Cases without a result."""
        return self.of(Severity.LIMIT)

    @property
    def raises(self) -> tuple[Finding, ...]:
        """Calls that models make and that raise."""
        return self.of(Severity.RAISES)

    @property
    def ok(self) -> int:
        """Cases within the bound."""
        return sum(count.ok for count in self.counts)

    @property
    def out_of_guarantee(self) -> int:
        """Cases in which the algorithm has no finite bound."""
        return sum(count.out_of_guarantee for count in self.counts)

    @property
    def failed(self) -> int:
        """Cases outside the bound, and cases that crashed."""
        return sum(count.failed for count in self.counts)

    @property
    def cases(self) -> int:
        """Cases that gave a result, or crashed."""
        return sum(count.answered for count in self.counts)

    @property
    def outcome(self) -> Outcome:
        """Wrong if anything was wrong; a LayerNorm only if enough cases were tried."""
        if self.is_wrong:
            return Outcome.WRONG
        is_verified = self.ok > 0 and any(count.is_verified for count in self.counts)
        is_too_short = self.left > 0 and self.cases < _LEAST_TRIED * len(self.counts)
        if not is_verified or self.ended or is_too_short:
            return Outcome.NOT_VERIFIED
        return Outcome.INACCURATE if self.of(Severity.INACCURATE) else Outcome.RIGHT

    @property
    def passed(self) -> bool:
        """Whether the outcome is right."""
        return self.outcome is Outcome.RIGHT

    def is_accepted(self, *, strict: bool) -> bool:
        """Whether the outcome is right and, if ``strict``, no more to remark than on native."""
        remarks = [own for own in self.remarks if own.kind not in OF_NATIVE]
        return self.passed and not (strict and (remarks or self.raises))

    @property
    def is_wrong(self) -> bool:
        """Whether any result is wrong, or any contract check failed."""
        return bool(self.failed or self.violations)

    @property
    def wrong_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which a case or a contract check failed."""
        violated = {dtype for finding in self.violations for dtype in finding.dtypes}
        return tuple(own.dtype for own in self.counts if own.failed or own.dtype in violated)

    @property
    def inaccurate_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which nothing is wrong, and some results keep too few digits."""
        found = {dtype for own in self.of(Severity.INACCURATE) for dtype in own.dtypes}
        found -= {*self.wrong_dtypes}
        return tuple(own.dtype for own in self.counts if own.dtype in found)

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which most cases gave a result, and every one was right."""
        others = {*self.wrong_dtypes, *self.inaccurate_dtypes}
        verified = (own.dtype for own in self.counts if own.is_verified)
        return tuple(dtype for dtype in verified if dtype not in others)

    @property
    def reproduce(self) -> str | None:
        """A line of Python that reproduces the plainest failure; None without one."""
        if not self.failures:
            return None
        case = min((finding.evidence.case for finding in self.failures), key=unusual)
        return python_line(case, self.handle, self.options)


# --- explanations ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One quantity of one row."""

    name: str
    shape: tuple[int, ...]
    """Shape of the quantity for all of x."""
    exact: tuple[float, ...]
    """The first elements of the row."""
    computed: tuple[float, ...] | None
    """None if y implies no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One row of one case, step by step."""

    case: Case
    status: Status
    reason: str
    row: int
    """The requested row, or the one with the largest error."""
    worst_element: int
    """Index of the element of the row with the largest error."""
    worst_ulp: float
    """Its error, in ulp at the scale of the row."""
    steps: tuple[Step, ...]
    first_wrong: str = ""
    """The first step that is wrong, as far as y tells steps apart; empty if y is right."""

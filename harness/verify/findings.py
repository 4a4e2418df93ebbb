"""The findings of a verification, as plain values that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.records import Case, Status
from harness.verify.trigger.conditions import TriggerCondition

__all__ = [
    "SILENT",
    "Count",
    "Coverage",
    "Declined",
    "Extent",
    "Failure",
    "Instead",
    "Outcome",
    "Property",
    "Remark",
    "RemarkKind",
    "RunningSums",
    "Suspect",
    "Trigger",
    "Violation",
]


class Outcome(StrEnum):
    """The result of a verification."""

    LAYER_NORM = "layer_norm"
    """Every result was right within the target's scope."""
    WRONG = "wrong"
    """A valid call gave a wrong result, or changed something else."""
    NOT_VERIFIED = "not_verified"
    """Too few cases gave a result."""


class RemarkKind(StrEnum):
    """What a user of a right LayerNorm should know; under --strict each fails the target."""

    MALFORMED_ARGUMENTS = "malformed_arguments"
    """It accepts a weight, bias or normalized_shape of a wrong shape."""
    DEFAULT_EPS = "default_eps"
    """Its default eps is not the 1e-5 of PyTorch."""
    SHOWN_EPS = "shown_eps"
    """Its attribute named eps differs from the eps that it adds."""
    INITIAL_PARAMETERS = "initial_parameters"
    """A new module does not start with weights of 1 and biases of 0."""
    SECOND_DERIVATIVE_WRONG = "second_derivative_wrong"
    """Its second derivative is wrong, without an error."""
    SECOND_DERIVATIVE_MISSING = "second_derivative_missing"
    """Its second derivative raises."""
    DECLINES_EMPTY = "declines_empty"
    """It raises for an x without elements."""
    DECLINES_LAYOUT = "declines_layout"
    """It raises for an argument in some memory layout."""
    NEGATED_MISREAD = "negated_misread"
    """It ignores the negative bit of a tensor, which z.conj().imag has."""
    CHANGES_UNNOTICED = "changes_unnoticed"
    """Its gradients are wrong, without an error, if a tensor is changed in place before them."""
    AUTOCAST = "autocast"
    """Under torch.autocast it computes in half precision, where PyTorch's own does not."""
    KEPT_IN_A_CYCLE = "kept_in_a_cycle"
    """It keeps memory in a reference cycle until Python's cyclic collector runs."""
    SHARES_DY = "shares_dy"
    """A gradient shares the memory of dy where x has one row."""
    RAISES = "raises"
    """It raises in some calls that are like others that succeed."""
    LESS_ACCURATE = "less_accurate"
    """It is less accurate than PyTorch's own, as a plain running sum is."""
    SEVERAL_AXES_IGNORED = "several_axes_ignored"
    """It accepts several normalized axes but normalises only the last."""
    ALSO_CHANNELS_FIRST = "also_channels_first"
    """It also normalises axis 1 of an x of another shape, which was not verified."""
    PROMOTES = "promotes"
    """Its result has the parameters' dtype if that is wider than x's."""


SILENT = frozenset({
    RemarkKind.SECOND_DERIVATIVE_WRONG,
    RemarkKind.NEGATED_MISREAD,
    RemarkKind.CHANGES_UNNOTICED,
    RemarkKind.SEVERAL_AXES_IGNORED,
})
"""Remarks on wrong numbers without an error, in calls that models hardly make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What a user should know; it does not make a LayerNorm wrong."""

    kind: RemarkKind
    text: str
    """The end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...] = ()
    """Dtypes in which it was seen; empty if the dtype makes no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A contract check that failed: a valid call has a wrong result or a side effect."""

    check: str
    """Name of the contract check."""
    dtype: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Another known function that the target computes instead of a LayerNorm."""

    name: str
    """Such as "RMSNorm"."""
    axes: str
    """The axes it normalises, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A case with a wrong result, or that crashed."""

    case: Case
    status: Status
    reason: str
    catches: str
    """What the case is there to catch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """Cases without a result: a limit of the target or of the verification, not a mistake."""

    what: str
    cases: int
    reason: str
    by_target: bool = True
    """Whether the target declines; otherwise the verification leaves them out."""
    raised: bool = False
    """Whether the target raised something else than UnsupportedError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A property that holds bit by bit, or an identity that holds within the bound, in one dtype.

    It is reported. The contract does not require a property; a broken identity is a
    :class:`Violation` besides.
    """

    name: str
    dtype: str
    holds: bool | None
    """None if it could not be run, or the bound is infinite."""
    is_identity: bool = False
    """Whether it is an identity, which holds within the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How many cases of one dtype gave a result."""

    dtype: str
    answered: int
    declined: int
    """Cases in which the target raised."""

    @property
    def is_verified(self) -> bool:
        """Whether more cases gave a result than raised."""
        return self.answered > self.declined


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was tried: every combination of ``strength`` conditions that can occur together."""

    strength: int
    axes: tuple[str, ...]
    """Those with more than one value within the target's scope."""
    conditions: int
    """Values of these axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Cases tried in one dtype."""

    dtype: str
    cases: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Cases outside the bound of tree sums and within the bound of plain running sums."""

    algorithm: str
    """The strictest class whose running sums explain all of them."""
    dtypes: tuple[str, ...]
    """Dtypes with such cases, in which nothing failed."""
    cases: int
    worst: str
    """The case furthest outside, and how far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A known mistake that explains the failures."""

    name: str
    mistake: str
    """What the target does, as the end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...]
    """Dtypes whose failures it explains."""
    outputs: tuple[str, ...]
    """The outputs that it explains."""
    unexplained_ratio: float = 0.0
    """The largest ratio, over the cases, of the distance to the mutant's outputs to the error.

    0 if a probe found the mistake, without a mutant.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What every failed case has in common; none of the right ones has it and shows the mistake."""

    dtypes: tuple[str, ...]
    outputs: tuple[str, ...]
    """The outputs that fail."""
    conditions: tuple[TriggerCondition, ...]
    """All hold in every failed case; empty if the target fails everywhere."""
    regardless: tuple[str, ...]
    """Axes on which failed cases have every value that was tried."""
    failed: int
    """Cases that failed, the further ones included."""
    right: int
    """Cases that did not fail, the further ones included."""
    hidden: int
    """Right cases that meet the conditions: their data hide the mistake."""
    further_cases: int
    """Cases tried to find and confirm it; 0 if it was not confirmed."""

"""What a verification finds, as plain values that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.records import Case, Status

__all__ = [
    "SILENT",
    "Count",
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
    "Violation",
]


class Outcome(StrEnum):
    """What a verification comes to."""

    LAYER_NORM = "layer_norm"
    """Every result was right, within the target's scope."""
    WRONG = "wrong"
    """A valid call gave a wrong result, or changed what is not its own."""
    NOT_VERIFIED = "not_verified"
    """Too little was answered, or tried, to tell."""


class RemarkKind(StrEnum):
    """What a user should know of a LayerNorm that is right; each fails it under --strict."""

    MALFORMED_ARGUMENTS = "malformed_arguments"
    """A weight, bias or normalized_shape that does not fit is accepted."""
    DEFAULT_EPS = "default_eps"
    """Where no eps is given, it is not the 1e-5 of PyTorch."""
    SHOWN_EPS = "shown_eps"
    """It has an attribute named eps of another value than it adds."""
    INITIAL_PARAMETERS = "initial_parameters"
    """A new module does not start at a weight of 1 and a bias of 0."""
    SECOND_DERIVATIVE_WRONG = "second_derivative_wrong"
    """The derivative of its gradients is wrong, and nothing is raised."""
    SECOND_DERIVATIVE_MISSING = "second_derivative_missing"
    """The derivative of its gradients raises."""
    DECLINES_EMPTY = "declines_empty"
    """An x without elements raises."""
    DECLINES_LAYOUT = "declines_layout"
    """An x in some memory layout raises."""
    NEGATED_MISREAD = "negated_misread"
    """A tensor that torch keeps negated (x.conj().imag, say) is read as if it were not."""
    CHANGES_UNNOTICED = "changes_unnoticed"
    """Gradients are wrong, without error, where an input is changed in place before them."""
    AUTOCAST = "autocast"
    """Under torch.autocast it computes in half precision, where torch's own does not."""
    RAISES = "raises"
    """Some calls raise that are like others which it answers."""
    LESS_ACCURATE = "less_accurate"
    """It loses more digits than PyTorch's own, as a plain running sum does."""
    SEVERAL_AXES_IGNORED = "several_axes_ignored"
    """Several normalized axes are accepted, and only the last is normalised."""
    ALSO_CHANNELS_FIRST = "also_channels_first"
    """It normalises axis 1 too, of an x of another shape, which was not verified."""
    PROMOTES = "promotes"
    """The result has the parameters' dtype where that is wider than x's."""


SILENT = frozenset({
    RemarkKind.SECOND_DERIVATIVE_WRONG,
    RemarkKind.NEGATED_MISREAD,
    RemarkKind.CHANGES_UNNOTICED,
    RemarkKind.SEVERAL_AXES_IGNORED,
})
"""Remarks of wrong numbers that nothing is raised for, in calls that models hardly make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What a user should know; it does not make a LayerNorm wrong."""

    kind: RemarkKind
    text: str
    """The end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...] = ()
    """In which it was seen; empty where dtypes make no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A contract check that failed: valid calls have wrong results, or effects beyond their own."""

    dtype: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Another known function that the target computes."""

    name: str
    """Such as "RMSNorm"."""
    axes: str
    """Where its features are, in words."""


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
class Suspect:
    """A known mistake that explains what was seen."""

    name: str
    mistake: str
    """What the target does, as the end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...]
    """In which it explains what was seen."""
    outputs: tuple[str, ...]
    """Which outputs it explains."""
    unexplained_ratio: float
    """Distance from the mutant's outputs over that from the exact ones, at worst over cases."""

"""Findings of a verification, as plain values that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """What a finding means for the verdict."""

    WRONG = "wrong"
    """A valid call has a wrong result or a side effect: the target is no LayerNorm."""
    INACCURATE = "inaccurate"
    """The function is LayerNorm, but some results keep too few digits."""
    RAISES = "raises"
    """A call that models make raises; under --strict it fails the target."""
    REMARK = "remark"
    """What a user should know; it does not make a LayerNorm wrong."""
    LIMIT = "limit"
    """Cases without a result: a limit of the target or of the verification, not a mistake."""
    CAUSE = "cause"
    """What explains wrong results."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a target."""

    kind: str
    """Of WRONG, the contract check that failed, or the status of a failed case; of INACCURATE, the
    looser bound that holds; of RAISES, the axis of the call or the contract check; of
    REMARK, a :class:`RemarkKind`; of LIMIT, "declined", "raised" or "left_out"; of CAUSE, "mistake"
    or "trigger"."""
    severity: Severity
    text: str
    """For the user; of REMARK and a mistake, the end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...] = ()
    """Dtypes in which it was seen; empty if the dtype makes no difference."""
    evidence: Any = None
    """Of a failed case, the case and what it is there to catch; of LIMIT, what was not tried, and
    the number of cases; of RAISES, what was raised, and in how many cases, 0 if it was not tried
    again; of a mistake, the outputs that show it; of a trigger, its conditions."""


class RemarkKind(StrEnum):
    """What a user of a right LayerNorm should know; under --strict each fails the target.

    Those of :data:`OF_NATIVE` do not.
    """

    MALFORMED_ARGUMENTS = "malformed_arguments"
    """It accepts a weight, bias or normalized_shape of a wrong shape."""
    DEFAULT_EPS = "default_eps"
    """Its default eps is not the 1e-5 of PyTorch."""
    SHOWN_EPS = "shown_eps"
    """Its attribute named eps differs from the eps that it adds."""
    DEFAULT_DTYPE = "default_dtype"
    """It makes parameters in another dtype than torch's default one."""
    SECOND_DERIVATIVE_WRONG = "second_derivative_wrong"
    """Its second derivative is wrong, without an error."""
    SECOND_DERIVATIVE_MISSING = "second_derivative_missing"
    """Its second derivative raises."""
    HIGHER_DERIVATIVE_WRONG = "higher_derivative_wrong"
    """Its third derivative, or a derivative in forward mode of another one, is wrong."""
    ROWS_OF_ONE = "rows_of_one"
    """Rows of one large element give another y than the bias, or a gradient that is not 0."""
    DECLINES_EMPTY = "declines_empty"
    """It raises for an x without elements."""
    DECLINES_LAYOUT = "declines_layout"
    """It raises for an argument in some memory layout."""
    NEGATED_MISREAD = "negated_misread"
    """It ignores the negative bit of a tensor, which z.conj().imag has."""
    CHANGES_UNNOTICED = "changes_unnoticed"
    """Its gradients are wrong, without an error, if a tensor is changed in place before them."""
    Y_IS_KEPT = "y_is_kept"
    """It raises if y is changed in place: y is a view, or needed in the backward."""
    AUTOCAST = "autocast"
    """Under torch.autocast it computes in half precision, where PyTorch's own does not."""
    KEPT_IN_A_CYCLE = "kept_in_a_cycle"
    """It keeps memory in a reference cycle until Python's cyclic collector runs."""
    SHARES_DY = "shares_dy"
    """A gradient shares the memory of dy where x has one row."""
    RAISES = "raises"
    """It raises in some calls that are like others that succeed."""
    ROUNDED_AGAIN = "rounded_again"
    """It rounds results more than once in the dtype of x: 2 or 3 ulp."""
    SEVERAL_AXES_IGNORED = "several_axes_ignored"
    """It accepts several normalized axes but normalises only the last."""
    ALSO_CHANNELS_FIRST = "also_channels_first"
    """It also normalises axis 1 of an x of another shape, which was not verified."""
    NEVER_TRIED = "never_tried"
    """Its source has a condition that had the same outcome in every case."""
    PROMOTES = "promotes"
    """Its result has the parameters' dtype if that is wider than x's."""


SILENT = frozenset({
    RemarkKind.SECOND_DERIVATIVE_WRONG,
    RemarkKind.NEGATED_MISREAD,
    RemarkKind.CHANGES_UNNOTICED,
    RemarkKind.SEVERAL_AXES_IGNORED,
})
"""Remarks on wrong numbers without an error, in calls that models hardly make."""

OF_NATIVE = frozenset({RemarkKind.HIGHER_DERIVATIVE_WRONG, RemarkKind.ROWS_OF_ONE})
"""Remarks that PyTorch 2.13's own kernel gets, and so every wrapper of it: --strict accepts them.

They are pytorch issues 175754 and 196700, and 188372 and 188375.
"""


def remark(kind: RemarkKind, text: str, dtypes: tuple[str, ...] = ()) -> Finding:
    """Return a finding that makes no LayerNorm wrong."""
    return Finding(kind, Severity.REMARK, text, dtypes)


def limit(kind: str, what: str, reason: str, cases: int = 1) -> Finding:
    """Return the finding that ``cases`` have no result, for one ``reason``."""
    return Finding(kind, Severity.LIMIT, reason, evidence=(what, cases))

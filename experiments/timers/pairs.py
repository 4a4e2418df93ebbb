"""The pairs that are timed: two functions on the same inputs, called the same way.

A pair is a subject and a reference. One number is measured: the subject's time over the
reference's. All pairs are float32, forward, without gradients, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import implementations
from harness.cases.inputs import make_inputs
from harness.records import ArmRole, Case
from implementations.contract import LayerNormFunction

__all__ = [
    "ALONE_PAIRS",
    "COMPARED_PAIRS",
    "PAIRS",
    "RATIO_PAIRS",
    "ROLES",
    "Pair",
    "prepare_torch",
]

ROLES = (ArmRole.SUBJECT, ArmRole.REFERENCE)


@dataclass(frozen=True, slots=True)
class Pair:
    """A subject, and the reference that its time is divided by."""

    name: str
    case: Case
    """The subject's case; the reference is the implementation ``native``."""
    reference_rows: int
    """Rows of the subject's x that the reference gets: all of them, except in "slower"."""
    says: str
    """What the report says of the pair."""
    truth: float | None = None
    """The ratio, where it is known by construction."""

    def implementation(self, role: ArmRole) -> str:
        return self.case.implementation if role is ArmRole.SUBJECT else "native"

    def function(self, role: ArmRole) -> LayerNormFunction:
        return implementations.find(self.implementation(role)).function

    def rows(self, role: ArmRole) -> int:
        return self.case.rows if role is ArmRole.SUBJECT else self.reference_rows

    def tensors(self) -> tuple[Tensor, ...]:
        """Draw x of the subject's shape, weight and bias: the same in every process."""
        return make_inputs(self.case).tensors

    def share(self, role: ArmRole, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """That arm's part of ``tensors``: its first rows, which are contiguous; no copy."""
        return (tensors[0][: self.rows(role)], *tensors[1:])

    def call(self, role: ArmRole, tensors: Sequence[Tensor]) -> Callable[[], object]:
        """Return what the peers time: the function and its arguments, in a partial."""
        x, weight, bias = self.share(role, tensors)
        case = self.case
        return partial(self.function(role), x, case.normalized_shape, weight, bias, case.eps)

    def calls(self) -> dict[ArmRole, Callable[[], object]]:
        """Draw the inputs and bind both arms to them."""
        tensors = self.tensors()
        return {role: self.call(role, tensors) for role in ROLES}

    def describe(self, role: ArmRole) -> str:
        return f"{self.implementation(role)} {self.rows(role)}x{self.case.hidden}"


def _pair(
    name: str,
    implementation: str,
    rows: int,
    hidden: int,
    says: str,
    *,
    reference_rows: int | None = None,
    truth: float | None = None,
) -> Pair:
    case = Case(implementation=implementation, shape=(rows, hidden))
    return Pair(name, case, reference_rows or rows, says, truth)


# x and y have 16 KiB each (they fit the first-level cache), 1.5 MiB (the last-level), or 32 MiB:
# those do not fit where the last level has 32 MiB; few processors have one of 64 MiB or more
RATIO_PAIRS = ("tiny", "cache", "dram")
COMPARED_PAIRS = (*RATIO_PAIRS, "aa", "slower")
ALONE_PAIRS = ("tiny", "cache", "aa-tiny", "aa", "slower")
PAIRS = {
    pair.name: pair
    for pair in (
        _pair("tiny", "two_pass", 32, 128, "two_pass, 32x128: a call of microseconds"),
        _pair("cache", "two_pass", 512, 768, "two_pass, 512x768: fits the last-level cache"),
        _pair("dram", "two_pass", 8192, 1024, "two_pass, 8192x1024: does not fit"),
        _pair("aa-tiny", "native", 32, 128, "A/A: native against native, 32x128", truth=1.0),
        _pair("aa", "native", 512, 768, "A/A: native against native, 512x768", truth=1.0),
        # 538 of 512 rows are 5.08 % more work; how much longer that takes is for the timers to say
        _pair(
            "slower",
            "native",
            538,
            768,
            "native on 538 rows against native on 512, x768: 5 % more work",
            reference_rows=512,
        ),
    )
}


def prepare_torch() -> None:
    """Bring torch into the state that all timers find: one thread, no gradients."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

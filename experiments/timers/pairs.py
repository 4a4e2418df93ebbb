"""The pairs that are timed: a subject and a reference, on the same inputs.

One number is measured: the subject's time over the reference's. All pairs are float32, forward,
without gradients, on one thread. Where both are calls of ``native``, 21 calls in turn take 1.05
times as long as 20 by construction, so the error of a timer is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import implementations
from harness.cases.inputs import make_inputs
from harness.records import ArmRole, Case

__all__ = ["ALONE_PAIRS", "COMPARED_PAIRS", "PAIRS", "ROLES", "Pair", "prepare_torch"]

ROLES = (ArmRole.SUBJECT, ArmRole.REFERENCE)


@dataclass(frozen=True, slots=True)
class Pair:
    """A subject, and the reference that its time is divided by."""

    name: str
    case: Case
    """The subject's case; the reference is the implementation ``native``."""
    says: str
    """What the report says of the pair."""
    calls_in_turn: tuple[int, int] = (1, 1)
    """How many calls the subject and the reference make."""

    @property
    def truth(self) -> float | None:
        """The ratio, if it is known by construction."""
        subject, reference = self.calls_in_turn
        return subject / reference if self.case.implementation == "native" else None

    def implementation(self, role: ArmRole) -> str:
        return self.case.implementation if role is ArmRole.SUBJECT else "native"

    def function(self, role: ArmRole) -> Callable[..., Tensor]:
        function = implementations.find(self.implementation(role)).function
        calls = self.calls_in_turn[ROLES.index(role)]
        if calls == 1:
            return function

        def in_turn(*arguments: Any) -> Tensor:
            for _ in range(calls - 1):
                function(*arguments)
            return function(*arguments)

        return in_turn

    def tensors(self) -> tuple[Tensor, ...]:
        """Draw x, weight and bias: the same in every process."""
        return make_inputs(self.case).tensors

    def calls(self) -> dict[ArmRole, Callable[[], object]]:
        """Draw the inputs; return what the peers time: functions with their arguments."""
        x, weight, bias = self.tensors()
        arguments = (x, self.case.normalized_shape, weight, bias, self.case.eps)
        return {role: partial(self.function(role), *arguments) for role in ROLES}

    def describe(self, role: ArmRole) -> str:
        calls = self.calls_in_turn[ROLES.index(role)]
        return f"{calls} x {self.implementation(role)} {self.case.rows}x{self.case.hidden}"


def _pair(name: str, implementation: str, rows: int, hidden: int, says: str, *calls: int) -> Pair:
    subject, reference = calls or (1, 1)
    case = Case(implementation=implementation, shape=(rows, hidden))
    return Pair(name, case, says, (subject, reference))


COMPARED_PAIRS = ("aa-tiny", "aa", "more", "twice")
ALONE_PAIRS = ("tiny", "cache", "aa-tiny", "aa", "more")
# x and y have 16 KiB each, which fit the first-level cache, or 1.5 MiB, which fit the last-level
PAIRS = {
    pair.name: pair
    for pair in (
        _pair("tiny", "two_pass", 32, 128, "two_pass to native, 32x128"),
        _pair("cache", "two_pass", 512, 768, "two_pass to native, 512x768"),
        _pair("aa-tiny", "native", 32, 128, "A/A: native to itself, 32x128"),
        _pair("aa", "native", 512, 768, "A/A: native to itself, 512x768"),
        _pair("more", "native", 32, 128, "21 calls of native to 20, 32x128", 21, 20),
        _pair("twice", "native", 512, 768, "two calls of native to one, 512x768", 2, 1),
    )
}


def prepare_torch() -> None:
    """Bring torch into the state that all timers find: one thread, no gradients."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

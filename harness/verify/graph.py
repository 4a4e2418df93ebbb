"""One recorded call of a guest, whose gradients can be asked for in more than the usual way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.records import Case
from harness.verify.errors import Outputs
from harness.verify.guest import Unmet, checked, guarded
from implementations.contract import Implementation

__all__ = ["INPUTS", "Graph"]

INPUTS = ("x", "weight", "bias")
"""What gradients are taken with respect to."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward that was recorded for some of its inputs."""

    y: Tensor
    leaves: dict[str, Tensor]
    """x, weight and bias as the guest got them, as far as there are."""
    dy: Tensor

    @classmethod
    def of(
        cls,
        implementation: Implementation,
        case: Case,
        inputs: Inputs,
        wanted: Collection[str] = INPUTS,
    ) -> Graph:
        """Run the forward on copies of the inputs, of which those ``wanted`` ask for gradients.

        Raises:
            GuestError: the implementation raised.
            Unmet: y is not what it should be, or has no gradient.
        """
        assert inputs.dy is not None  # a case with gradients has one
        leaves = {
            name: tensor.clone().requires_grad_(name in wanted)
            for name in INPUTS
            if (tensor := getattr(inputs, name)) is not None
        }
        arguments = (leaves["x"], case.normalized_shape, leaves.get("weight"), leaves.get("bias"))
        with torch.enable_grad():
            y = checked("y", guarded(implementation.function, *arguments, case.eps)(), inputs.x)
        if not y.requires_grad:
            asking = " and ".join(name for name in leaves if name in wanted)
            raise Unmet(f"returned a y without gradient where {asking} alone asked for one")
        return cls(y, leaves, inputs.dy)

    def gradients(self, *, keep: bool = False) -> Outputs:
        """Return y and the gradients that were wanted; the graph can be kept for another time.

        Raises:
            GuestError: the implementation raised.
            Unmet: a gradient is missing, or is not what it should be.
        """
        asked = {name: each for name, each in self.leaves.items() if each.requires_grad}
        backward = partial(
            torch.autograd.grad,
            self.y,
            tuple(asked.values()),
            self.dy,
            retain_graph=keep,
            allow_unused=True,
        )
        found = guarded(backward)()
        assert isinstance(found, tuple)  # what autograd.grad returns
        gradients = {
            f"d{name}": checked(f"d{name}", gradient, leaf)
            for (name, leaf), gradient in zip(asked.items(), found, strict=True)
        }
        return Outputs(y=self.y.detach(), **gradients)

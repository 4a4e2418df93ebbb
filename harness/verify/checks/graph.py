"""One recorded call of an implementation, whose gradients can be asked for in more than the usual way."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ContractViolationError, checked, guarded
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = ["INPUTS", "Graph", "leaves_of", "training_case", "with_each_affine"]

INPUTS = ("x", "weight", "bias")
"""What gradients are taken with respect to."""


def leaves_of(inputs: Inputs, wanted: Collection[str] = INPUTS) -> dict[str, Tensor]:
    """Return copies of x, weight and bias, of which those ``wanted`` ask for gradients."""
    return {
        name: tensor.clone().requires_grad_(name in wanted)
        for name in INPUTS
        if (tensor := getattr(inputs, name)) is not None
    }


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward that was recorded for some of its inputs."""

    y: Tensor
    leaves: dict[str, Tensor]
    """x, weight and bias as the implementation got them, as far as there are."""
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
            ImplementationError: the implementation raised.
            ContractViolationError: y is not what it should be, or has no gradient.
        """
        assert inputs.dy is not None  # a case with gradients has one
        return cls.on(leaves_of(inputs, wanted), inputs.dy, implementation, case)

    @classmethod
    def on(
        cls, leaves: dict[str, Tensor], dy: Tensor, implementation: Implementation, case: Case
    ) -> Graph:
        """Run the forward on these very leaves; raises as :meth:`of`."""
        arguments = (leaves["x"], case.normalized_shape, leaves.get("weight"), leaves.get("bias"))
        with torch.enable_grad():
            y = checked("y", guarded(implementation.function, *arguments, case.eps)(), leaves["x"])
        if not y.requires_grad:
            asking = " and ".join(name for name, each in leaves.items() if each.requires_grad)
            raise ContractViolationError(
                f"returned a y without gradient where {asking} alone asked for one"
            )
        return cls(y, leaves, dy)

    def gradients(self, *, keep: bool = False, recorded: bool = False) -> Outputs:
        """Return y and the gradients that were wanted; the graph can be kept for another time.

        Gradients that are recorded are such as have gradients themselves.

        Raises:
            ImplementationError: the implementation raised.
            ContractViolationError: a gradient is missing, or is not what it should be.
        """
        asked = {name: each for name, each in self.leaves.items() if each.requires_grad}
        backward = partial(
            torch.autograd.grad,
            self.y,
            tuple(asked.values()),
            self.dy,
            retain_graph=keep or recorded,
            create_graph=recorded,
            allow_unused=True,
        )
        found = guarded(backward)()
        assert isinstance(found, tuple)  # what autograd.grad returns
        gradients = {
            f"d{name}": checked(f"d{name}", gradient, leaf).detach()
            for (name, leaf), gradient in zip(asked.items(), found, strict=True)
        }
        return Outputs(y=self.y.detach(), **gradients)


def training_case(implementation: Implementation, case: Case) -> tuple[Case, Inputs]:
    """Return a small case with all gradients, of the dtype and device of ``case``."""
    return next(with_each_affine(implementation, case))


def with_each_affine(implementation: Implementation, case: Case) -> Iterator[tuple[Case, Inputs]]:
    """Yield such a case for each form of weight and bias that it takes, the richest first."""
    for affine in scope_of(implementation).affines:
        asked = fitted(
            implementation, case, shape=(6, 32), direction=Direction.BACKWARD, affine=affine
        )
        yield asked, make_inputs(asked)

"""One recorded call of an implementation, and its gradients in every way autograd offers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs, copy_in_layout, make_inputs
from harness.numerics.computed import ContractViolationError, checked, guarded
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = ["INPUTS", "Graph", "leaves_of", "training_case", "with_each_affine"]

INPUTS = ("x", "weight", "bias")
"""The inputs that gradients are taken with respect to."""


def leaves_of(inputs: Inputs, names: Collection[str] = INPUTS) -> dict[str, Tensor]:
    """Return copies of x, weight and bias in their layouts; ``names`` require gradients."""
    return {
        name: copy_in_layout(tensor).requires_grad_(name in names)
        for name in INPUTS
        if (tensor := getattr(inputs, name)) is not None
    }


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward that autograd recorded, for some of its inputs."""

    y: Tensor
    leaves: dict[str, Tensor]
    """x, and weight and bias unless they are None, as passed to the implementation."""
    dy: Tensor

    @classmethod
    def of(
        cls,
        implementation: Implementation,
        case: Case,
        inputs: Inputs,
        names: Collection[str] = INPUTS,
    ) -> Graph:
        """Run the forward on copies of the inputs; those in ``names`` require gradients.

        Raises:
            ImplementationError: the implementation raised.
            ContractViolationError: y is not a tensor like x, or has no gradient.
        """
        assert inputs.dy is not None  # a case with gradients has one
        return cls.on(leaves_of(inputs, names), inputs.dy, implementation, case)

    @classmethod
    def on(
        cls, leaves: dict[str, Tensor], dy: Tensor, implementation: Implementation, case: Case
    ) -> Graph:
        """Run the forward on these leaves, without copies; raises as :meth:`of`."""
        arguments = (leaves["x"], case.normalized_shape, leaves.get("weight"), leaves.get("bias"))
        with torch.enable_grad():
            y = checked("y", guarded(implementation.function, *arguments, case.eps)(), leaves["x"])
        if not y.requires_grad:
            names = " and ".join(name for name, leaf in leaves.items() if leaf.requires_grad)
            raise ContractViolationError(
                f"returned a y without gradient although {names} required one"
            )
        return cls(y, leaves, dy)

    def gradients(self, *, keep: bool = False, create_graph: bool = False) -> Outputs:
        """Return y and the gradients.

        Args:
            keep: retain the graph for a second backward.
            create_graph: record the backward, so that the gradients have gradients.

        Raises:
            ImplementationError: the implementation raised.
            ContractViolationError: a gradient is missing, or is not a tensor like its input.
        """
        leaves = {name: leaf for name, leaf in self.leaves.items() if leaf.requires_grad}
        backward = partial(
            torch.autograd.grad,
            self.y,
            tuple(leaves.values()),
            self.dy,
            retain_graph=keep or create_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
        returned = guarded(backward)()
        assert isinstance(returned, tuple)  # the type that autograd.grad returns
        gradients = {
            f"d{name}": checked(f"d{name}", gradient, leaf).detach()
            for (name, leaf), gradient in zip(leaves.items(), returned, strict=True)
        }
        return Outputs(y=self.y.detach(), **gradients)


def training_case(implementation: Implementation, case: Case) -> tuple[Case, Inputs]:
    """Return ``case`` with all gradients, and its inputs."""
    return next(with_each_affine(implementation, case))


def with_each_affine(implementation: Implementation, case: Case) -> Iterator[tuple[Case, Inputs]]:
    """Yield ``case`` for each combination of weight and bias that has gradients."""
    for affine in scope_of(implementation).affines_with_gradient:
        sized = fitted(implementation, case, direction=Direction.BACKWARD, affine=affine)
        yield sized, make_inputs(sized)

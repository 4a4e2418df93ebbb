"""Contract check of memory beside the tensors of a call: nothing but the results is written."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.numerics.computed import ImplementationError
from harness.records import Case
from harness.verify.checks.graph import INPUTS, Graph, training_case
from harness.verify.checks.outputs import compute_y, forward_case
from harness.verify.checks.settings import BLOCK, LONG, SMALL, TAIL, TWO_AXES, at
from implementations.contract import Implementation

__all__ = ["writes_only_its_results"]

_BESIDE = 32  # elements: more than one vector of any CPU, and aligned as a new tensor is


def _between_rows(tensor: Tensor) -> Tensor:
    """Return a copy in the middle of a longer dense buffer."""
    buffer = _filled(tensor, (tensor.numel() + 2 * _BESIDE,))
    return buffer[_BESIDE:-_BESIDE].view(tensor.shape).copy_(tensor)


def _between_columns(tensor: Tensor) -> Tensor:
    """Return a copy in the middle columns of a buffer."""
    buffer = _filled(tensor, (*tensor.shape[:-1], tensor.shape[-1] + 2 * _BESIDE))
    return buffer[..., _BESIDE:-_BESIDE].copy_(tensor)


def _filled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a buffer of known values, none of them 0."""
    size = torch.Size(shape).numel()
    values = torch.arange(1, size + 1, device=tensor.device) % 97 + 3
    return values.to(tensor.dtype).view(shape)


@at(SMALL, TAIL, BLOCK, LONG, TWO_AXES)
def writes_only_its_results(implementation: Implementation, case: Case) -> str | None:
    """A call writes to no argument, to nothing beside one, and to no .grad.

    A backward does not write to y.
    """
    for place in (_between_rows, _between_columns):
        try:
            if found := _written(implementation, case, place):
                return found
        except ImplementationError:
            continue  # the scope records which layouts the target declines
    return None


def _written(
    implementation: Implementation, case: Case, place: Callable[[Tensor], Tensor]
) -> str | None:
    forward, inputs = forward_case(implementation, case)
    placed = inputs.at([place(each) for each in inputs.tensors])
    before = _bytes_of(placed)
    compute_y(implementation, forward, placed)
    if name := _changed(before, _bytes_of(placed)):
        return f"writes to the memory beside {name}"
    if implementation.forward_only:
        return None
    trained, inputs = training_case(implementation, case)
    placed = inputs.at([place(each) for each in inputs.tensors])
    before = _bytes_of(placed)
    leaves = {
        name: tensor.detach().requires_grad_()
        for name in INPUTS
        if (tensor := getattr(placed, name)) is not None
    }
    assert placed.dy is not None  # a case with gradients has one
    graph = Graph.on(leaves, placed.dy, implementation, trained)
    y = graph.y.detach().clone()
    graph.gradients()
    if name := _changed(before, _bytes_of(placed)):
        return f"writes to {name}, or to the memory beside it, in training"
    if not torch.equal(graph.y.detach(), y):
        return "writes to y in the backward"
    for name, leaf in leaves.items():
        if leaf.grad is not None:
            return f"writes to {name}.grad, which is autograd's to write"
    return None


def _bytes_of(inputs: Inputs) -> dict[str, Tensor]:
    """Return copies of the whole storages."""
    named = {name: getattr(inputs, name) for name in (*INPUTS, "dy")}
    return {
        name: tensor.new_empty(0, dtype=torch.uint8).set_(tensor.untyped_storage().clone())
        for name, tensor in named.items()
        if tensor is not None
    }


def _changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> str | None:
    return next((name for name in before if not torch.equal(before[name], after[name])), None)

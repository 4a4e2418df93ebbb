"""Sizes at which a target looks wrong, of all up to a few hundred: arithmetic may tell them apart.

``rows * N % 24 == 5`` has no constant that is a size, and no branch. Calls are cheap here: their
results are compared with those of float64, coarsely. A case that looks wrong is then judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from harness.cases.inputs import Inputs, make_inputs
from harness.numerics.outputs import named_outputs
from harness.records import Case
from harness.run.call import ContractViolationError, ImplementationError, run_once
from harness.verify.in_scope import scope_of
from implementations.contract import Implementation

__all__ = ["sizes_that_look_wrong"]

_LEAST = 5  # shorter rows are values of the axes, and have gradients of rounding errors
_MOST_FOUND = 3  # along each axis
_MOST_S = 0.5  # along each axis; a slow target gets fewer sizes
# what varies, up to which shape of x, the number of normalized axes, and which axis it is
_AXES = (
    ("rows", (300, 24), 1, 0),
    ("hidden", (3, 300), 1, 1),
    ("leading_axes", (2, 40, 3, 8), 1, 1),  # the heads of attention
    ("normalized_axes", (2, 2, 100, 5), 3, 2),  # the height of an image
)


def sizes_that_look_wrong(target: Implementation, case: Case) -> Iterator[tuple[Case, str]]:
    """Yield cases of such a size, and what varies in them; a target may be right there.

    Args:
        target: what is called.
        case: gives all but the shape; of a direction that the target has.
    """
    scope = scope_of(target)
    for name, shape, dims, at in _AXES:
        largest = scope.fit(replace(case, shape=shape, normalized_dims=dims))
        if largest is None or largest.shape != shape:
            continue
        began, found = perf_counter(), 0
        whole = make_inputs(largest)
        for size in range(_LEAST, shape[at]):
            if found == _MOST_FOUND or perf_counter() - began > _MOST_S:
                break
            inputs = whole.at([_part(tensor, at - len(shape), size) for tensor in whole.tensors])
            own = replace(largest, shape=tuple(inputs.x.shape))
            if _looks_wrong(target, own, inputs):
                found += 1
                yield own, name


def _part(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Return the first elements along an axis, counted from the last; parameters have fewer."""
    return tensor.narrow(axis, 0, size).contiguous() if tensor.dim() >= -axis else tensor


def _looks_wrong(target: Implementation, case: Case, inputs: Inputs) -> bool:
    try:
        outputs = run_once(target.function, case, inputs)
    except (ImplementationError, ContractViolationError):
        return True
    coarse = torch.finfo(inputs.x.dtype).eps ** 0.5
    exact = _in_float64(case, inputs)
    pairs = ((own.double(), exact[name]) for name, own in named_outputs(outputs))
    return not all(_is_near(own, other, coarse) for own, other in pairs)


def _is_near(one: Tensor, other: Tensor, coarse: float) -> bool:
    return bool((one - other).abs().amax() <= coarse * other.abs().amax())  # False for NaN


def _in_float64(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    names = [name for name in ("x", "weight", "bias") if getattr(inputs, name) is not None]
    given = {name: getattr(inputs, name).double().requires_grad_() for name in names}
    with torch.enable_grad():
        y = torch.nn.functional.layer_norm(
            given["x"], case.normalized_shape, given.get("weight"), given.get("bias"), case.eps
        )
    exact = {"y": y.detach()}
    if inputs.dy is not None:
        gradients = torch.autograd.grad(y, tuple(given.values()), inputs.dy.double())
        exact |= {f"d{name}": own for name, own in zip(names, gradients, strict=True)}
    return exact

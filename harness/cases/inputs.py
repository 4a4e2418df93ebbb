"""The tensors of a case: named distributions, layouts, output gradients and parameters.

Values are drawn in float64 from the case's seed and rounded once to the dtype under test. The
exact reference starts from the rounded values. The implementation, the device, the direction and
the layout do not change the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Generator, Tensor

from harness.cases.distributions import DISTRIBUTIONS, REPORTED, Draw, standard_normal
from harness.cases.grad_outputs import GRAD_OUTPUTS, LAYOUT_OF
from harness.cases.layouts import LAYOUTS, OF_DY_TOO, Registry, any_view
from harness.cases.parameters import PARAMETERS
from harness.records import Affine, Case, Direction
from implementations.torch_private import negated_view

__all__ = [
    "DISTRIBUTIONS",
    "GRAD_OUTPUTS",
    "LAYOUTS",
    "LAYOUT_OF",
    "NAMED",
    "PARAMETERS",
    "REPORTED",
    "Inputs",
    "UnrepresentableError",
    "copy_in_layout",
    "describe",
    "laid_out",
    "make_inputs",
]


NAMED: Mapping[str, Registry[Any]] = {
    "distribution": DISTRIBUTIONS,
    "layout": LAYOUTS,
    "grad_output": GRAD_OUTPUTS,
    "parameters": PARAMETERS,
}
"""What makes the inputs, by axis and name."""


class UnrepresentableError(Exception):
    """The distribution has finite values that the dtype cannot hold."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of one case. They are shared between implementations and never modified."""

    x: Tensor
    """Of the case's shape, dtype and layout."""
    weight: Tensor | None
    """Of the normalized shape and the parameters' dtype."""
    bias: Tensor | None
    """Of the normalized shape and the parameters' dtype."""
    dy: Tensor | None
    """Gradient of y, of x's shape and dtype; None for a forward case.

    Contiguous except in the layouts of :data:`harness.cases.layouts.OF_DY_TOO`, and in output
    gradients that have a layout of their own.
    """

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that are not None, in the order of the fields."""
        return tuple(getattr(self, name) for name in self._given)

    @property
    def _given(self) -> list[str]:
        return [part.name for part in fields(self) if getattr(self, part.name) is not None]

    def at(self, tensors: Sequence[Tensor]) -> Inputs:
        """Return inputs with ``tensors`` in place of ``self.tensors``, in that order."""
        return replace(self, **dict(zip(self._given, tensors, strict=True)))

    def copies(self) -> Inputs:
        """Return copies in the same layouts, for a target that must not reach the originals."""
        return self.at([copy_in_layout(tensor) for tensor in self.tensors])


def copy_in_layout(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides and offset, in a storage as long as the original's."""
    if tensor.is_contiguous() and not tensor.storage_offset() and not tensor.is_neg():
        return tensor.clone()
    start, storage = int(tensor.storage_offset()), tensor.untyped_storage().clone()
    copy = tensor.new_empty(0).set_(storage, start, tensor.shape, tensor.stride())
    return negated_view(copy) if tensor.is_neg() else copy


def describe(function: Callable[..., object]) -> str:
    """Return the one-line description of a distribution, layout, output gradient or parameters."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def make_inputs(case: Case) -> Inputs:
    """Draw the inputs of ``case`` on the CPU, and lay them out on its device.

    Raises:
        UnrepresentableError: a finite value of the distribution is infinite in the case's dtype.
    """
    dtype, param_dtype = (getattr(torch, name) for name in (case.dtype, case.param_dtype))
    limits = torch.finfo(dtype)
    generator = _generator(case, "x", case.distribution)
    drawn = DISTRIBUTIONS[case.distribution](Draw(case.rows, case.hidden, limits, generator))
    largest = float(drawn.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if drawn.numel() else 0.0
    if largest > limits.max:
        raise UnrepresentableError(
            f"{case.distribution} reaches {largest:.3g}, "
            f"beyond the largest {case.dtype}, {limits.max:.5g}"
        )
    x = drawn.to(dtype)
    weight, bias = _parameters(case, param_dtype)
    dy = None
    if case.direction is not Direction.FORWARD:
        factors = torch.ones(case.hidden) if weight is None else weight
        grad_output = GRAD_OUTPUTS[case.grad_output]
        drawn = grad_output(x.double(), factors.double(), _generator(case, "dy"))
        dy = torch.where(drawn.isinf(), drawn, drawn.clamp(-limits.max, limits.max)).to(dtype)
    return laid_out(case, x, weight, bias, dy)


def laid_out(
    case: Case, x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor | None
) -> Inputs:
    """Return inputs with these values, which have the dtypes of the case, in its shape and layout.

    They are laid out on the device of the case: a copy to a device keeps no gaps between elements.
    """
    of_x = LAYOUTS[case.layout]
    if dy is not None:
        of_dy = of_x if case.layout in OF_DY_TOO else LAYOUTS["contiguous"]
        of_dy = LAYOUT_OF.get(case.grad_output, of_dy)
        dy = of_dy(dy.reshape(case.shape).to(case.device))
    is_layout = case.parameters in LAYOUTS or case.parameters.startswith("offset_")
    lay = LAYOUTS[case.parameters if is_layout else "contiguous"]
    lay_bias = partial(lay, drawn_from="bias") if lay is any_view else lay
    weight, bias = (
        None if values is None else of(values.reshape(case.normalized_shape).to(case.device))
        for values, of in ((weight, lay), (bias, lay_bias))
    )
    return Inputs(x=of_x(x.reshape(case.shape).to(case.device)), weight=weight, bias=bias, dy=dy)


def _parameters(case: Case, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Draw weight and bias, (hidden,); None for what the case does not have."""
    drawn = (
        standard_normal(1, case.hidden, _generator(case, name))[0] for name in ("weight", "bias")
    )
    weight, bias = (values.to(dtype) for values in PARAMETERS[case.parameters](*drawn))
    return (
        weight if case.affine in {Affine.BOTH, Affine.WEIGHT} else None,
        bias if case.affine in {Affine.BOTH, Affine.BIAS} else None,
    )


def _generator(case: Case, *stream: str) -> Generator:
    """Make a separate generator for each tensor, so that none depends on the size of another."""
    key = "/".join([str(case.seed), *map(str, case.shape), *stream])
    seed = int.from_bytes(sha256(key.encode()).digest()[:8]) >> 1
    return Generator().manual_seed(seed)

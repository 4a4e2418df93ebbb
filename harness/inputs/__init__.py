"""The tensors of a case: named distributions, layouts and upstream gradients.

Values are drawn in float64 from the case's seed and rounded once to the dtype under test; the
exact reference starts from the rounded values. Equal cases draw equal inputs, whatever the
implementation, device, direction or layout. Weight and bias are always random: with ones and
zeros half the mistakes in using them are invisible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import prod

import torch
from torch import Generator, Tensor

from harness.inputs.distributions import DISTRIBUTIONS, standard_normal
from harness.inputs.layouts import LAYOUTS
from harness.inputs.upstream import UPSTREAMS
from harness.records import Affine, Case, Direction

__all__ = [
    "DISTRIBUTIONS",
    "LAYOUTS",
    "UPSTREAMS",
    "Inputs",
    "UnrepresentableError",
    "describe",
    "make_inputs",
]


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
    """Gradient of y, of x's shape and dtype; None for a forward case."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that there are."""
        return tuple(each for each in (self.x, self.weight, self.bias, self.dy) if each is not None)


def describe(function: Callable[..., Tensor]) -> str:
    """First line of what a distribution, a layout or an upstream says of itself."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def make_inputs(case: Case) -> Inputs:
    """Draw the inputs of ``case`` on the CPU, and lay them out on its device.

    Raises:
        UnrepresentableError: a finite value of the distribution is infinite in the case's dtype.
    """
    dtype, param_dtype = (getattr(torch, name) for name in (case.dtype, case.param_dtype))
    limits = torch.finfo(dtype)
    drawn = DISTRIBUTIONS[case.distribution](
        case.rows, case.hidden, limits, _generator(case, "x", case.distribution)
    )
    largest = float(drawn.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if drawn.numel() else 0.0
    if largest > limits.max:
        raise UnrepresentableError(
            f"{case.distribution} reaches {largest:.3g}, "
            f"beyond the largest {case.dtype}, {limits.max:.5g}"
        )
    # laid out there: a copy to a device keeps no gaps between elements
    x = LAYOUTS[case.layout](drawn.to(dtype).reshape(case.shape).to(case.device))
    dy = None
    if case.direction is not Direction.FORWARD:
        upstream = UPSTREAMS[case.upstream]
        drawn = upstream(case.rows, case.hidden, _generator(case, "dy"))
        dy = drawn.to(dtype).reshape(case.shape).to(case.device)
    return Inputs(
        x=x,
        weight=_parameter(case, "weight", param_dtype, Affine.WEIGHT),
        bias=_parameter(case, "bias", param_dtype, Affine.BIAS),
        dy=dy,
    )


def _parameter(case: Case, name: str, dtype: torch.dtype, alone: Affine) -> Tensor | None:
    if case.affine not in {Affine.BOTH, alone}:
        return None
    drawn = standard_normal(1, prod(case.normalized_shape), _generator(case, name))
    return drawn.to(dtype).reshape(case.normalized_shape).to(case.device)


def _generator(case: Case, *stream: str) -> Generator:
    """Make a generator of its own for each tensor, so that none depends on another's size."""
    key = "/".join([str(case.seed), *map(str, case.shape), *stream])
    seed = int.from_bytes(sha256(key.encode()).digest()[:8]) >> 1
    return Generator().manual_seed(seed)

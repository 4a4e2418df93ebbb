"""Named input distributions and memory layouts, each saying what it breaks.

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

from harness.records import Affine, Case, Direction

__all__ = [
    "DISTRIBUTIONS",
    "LAYOUTS",
    "Inputs",
    "UnrepresentableError",
    "describe",
    "make_inputs",
]

Distribution = Callable[[int, int, torch.finfo, Generator], Tensor]
"""(rows, hidden, limits of the dtype under test, generator) -> float64 tensor (rows, hidden)."""


class UnrepresentableError(Exception):
    """The distribution has values that the dtype cannot hold."""


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


# --- distributions: (rows, hidden, limits, generator) -> float64 --------------------------------


def _normal(rows: int, hidden: int, generator: Generator) -> Tensor:
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator)


def _uniform(rows: int, hidden: int, generator: Generator) -> Tensor:
    return torch.rand(rows, hidden, dtype=torch.float64, generator=generator)


def _one_in(x: Tensor, column: int, value: float) -> Tensor:
    """Put ``value`` in one column of every row; nowhere if rows are empty."""
    if x.shape[1]:
        x[:, column % x.shape[1]] = value
    return x


def normal(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Standard normal: the benign case every implementation should get right."""
    return _normal(rows, hidden, generator)


def uniform(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Uniform on [0, 1): a mean of 1.7 standard deviations, benign still."""
    return _uniform(rows, hidden, generator)


def _offset(exponent: int) -> Distribution:
    def offset(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
        return _normal(rows, hidden, generator) + 10.0**exponent

    offset.__name__ = f"offset_1e{exponent}"
    offset.__doc__ = (
        f"Standard normal + 1e{exponent}: condition number 1e{exponent}; one-pass loses its "
        "square in digits, a stored mean loses it once."
    )
    return offset


def tiny_variance(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 1e-4: variance far below eps, so eps's value and place decide the result."""
    return _normal(rows, hidden, generator) * 1e-4


def constant(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Every element 0.1: variance 0, y must equal bias; 0.1 has no exact mean in binary."""
    return torch.full((rows, hidden), 0.1, dtype=torch.float64)


def outlier(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal with one element of 1e4 in the middle: one value makes all of the variance."""
    return _one_in(_normal(rows, hidden, generator), hidden // 2, 1e4)


def outlier_first(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal with 1e4 as its first element: a pivot taken from there is a bad one."""
    return _one_in(_normal(rows, hidden, generator), 0, 1e4)


def ramp_offset(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Sorted values from 1000 to 1001: rounding errors of a running sum all point one way."""
    ramp = torch.linspace(1000, 1001, hidden, dtype=torch.float64)
    return ramp + _uniform(rows, 1, generator)


def transformer_outlier(
    rows: int, hidden: int, limits: torch.finfo, generator: Generator
) -> Tensor:
    """0.5 normal + 0.02 with two channels at 60 and -35: what a transformer's residual holds."""
    x = _one_in(_normal(rows, hidden, generator) * 0.5 + 0.02, 7, 60.0)
    return _one_in(x, hidden // 2 + 3, -35.0)


def ulp_comb(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """c + {2, 1, 3, 1, 3, ...} with c the largest power of two whose neighbours are 1 apart.

    NIST StRD's NumAcc series made exact in every dtype: the mean is c + 2 and, with an odd
    number of elements, the variance (N - 1)/N.
    """
    comb = torch.ones(hidden, dtype=torch.float64)
    comb[1::2] = 3
    comb[:1] = 2
    return (comb + 1 / limits.eps).expand(rows, hidden)


DISTRIBUTIONS: dict[str, Distribution] = {
    each.__name__: each
    for each in (
        normal,
        uniform,
        *(_offset(exponent) for exponent in range(1, 7)),
        tiny_variance,
        constant,
        outlier,
        outlier_first,
        ramp_offset,
        transformer_outlier,
        ulp_comb,
    )
}


# --- layouts: the same values elsewhere in memory ------------------------------------------------


def contiguous(x: Tensor) -> Tensor:
    """Row after row, aligned: what kernels are written for."""
    return x.contiguous()


def storage_offset(x: Tensor) -> Tensor:
    """One element into its storage: vector loads are not aligned."""
    buffer = x.new_empty(x.numel() + 1)
    return buffer[1:].view(x.shape).copy_(x)


def padded_rows(x: Tensor) -> Tensor:
    """Three unused elements, NaN, after each row: whoever reads the padding is found out."""
    buffer = x.new_full((*x.shape[:-1], x.shape[-1] + 3), float("nan"))
    return buffer[..., : x.shape[-1]].copy_(x)


def transposed(x: Tensor) -> Tensor:
    """Last axis with the largest stride: elements of a row are far apart."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def every_second(x: Tensor) -> Tensor:
    """Every second element of a buffer whose others are NaN: the innermost stride is 2."""
    buffer = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    return buffer[..., ::2].copy_(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    each.__name__: each
    for each in (contiguous, storage_offset, padded_rows, transposed, every_second)
}


def describe(function: Callable[..., Tensor]) -> str:
    """First line of what a distribution or a layout says of itself."""
    return (function.__doc__ or "").strip().partition("\n")[0]


# --- inputs of a case ---------------------------------------------------------------------------


def make_inputs(case: Case) -> Inputs:
    """Draw the inputs of ``case`` on the CPU.

    Raises:
        UnrepresentableError: a finite value of the distribution is infinite in the case's dtype.
    """
    dtype, param_dtype = (getattr(torch, name) for name in (case.dtype, case.param_dtype))
    limits = torch.finfo(dtype)
    drawn = DISTRIBUTIONS[case.distribution](
        case.rows, case.hidden, limits, _generator(case, "x", case.distribution)
    )
    if drawn.numel() and not float(drawn.abs().amax()) <= limits.max:
        raise UnrepresentableError(
            f"{case.distribution} reaches {float(drawn.abs().amax()):.3g}, "
            f"beyond the largest {case.dtype}, {limits.max:.5g}"
        )
    x = LAYOUTS[case.layout](drawn.to(dtype).reshape(case.shape))
    dy = None
    if case.direction is not Direction.FORWARD:
        # + 0.1: with a mean of zero, sums over many rows stay small and hide a narrow accumulator
        dy = (_normal(case.rows, case.hidden, _generator(case, "dy")) + 0.1).to(dtype)
        dy = dy.reshape(case.shape)
    return Inputs(
        x=x,
        weight=_parameter(case, "weight", param_dtype, Affine.WEIGHT),
        bias=_parameter(case, "bias", param_dtype, Affine.BIAS),
        dy=dy,
    )


def _parameter(case: Case, name: str, dtype: torch.dtype, alone: Affine) -> Tensor | None:
    if case.affine not in {Affine.BOTH, alone}:
        return None
    drawn = _normal(1, prod(case.normalized_shape), _generator(case, name))
    return drawn.to(dtype).reshape(case.normalized_shape)


def _generator(case: Case, *stream: str) -> Generator:
    """Make a generator of its own for each tensor, so that none depends on another's size."""
    key = "/".join([str(case.seed), *map(str, case.shape), *stream])
    seed = int.from_bytes(sha256(key.encode()).digest()[:8]) >> 1
    return Generator().manual_seed(seed)

"""Recognise which normalisation a function computes, and with which eps, from its results.

This identifies a function and does not verify it. A result is compared with each known
normalisation in float64, and the nearest is named if it is within 10 %. A LayerNorm with a wrong
variance is recognised as a LayerNorm here, and found wrong by the verification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import torch
from torch import Tensor

from implementations.contract import Param

LAYER_NORM = "LayerNorm"

_NEAR = 0.1  # relative to the norm of y; the known ones differ by at least 0.3 on these inputs
_GROUPS = (2, 4, 8, 16, 32)  # usual numbers of groups


def sample(*shape: int, seed: int = 0) -> Tensor:
    """Draw float64 values whose mean and variance differ along every axis."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    for axis, size in enumerate(shape):
        steps = torch.linspace(0.5, 1.5, size, dtype=torch.float64)
        along = steps.reshape([-1 if other == axis else 1 for other in range(len(shape))])
        x = x * along + along
    return x


def recognise(y: Tensor, x: Tensor, axis: int, weight: Param, bias: Param) -> str | None:
    """Return the name of the normalisation of ``x`` that is nearest to ``y``.

    Args:
        y: of x's shape.
        x: float64, the input.
        axis: the axis of the features, 1 or -1; weight and bias belong to it.
        weight: float64, (features,), or None for no scale.
        bias: float64, (features,), or None for no shift.

    Returns:
        ``"LayerNorm"`` for one over ``axis``, or another name; None if none is near.
    """
    y = y.double()
    if y.shape != x.shape or not bool(torch.isfinite(y).all()):
        return None
    distances = {
        name: float(torch.linalg.vector_norm(y - known) / torch.linalg.vector_norm(known))
        for name, known in _known(x, axis, weight, bias)
    }
    name = min(distances, key=lambda known: distances[known])
    return name if distances[name] < _NEAR else None


def _known(x: Tensor, axis: int, weight: Param, bias: Param) -> Iterator[tuple[str, Tensor]]:
    """Yield each known normalisation of ``x`` by name."""
    shape = [1] * x.dim()
    shape[axis] = -1
    scale = torch.ones(1) if weight is None else weight
    shift = torch.zeros(1) if bias is None else bias
    scale, shift = (parameter.double().reshape(shape) for parameter in (scale, shift))
    for name, normalised in _normalised(x, axis, weight is not None or bias is not None):
        yield name, normalised * scale + shift
    if weight is not None:
        layer_norm = _standardised(x, (axis,))
        yield "LayerNorm with 1 + weight", layer_norm * (1 + scale) + shift
        yield "LayerNorm without its weight", layer_norm + shift
        yield "RMSNorm with 1 + weight", _divided_by_rms(x, axis) * (1 + scale) + shift
        yield "RMSNorm without its weight", _divided_by_rms(x, axis) + shift
        yield "Identity", x
        if prod(scale.shape) > 1:
            yield (
                "LayerNorm with one weight for all features",
                (layer_norm * scale.flatten()[0] + shift.flatten()[0]),
            )
    if bias is not None:
        yield "LayerNorm without its bias", _standardised(x, (axis,)) * scale


def _normalised(x: Tensor, axis: int, has_parameters: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield each known normalisation before scale and shift."""
    feature = axis % x.dim()
    others = [other for other in range(x.dim()) if other != feature]
    yield LAYER_NORM, _standardised(x, (feature,))
    yield "RMSNorm", _divided_by_rms(x, axis)
    yield "BatchNorm", _standardised(x, tuple(others))
    if x.dim() > 2:
        yield "InstanceNorm", _standardised(x, tuple(others[1:]))
        one_group = "GroupNorm with 1 group"
        name = (
            one_group if has_parameters else f"LayerNorm over all axes but the first ({one_group})"
        )
        yield name, _standardised(x, tuple(range(1, x.dim())))
    else:
        yield "LayerNorm of the whole tensor", _standardised(x, (0, 1))
    if feature == 1:
        for groups in _GROUPS:
            if x.shape[1] % groups == 0 and groups < x.shape[1]:
                split = x.unflatten(1, (groups, -1))
                axes = tuple(range(2, split.dim()))
                yield f"GroupNorm with {groups} groups", _standardised(split, axes).flatten(1, 2)
    size = x.shape[feature]
    yield "division by the length (L2)", _divided_by_rms(x, axis) / size**0.5
    yield "division by the standard deviation", x / x.std(feature, keepdim=True, correction=0)
    yield "removal of the mean", x - x.mean(feature, keepdim=True)
    yield "scale and shift without normalisation" if has_parameters else "Identity", x


def _standardised(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    deviation = x - x.mean(axes, keepdim=True)
    return deviation / deviation.square().mean(axes, keepdim=True).sqrt()


def _divided_by_rms(x: Tensor, axis: int) -> Tensor:
    return x / x.square().mean(axis, keepdim=True).sqrt()


def feature_last(x: Tensor, axis: int) -> Tensor:
    """Return ``x`` with the axis of the features last."""
    return x if axis == -1 else x.movedim(axis, -1)


def measured_eps(
    call: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    axis: int,
    weight: Param,
    bias: Param,
    known: tuple[float, ...] = (),
) -> float | None:
    """Return the eps that a LayerNorm adds to the variance, measured from the size of its result.

    For a row with variance v, y = xhat weight / root + bias with root^2 = c + eps / v. c is 1, or
    N / (N - 1) if the LayerNorm divides by N - 1. Two sizes of x determine c and eps. Rows are made
    smaller until y falls below 0.9 of its first size, where eps affects the first digit.

    Args:
        call: returns y for an x in float64, which the function may round.
        shape: of x.
        axis: the normalised axis, 1 or -1.
        weight: float64, (features,), or None.
        bias: float64, (features,), or None.
        known: likely values, such as attributes of a module; a measured eps is rounded to them.

    Returns:
        eps, rounded to 2 digits if that is within 0.1 %; 0.0 if rows with a variance of 1e-16 are
        still standardised; None if the results fit no eps.
    """
    xhat = feature_last(_standardised(sample(*shape), (axis,)), axis)
    scale = torch.ones(1) if weight is None else weight.double()
    shift = torch.zeros(1) if bias is None else bias.double()
    full: float | None = None
    for exponent in range(9):
        deviation = 10.0**-exponent
        x = (deviation * xhat).movedim(-1, axis)
        y = feature_last(call(x).double(), axis)
        scaled, expected = (y - shift) * scale, xhat * scale.square()
        size = float((scaled * expected).sum() / expected.square().sum())
        full = size if full is None else full
        if not size > 0:
            return None
        if size < 0.9 * full:
            eps = (1 / size**2 - 1 / full**2) / (1 / deviation**2 - 1)
            return _rounded(eps, known)
    return 0.0


def _rounded(eps: float, known: tuple[float, ...]) -> float:
    """Return the known value within 1 % of ``eps``, or ``eps`` rounded to 2 digits."""
    near = [likely for likely in known if likely and abs(eps / likely - 1) < 1e-2]
    if near:
        return min(near, key=lambda likely: abs(eps / likely - 1))
    two_digits = float(f"{eps:.1e}")
    return two_digits if abs(eps / two_digits - 1) < 1e-3 else eps

"""What a target of unknown form computes, found by experiment, and what a caller may say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from implementations.contract import UnsupportedError
from implementations.targets.attempt import Raised, attempt
from implementations.targets.recognise import (
    LAYER_NORM,
    feature_last,
    measured_eps,
    recognise,
    sample,
)

__all__ = ["FEATURES_LAST", "CallOptions", "Meaning", "Probe", "find_meaning"]

_LAST = ((2, 3, 5), (3, 5))  # leading axes of an x whose features are last
_ROWS = (7,)  # of an x of two axes, whose last axis is axis 1 too
_SPATIAL = ((5, 7), (5,), (3, 5, 7))  # axes behind the channels of an x of channels first
FEATURES_LAST = -1
_FITS = 0.03  # of y: a variance of N - 1 changes it by 0.016 of 32 features, bfloat16 by 0.008


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a user says of a target where an experiment cannot tell; None and empty say nothing."""

    eps: float | None = None
    """The eps that it adds, of a target that takes none."""
    normalized_dims: int | None = None
    """How many trailing axes it normalises over."""
    channels_first: bool = False
    """Whether it normalises over axis 1, of an x such as (batch, channels, height, width)."""
    init: Mapping[str, object] = field(default_factory=dict)
    """Arguments of its constructor, or of the function, by name."""

    def as_argument(self) -> str:
        """Return it as an argument in Python source, after a comma; empty if it says nothing."""
        given = {
            "eps": self.eps,
            "normalized_dims": self.normalized_dims,
            "channels_first": self.channels_first or None,
            "init": dict(self.init) or None,
        }
        told = ", ".join(f"{name}={each!r}" for name, each in given.items() if each is not None)
        return f", options=CallOptions({told})" if told else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a target computes of an x."""

    normalization: str | None
    """The nearest known normalisation, such as "RMSNorm"; None if none is near."""
    channels_first: bool
    """Whether the features are axis 1 rather than the last."""
    takes_eps: bool
    """Whether a caller can choose eps."""
    eps: float | None
    """The eps that it adds, if a caller cannot choose it and it could be measured."""
    default_eps: float | None
    """The eps that it adds where the caller gives none; None if that could not be measured."""
    also_channels_first: bool = False
    """Whether it normalises axis 1 too, of an x whose channels are there."""
    width: int | None = None
    """The number of features that it takes, of a function that raises for others."""
    spatial_counts: tuple[int, ...] = ()
    """How many axes it takes behind the channels, if these are first."""
    leading: tuple[int, ...]
    """Leading axes, or axes behind the channels, of an x that it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How an experiment calls a target, with its own eps."""

    call: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
    """Returns y for x, weight and bias; weight and bias are flat."""
    shape: tuple[int, ...]
    """The normalized shape."""
    has_weight: bool
    has_bias: bool
    takes_eps: bool
    """Whether a caller can choose eps."""
    known_eps: tuple[float, ...] = ()
    """Values that its eps may be."""
    is_module: bool = False
    """Whether it is a module, whose features may be on either axis."""
    is_guess: bool = False
    """Whether the normalized shape was guessed from the shape of a parameter."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float64)
    """Tried in this order; the first in which it returns something."""


class _NoTensorError(TypeError):
    """A call returned something else than a tensor: it answers, however wrongly."""


def find_meaning(probe: Probe, options: CallOptions) -> Meaning:
    """Call a target on inputs of several shapes, and say what it computes.

    Raises:
        UnsupportedError: it raises for each of them; the message has the first reason.
    """
    features = prod(probe.shape)
    weight = sample(features, seed=1) if probe.has_weight else None
    bias = sample(features, seed=2) if probe.has_bias else None
    nearest: tuple[str | None, int, tuple[int, ...], torch.dtype] | None = None
    first_error: str | None = None
    for dtype in probe.dtypes:
        for axis, sizes in _ways(probe, options):
            x = sample(*_shape(axis, sizes, probe.shape))
            y = attempt(partial(_called, probe, x, weight, bias, dtype))
            if isinstance(y, Raised):
                if isinstance(y.error, _NoTensorError):
                    nearest = nearest or (None, axis, sizes, dtype)
                first_error = first_error or y.reason
                continue
            name, axis = _recognised(y, x, axis, probe, weight, bias)
            if y.shape != x.shape:
                first_error = first_error or (
                    f"for an x of shape {list(x.shape)} it returned one of shape {list(y.shape)}"
                )
                if probe.is_guess:
                    continue
            nearest = (name, axis, sizes, dtype) if nearest is None else nearest
            if name is not None:  # of few axes, one normalisation is like another: the first counts
                return _meaning(probe, options, (name, axis, sizes, dtype), weight, bias)
        if nearest is not None:
            return _meaning(probe, options, nearest, weight, bias)
    raise UnsupportedError(
        f"it raises for every x tried, of 2 to 5 axes with {features} features last or on axis 1; "
        f"first: {first_error}"
    )


def _normalises_channels_too(
    probe: Probe, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None
) -> bool:
    """Whether a target of features last takes them on axis 1 as well, by the shape of x alone."""
    if weight is None or len(probe.shape) > 1:
        return False
    for sizes in _SPATIAL:
        x = sample(*_shape(1, sizes, probe.shape))
        y = attempt(partial(_called, probe, x, weight, bias, dtype))
        if isinstance(y, Tensor) and recognise(y, x, 1, weight, bias) == LAYER_NORM:
            return True
    return False


def _spatial_counts(
    probe: Probe, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None
) -> tuple[int, ...]:
    """Return how many axes a target of channels first takes behind the channels."""
    return tuple(
        len(sizes)
        for sizes in sorted(_SPATIAL, key=len)
        if isinstance(
            attempt(
                partial(_called, probe, sample(*_shape(1, sizes, probe.shape)), weight, bias, dtype)
            ),
            Tensor,
        )
    )


def _ways(probe: Probe, options: CallOptions) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the axis of the features, and the other axes, of each x to try."""
    if not options.channels_first:
        yield from ((FEATURES_LAST, sizes) for sizes in _LAST)
    if len(probe.shape) == 1:
        yield from ((1, sizes) for sizes in _SPATIAL)
    if not options.channels_first:
        yield FEATURES_LAST, _ROWS


def _shape(axis: int, sizes: tuple[int, ...], features: tuple[int, ...]) -> tuple[int, ...]:
    return (*sizes, *features) if axis == FEATURES_LAST else (2, *features, *sizes)


def _called(
    probe: Probe,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    given = (
        None if each is None else each.to(device=probe.device, dtype=dtype)
        for each in (x, weight, bias)
    )
    x_given, weight_given, bias_given = given
    assert x_given is not None  # x is always there
    with torch.no_grad():
        y = probe.call(x_given, weight_given, bias_given)
    if not isinstance(y, Tensor) or y.layout is not torch.strided:
        raise _NoTensorError(f"returned {type(y).__name__}, expected a dense torch.Tensor")
    return y.double().cpu()


def _recognised(
    y: Tensor, x: Tensor, axis: int, probe: Probe, weight: Tensor | None, bias: Tensor | None
) -> tuple[str | None, int]:
    """Name the nearest normalisation, and the axis of its features."""
    count = len(probe.shape)
    if axis == FEATURES_LAST and count > 1:
        flat = x.flatten(-count)
        y = y.flatten(-count) if y.shape == x.shape else y
        return recognise(y, flat, axis, weight, bias), axis
    name = recognise(y, x, axis, weight, bias)
    if name is None and axis == FEATURES_LAST and x.dim() > 2 and weight is None and bias is None:
        # without parameters nothing says which axis the features are on
        return recognise(y, x, 1, None, None), 1
    return name, axis


def _meaning(
    probe: Probe,
    options: CallOptions,
    found: tuple[str | None, int, tuple[int, ...], torch.dtype],
    weight: Tensor | None,
    bias: Tensor | None,
) -> Meaning:
    name, axis, sizes, dtype = found
    if axis == 1 and sizes in {*_LAST, _ROWS}:  # of a target without parameters: any axis 1 will do
        sizes = _SPATIAL[0]
    default_eps = options.eps
    if default_eps is None and name == LAYER_NORM:
        default_eps = _default_eps(probe, axis, sizes, dtype, weight, bias)
    return Meaning(
        normalization=name,
        channels_first=axis == 1,
        also_channels_first=axis == FEATURES_LAST
        and probe.is_module
        and _normalises_channels_too(probe, dtype, weight, bias),
        spatial_counts=_spatial_counts(probe, dtype, weight, bias) if axis == 1 else (),
        takes_eps=probe.takes_eps,
        eps=None if probe.takes_eps else default_eps,
        default_eps=default_eps,
        leading=sizes,
    )


def _default_eps(
    probe: Probe,
    axis: int,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    weight: Tensor | None,
    bias: Tensor | None,
) -> float | None:
    shape = _shape(axis, sizes, (prod(probe.shape),))

    def call(x: Tensor) -> Tensor:
        given = x if axis == 1 else x.unflatten(-1, probe.shape)
        y = _called(probe, given, weight, bias, dtype)
        return y if axis == 1 else y.flatten(-len(probe.shape))

    found = attempt(lambda: measured_eps(call, shape, axis, weight, bias, probe.known_eps))
    if isinstance(found, Raised) or found is None:
        return None
    # what is no LayerNorm at the eps measured has none
    x = sample(*shape, seed=3)
    y = attempt(partial(call, x))
    if not isinstance(y, Tensor):
        return None
    moved, y = feature_last(x, axis), feature_last(y, axis)
    like = functional.layer_norm(moved, moved.shape[-1:], weight, bias, found)
    return found if (y - like).norm() <= _FITS * like.norm() else None

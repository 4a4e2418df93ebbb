"""Find by experiment what a target computes, as far as the user has not declared it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from implementations.contract import Param, UnsupportedError
from implementations.targets.attempt import Raised, attempt
from implementations.targets.recognise import (
    LAYER_NORM,
    feature_last,
    measured_eps,
    recognise,
    sample,
)

_LAST = ((2, 3, 5), (3, 5))  # leading axes of an x whose features are last
_ROWS = (7,)  # leading axis of an x of two axes, whose last axis is also axis 1
_SPATIAL = ((5, 7), (5,), (3, 5, 7))  # axes behind the channels of a channels-first x
_FEATURES_LAST = -1
_DTYPES = (torch.float32, torch.bfloat16, torch.float64)  # tried until a call returns
# relative error of y; with 32 features, dividing by N - 1 is 0.016 off, and bfloat16 0.008
_FITS = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a user declares about a target; None and empty values declare nothing."""

    eps: float | None = None
    """The eps of a target that has no parameter for it."""
    normalized_dims: int | None = None
    """How many trailing axes the target normalises over."""
    channels_first: bool = False
    """Whether the target normalises axis 1 of an x such as (batch, channels, height, width)."""
    init: Mapping[str, object] = field(default_factory=dict)
    """Arguments of its constructor, or of the function, by name."""

    def as_argument(self) -> str:
        """Return Python source for a keyword argument, after a comma; "" if all is default."""
        given = {
            "eps": self.eps,
            "normalized_dims": self.normalized_dims,
            "channels_first": self.channels_first or None,
            "init": dict(self.init) or None,
        }
        arguments = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f", options=CallOptions({', '.join(arguments)})" if arguments else ""


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
    """The fixed eps of a target whose caller cannot choose it; None if it could not be measured."""
    default_eps: float | None
    """The eps used if the caller gives none; None if it could not be measured."""
    also_channels_first: bool = False
    """Whether an x with its channels on axis 1 is normalised over them too."""
    width: int | None = None
    """The only number of features accepted, of a function that raises for the first one tried."""
    spatial_counts: tuple[int, ...] = ()
    """How many axes a channels-first target accepts behind the channels."""
    leading: tuple[int, ...]
    """Leading axes, or axes behind the channels, of an x that the target accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A target as an experiment calls it, with the target's own eps."""

    call: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
    """Returns y for x, weight and bias; weight and bias have one axis."""
    shape: tuple[int, ...]
    """The normalized shape."""
    has_weight: bool
    has_bias: bool
    takes_eps: bool
    """Whether a caller can choose eps."""
    known_eps: tuple[float, ...] = ()
    """Likely values of eps, such as attributes of a module."""
    is_module: bool = False
    """Whether the target is a module, whose features may be on either axis."""
    is_guess: bool = False
    """Whether the normalized shape was guessed from the shape of a parameter."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def parameters(self) -> tuple[Param, Param]:
        """Weight and bias, (features,) in float64; None if the target has none."""
        features = prod(self.shape)
        weight = sample(features, seed=1) if self.has_weight else None
        return weight, sample(features, seed=2) if self.has_bias else None

    def y(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Call the target in ``dtype``; return y in float64 on the CPU."""
        weight, bias = (
            None if parameter is None else parameter.to(device=self.device, dtype=dtype)
            for parameter in self.parameters
        )
        with torch.no_grad():
            y = self.call(x.to(device=self.device, dtype=dtype), weight, bias)
        if not isinstance(y, Tensor) or y.layout is not torch.strided:
            raise _NoTensorError(f"returned {type(y).__name__}, expected a dense torch.Tensor")
        return y.double().cpu()


class _NoTensorError(TypeError):
    """A call returned something other than a dense tensor."""


class _Way(NamedTuple):
    """A form of x that the target accepts, and what it computed."""

    normalization: str | None
    axis: int
    """The axis of the features: 1 or -1."""
    others: tuple[int, ...]
    """Sizes of the other axes."""
    dtype: torch.dtype


def find_meaning(probe: Probe, options: CallOptions) -> Meaning:
    """Call a target on inputs of several shapes, and return what it computes.

    Raises:
        UnsupportedError: it raises for each of them; the message quotes the first exception.
    """
    accepted: _Way | None = None
    first_error: str | None = None
    for dtype in _DTYPES:
        for axis, others in _ways(probe, options):
            x = sample(*_shape(axis, others, probe.shape))
            y = attempt(partial(probe.y, x, dtype))
            if isinstance(y, Raised):
                if isinstance(y.error, _NoTensorError):
                    accepted = accepted or _Way(None, axis, others, dtype)
                first_error = first_error or y.reason
                continue
            way = _Way(*_recognised(y, x, axis, probe), others, dtype)
            if y.shape != x.shape:
                first_error = first_error or (
                    f"for an x of shape {list(x.shape)} it returned one of shape {list(y.shape)}"
                )
                if probe.is_guess:
                    continue
            accepted = accepted or way
            # the first match counts: with few axes, different normalisations coincide
            if way.normalization is not None:
                return _meaning(probe, options, way)
        if accepted is not None:
            return _meaning(probe, options, accepted)
    raise UnsupportedError(
        f"it raises for every x tried, of 2 to 5 axes with {prod(probe.shape)} features last or on "
        f"axis 1; first: {first_error}"
    )


def _ways(probe: Probe, options: CallOptions) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the axis of the features, and the sizes of the other axes, of each x to try."""
    if not options.channels_first:
        yield from ((_FEATURES_LAST, sizes) for sizes in _LAST)
    if len(probe.shape) == 1:
        yield from ((1, sizes) for sizes in _SPATIAL)
    if not options.channels_first:
        yield _FEATURES_LAST, _ROWS


def _shape(axis: int, sizes: tuple[int, ...], features: tuple[int, ...]) -> tuple[int, ...]:
    return (*sizes, *features) if axis == _FEATURES_LAST else (2, *features, *sizes)


def _recognised(y: Tensor, x: Tensor, axis: int, probe: Probe) -> tuple[str | None, int]:
    """Return the nearest normalisation, and the axis of its features."""
    count = len(probe.shape)
    if axis == _FEATURES_LAST and count > 1:
        flat = x.flatten(-count)
        y = y.flatten(-count) if y.shape == x.shape else y
        return recognise(y, flat, axis, *probe.parameters), axis
    name = recognise(y, x, axis, *probe.parameters)
    has_none = not probe.has_weight and not probe.has_bias
    if name is None and axis == _FEATURES_LAST and x.dim() > 2 and has_none:
        # without parameters, the features may be on axis 1 of this x as well
        return recognise(y, x, 1, None, None), 1
    return name, axis


def _meaning(probe: Probe, options: CallOptions, way: _Way) -> Meaning:
    if way.axis == 1 and way.others in {*_LAST, _ROWS}:  # found without parameters, above
        way = _Way(way.normalization, way.axis, _SPATIAL[0], way.dtype)
    default_eps = options.eps
    if default_eps is None and way.normalization == LAYER_NORM:
        default_eps = _default_eps(probe, way)
    results = _channels_first_results(probe, way.dtype)
    return Meaning(
        normalization=way.normalization,
        channels_first=way.axis == 1,
        also_channels_first=way.axis == _FEATURES_LAST
        and probe.is_module
        and len(probe.shape) == 1
        and probe.has_weight
        and any(recognise(y, x, 1, *probe.parameters) == LAYER_NORM for x, y in results),
        spatial_counts=tuple(sorted(x.dim() - 2 for x, _ in results)) if way.axis == 1 else (),
        takes_eps=probe.takes_eps,
        eps=None if probe.takes_eps else default_eps,
        default_eps=default_eps,
        leading=way.others,
    )


def _channels_first_results(probe: Probe, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each x of (batch, features, *spatial) that the target accepts, and its y.

    An x that it returns as it is counts as declined: the target was not written for it.
    """
    for sizes in _SPATIAL:
        x = sample(*_shape(1, sizes, probe.shape))
        y = attempt(partial(probe.y, x, dtype))
        if isinstance(y, Tensor) and not torch.equal(y, x.to(dtype)):
            yield x, y


def _default_eps(probe: Probe, way: _Way) -> float | None:
    """Measure the eps of a LayerNorm; None if a LayerNorm with that eps has another result."""
    shape = _shape(way.axis, way.others, (prod(probe.shape),))

    def call(x: Tensor) -> Tensor:
        given = x if way.axis == 1 else x.unflatten(-1, probe.shape)
        y = probe.y(given, way.dtype)
        return y if way.axis == 1 else y.flatten(-len(probe.shape))

    eps = attempt(lambda: measured_eps(call, shape, way.axis, *probe.parameters, probe.known_eps))
    if isinstance(eps, Raised) or eps is None:
        return None
    x = sample(*shape, seed=3)
    y = attempt(partial(call, x))
    if not isinstance(y, Tensor):
        return None
    x, y = feature_last(x, way.axis), feature_last(y, way.axis)
    expected = functional.layer_norm(x, x.shape[-1:], *probe.parameters, eps)
    return eps if (y - expected).norm() <= _FITS * expected.norm() else None

"""Find by experiment whether a module of any class computes torch's LayerNorm.

Copies of the module are called. Their results and gradients are compared with those of
``torch.nn.functional.layer_norm`` in float64, within a bound on the rounding error.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import prod

import torch
from torch import Tensor, nn

from implementations.contract import UnsupportedError
from implementations.replacement.converted import Conversion
from implementations.replacement.norm_modules import argument_name, what_it_is
from implementations.replacement.rounding import (
    Problem,
    allowed_gradients,
    allowed_result,
    difference,
)
from implementations.replacement.subject import (
    LOW_DTYPES,
    Subject,
    UnprovenError,
    copied,
    eps_of,
    keeps_dtype,
    leading_taken,
    state_of,
    subject_of,
)
from implementations.targets.attempt import Raised, attempt, first_success
from implementations.targets.from_module import ModuleFunction
from implementations.targets.module_parameters import ParameterNames, known_eps, parameter_names
from implementations.targets.recognise import LAYER_NORM, recognise, sample

_CHANNELS = "normalises over the channel axis (axis 1)"
_SMALL_IN_LOW = 0.03  # standard deviation of small rows; its square is normal in float16


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """The LayerNorm that a module computes."""

    normalized_shape: tuple[int, ...]
    eps: float
    conversion: Conversion


def prove(module: nn.Module, device: torch.device, dtype: torch.dtype) -> Proven:
    """Return the LayerNorm over trailing axes that ``module`` computes in both of its modes.

    Args:
        module: of any class; neither called nor changed.
        device: where to call the copies.
        dtype: of the x that the module receives in its model.

    Raises:
        UnprovenError: it computes none, or could not be called.
    """
    with _undisturbed(device):
        proven = attempt(lambda: _proven(copied(module, device), device, dtype))
    if not isinstance(proven, Raised):
        return proven
    if isinstance(proven.error, UnprovenError):
        raise proven.error
    raise UnprovenError(f"could not be tried: {proven.reason}") from proven.error


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Leave the caller's modes, random state and warning filters, and restore them."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.device("cpu"))
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _proven(original: nn.Module, device: torch.device, dtype: torch.dtype) -> Proven:
    shape = ModuleFunction(original).normalized_shape
    if shape is None:
        name = _recognised(original, device)
        if name is not None and name != LAYER_NORM:
            raise UnprovenError(what_it_is(name))
        raise UnprovenError("accepts an x of any size, so its normalized_shape is unknown")
    if prod(shape) == 1:
        raise UnprovenError("has one feature, for which a LayerNorm returns only its bias")
    tried = (
        partial(_proven_with, original, names, shape, device, dtype)
        for names in _assignments(original, shape)
    )
    return first_success(tried, UnprovenError)


def _assignments(original: nn.Module, shape: tuple[int, ...]) -> Iterator[ParameterNames]:
    """Yield each assignment of parameters to weight and bias, the likeliest first."""
    named = parameter_names(original, shape)
    empty = [role for role in ("weight", "bias") if getattr(named, role) is None]
    if len(named.others) > len(empty):
        raise UnprovenError(f"has more than a weight and a bias: {', '.join(named.others)}")
    for roles in permutations(empty, len(named.others)):
        names = {"weight": named.weight, "bias": named.bias}
        names |= dict(zip(roles, named.others, strict=True))
        yield ParameterNames(names["weight"], names["bias"])


def _proven_with(
    original: nn.Module,
    names: ParameterNames,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Proven:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    subject = subject_of(original, names, shape, wide, device)
    before = state_of(subject.module)
    leading, reason = leading_taken(subject)
    if not leading:
        raise UnprovenError(_nearest(original, subject, device) or reason)
    eps = eps_of(subject, leading[0])
    for training in (subject.module.training, not subject.module.training):
        subject.module.train(training)
        try:
            _compare(subject, leading, eps)
        except UnprovenError as error:
            if training != original.training:
                mode = "training" if training else "evaluation"
                raise UnprovenError(f"in {mode} mode it {error}") from error
            raise UnprovenError(_nearest(original, subject, device) or str(error)) from error
    after = state_of(subject.module)
    if changed := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        raise UnprovenError(f"its forward changes its attribute {', '.join(changed)}")
    if dtype in LOW_DTYPES:
        own = subject_of(original, names, shape, dtype, device)
        _compare_results(own, leading[0], eps, (1.0, 30.0, _SMALL_IN_LOW))
    conversion = Conversion(
        weight=names.weight,
        bias=names.bias,
        keeps_dtype=wide == torch.float32 and keeps_dtype(subject, leading[0]),
        argument=argument_name(original),
    )
    return Proven(normalized_shape=shape, eps=eps, conversion=conversion)


# --- comparing ------------------------------------------------------------------------------------


def _compare(subject: Subject, leading: list[tuple[int, ...]], eps: float) -> None:
    """Compare results for every x that is accepted, and gradients for the first.

    Raises:
        UnprovenError: something differs; the message continues "in training mode it".
    """
    small = eps**0.5 or 1.0  # with this standard deviation, eps is half of variance + eps
    for axes in leading:
        _compare_results(subject, axes, eps, (1.0, 30.0, small, 3 * small))
    if len(subject.shape) == 1 and all(len(axes) == 1 for axes in leading):
        _refuse_channels(subject)
    _compare_gradients(subject, leading[0], eps, (1.0, 30.0, small))


@torch.no_grad()
def _compare_results(
    subject: Subject, leading: tuple[int, ...], eps: float, scales: tuple[float, ...]
) -> None:
    x = subject.given(leading, scales)
    given = x.clone()
    y = subject.y(given)
    if not torch.equal(given, x):
        raise UnprovenError("changes its x in place")
    if y.shape != x.shape:
        raise UnprovenError(f"returns shape {list(y.shape)} for an x of {list(x.shape)}")
    if y.dtype != x.dtype:
        raise UnprovenError(f"returns {y.dtype} for an x in {x.dtype}")
    problem = subject.problem(x, eps)
    allowed = allowed_result(problem, subject.dtype)
    if found := difference(y, problem.y, allowed):
        raise UnprovenError(_explained(subject, problem, y, allowed, found))


def _refuse_channels(subject: Subject) -> None:
    """Refuse a module that accepted only an x of two axes, and normalises the channels of images.

    With two axes, the last axis is axis 1, the channel axis. Modules that accept more axes have
    been compared on those; a kernel that checks no shape must not receive these images.
    """
    (features,) = subject.shape
    weight, bias = subject.parameters()
    for sizes in ((3, 5), (5,)):
        x = sample(2, features, *sizes)
        with torch.no_grad():
            given = x.to(device=subject.device, dtype=subject.dtype)
            y = attempt(partial(subject.y, given))
        if isinstance(y, Raised):
            continue
        if recognise(y.cpu(), x, 1, weight, bias) is not None:
            raise UnprovenError(_CHANNELS)


def _compare_gradients(
    subject: Subject, leading: tuple[int, ...], eps: float, scales: tuple[float, ...]
) -> None:
    x = subject.given(leading, scales).requires_grad_()
    inputs = {"x": x, "its weight": subject.weight, "its bias": subject.bias}
    present = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    y = subject.y(x)
    grad_output = subject.given(leading, (1.0,))
    if not y.requires_grad:
        raise UnprovenError("gives no gradient")
    gradients = torch.autograd.grad(y, list(present.values()), grad_output, allow_unused=True)
    problem = subject.problem(x.detach(), eps)
    exact = allowed_gradients(problem, grad_output, subject.dtype)
    for name, gradient in zip(present, gradients, strict=True):
        if gradient is None:
            raise UnprovenError(f"gives no gradient of {name}")
        reference, allowed = exact[name]
        if found := difference(gradient, reference, allowed):
            raise UnprovenError(f"has another gradient of {name} than torch's: {found}")


def _explained(subject: Subject, problem: Problem, y: Tensor, allowed: Tensor, found: str) -> str:
    """Return which frequent mistake explains the difference from torch's result, or its size."""
    if subject.dtype in LOW_DTYPES:  # it was right in float32, which is compared first
        return f"is not a LayerNorm in {subject.dtype} with the eps measured in float32: {found}"
    for eps in (problem.eps, *known_eps(subject.module), 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
        for mistake, wrong in problem.mistaken(eps, subject.shape):
            if difference(y, wrong, 4 * allowed) is None:
                return mistake
    return f"is not a LayerNorm: {found}"


def _nearest(original: nn.Module, subject: Subject, device: torch.device) -> str | None:
    """Return which other normalisation it is; None if none is near."""
    if len(subject.shape) > 1:  # the other known normalisations have one axis
        return None
    try:
        meaning = ModuleFunction(original).meaning(device)
    except UnsupportedError:
        return None
    name = meaning.normalization
    if name == LAYER_NORM:
        return _CHANNELS if meaning.channels_first else None
    return None if name is None else what_it_is(name)


@torch.no_grad()
def _recognised(original: nn.Module, device: torch.device) -> str | None:
    """Return the normalisation of a module that has no parameters and accepts any size."""
    x = sample(2, 3, 5, 32)
    module = copy.deepcopy(original).to(device)
    y = module.forward(x.to(device, torch.float32))
    return recognise(y.cpu(), x, -1, None, None) if isinstance(y, Tensor) else None

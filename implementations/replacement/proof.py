"""Whether a module of any class computes torch's LayerNorm, found by calling copies of it.

Its results and gradients are compared with those of ``torch.nn.functional.layer_norm`` in float64,
within what rounding may do. The module itself is never called.
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
from implementations.replacement.norm_modules import what_it_is
from implementations.replacement.rounding import (
    Problem,
    allowed_gradients,
    allowed_result,
    difference_in_words,
    is_within,
)
from implementations.replacement.subject import (
    LOW_DTYPES,
    Subject,
    UnprovenError,
    copied,
    eps_of,
    first_error,
    keeps_dtype,
    known_eps,
    leading_taken,
    state_of,
    subject_of,
)
from implementations.targets.attempt import Raised, attempt
from implementations.targets.from_module import ModuleFunction
from implementations.targets.module_parameters import ParameterNames, parameter_names
from implementations.targets.recognise import LAYER_NORM, recognise, sample

__all__ = ["Proven", "UnprovenError", "prove"]

_CHANNELS = "normalises over the channel axis (axis 1)"
_SMALL_IN_LOW = 0.03  # deviation of small rows: its square is a normal number in float16 too


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Which LayerNorm a module computes."""

    normalized_shape: tuple[int, ...]
    eps: float
    weight: str | None
    """Name of the parameter or buffer that scales; None if there is none."""
    bias: str | None
    """Name of the one that shifts."""
    keeps_dtype: bool
    """Whether float32 parameters leave x's dtype to the result, whatever it is."""


def prove(module: nn.Module, device: torch.device, dtype: torch.dtype) -> Proven:
    """Return which LayerNorm over trailing axes ``module`` computes, in both of its modes.

    Args:
        module: of any class; neither called nor changed.
        device: where to call the copies.
        dtype: of the x that it gets in its model.

    Raises:
        UnprovenError: it computes none, or could not be called.
    """
    with _undisturbed(device):
        found = attempt(lambda: _proven(copied(module, device), device, dtype))
    if not isinstance(found, Raised):
        return found
    if isinstance(found.error, UnprovenError):
        raise found.error
    raise UnprovenError(f"could not be tried: {found.reason}") from found.error


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Shut out the caller's modes, and keep random state and warnings from the caller."""
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
        raise UnprovenError("takes an x of any size, so that no normalized_shape is known")
    if prod(shape) == 1:
        raise UnprovenError("has one feature, of which a LayerNorm returns its bias alone")
    failed: UnprovenError | None = None
    for affine in _assignments(original, shape):
        try:
            return _proven_with(original, affine, shape, device, dtype)
        except UnprovenError as error:
            failed = failed or error
    assert failed is not None  # there is at least one assignment
    raise failed


def _assignments(original: nn.Module, shape: tuple[int, ...]) -> Iterator[ParameterNames]:
    """Yield which parameter may be the weight and which the bias, the likeliest first."""
    named = parameter_names(original, shape)
    empty = [role for role in ("weight", "bias") if getattr(named, role) is None]
    if len(named.others) > len(empty):
        raise UnprovenError(f"has more than a weight and a bias: {', '.join(named.others)}")
    for roles in permutations(empty, len(named.others)):
        found = {"weight": named.weight, "bias": named.bias}
        found |= dict(zip(roles, named.others, strict=True))
        yield ParameterNames(found["weight"], found["bias"])


def _proven_with(
    original: nn.Module,
    affine: ParameterNames,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Proven:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    subject = subject_of(original, affine, shape, wide, device)
    before = state_of(subject.module)
    leading = leading_taken(subject)
    if not leading:
        raise UnprovenError(_nearest(original, subject, device) or first_error(subject))
    eps = eps_of(subject, leading[0])
    for training in (subject.module.training, not subject.module.training):
        subject.module.train(training)
        try:
            _compare(subject, leading, eps)
        except UnprovenError as error:
            if training != original.training:
                raise UnprovenError(f"in {_mode(training)} mode it {error}") from error
            raise UnprovenError(_nearest(original, subject, device) or str(error)) from error
    if changed := _changed(before, state_of(subject.module)):
        raise UnprovenError(f"its forward changes {changed} of it")
    if dtype in LOW_DTYPES:
        own = subject_of(original, affine, shape, dtype, device)
        _compare_results(own, leading[0], eps, (1.0, 30.0, _SMALL_IN_LOW))
    return Proven(
        normalized_shape=shape,
        eps=eps,
        weight=affine.weight,
        bias=affine.bias,
        keeps_dtype=wide == torch.float32 and keeps_dtype(subject, leading[0]),
    )


# --- comparing ------------------------------------------------------------------------------------


def _compare(subject: Subject, leading: list[tuple[int, ...]], eps: float) -> None:
    """Compare results for every x it takes, and gradients for the first.

    Raises:
        UnprovenError: something differs; the message continues "in training mode it".
    """
    small = eps**0.5 or 1.0  # of rows of this deviation, eps is half of variance + eps
    for each in leading:
        _compare_results(subject, each, eps, (1.0, 30.0, small, 3 * small))
    if len(subject.shape) == 1 and all(len(each) == 1 for each in leading):
        _refuse_channels(subject)
    _compare_gradients(subject, leading[0], eps, (1.0, 30.0, small))


@torch.no_grad()
def _compare_results(
    subject: Subject, leading: tuple[int, ...], eps: float, scales: tuple[float, ...]
) -> None:
    x = subject.given(leading, scales)
    given = x.clone()
    y = subject.called(given)
    if not torch.equal(given, x):
        raise UnprovenError("changes its x in place")
    if y.shape != x.shape:
        raise UnprovenError(f"returns shape {list(y.shape)} for an x of {list(x.shape)}")
    if y.dtype != x.dtype:
        raise UnprovenError(f"returns {y.dtype} for an x in {x.dtype}")
    problem = subject.problem(x, eps)
    if not is_within(y, problem.y, allowed_result(problem, subject.dtype)):
        raise UnprovenError(_explained(subject, problem, y))


def _refuse_channels(subject: Subject) -> None:
    """Refuse what takes images, of a module that takes only an x of two axes besides.

    Of two axes, the last one is axis 1, where others have their channels. What takes more axes
    has been compared there; a kernel that checks no shape must not be given these.
    """
    (features,) = subject.shape
    weight, bias = (
        None if each is None else each.detach().double().cpu().flatten()
        for each in (subject.weight, subject.bias)
    )
    for sizes in ((3, 5), (5,)):
        x = sample(2, features, *sizes)
        with torch.no_grad():
            given = x.to(device=subject.device, dtype=subject.dtype)
            y = attempt(partial(subject.called, given))
        if isinstance(y, Raised):
            continue
        if recognise(y.cpu(), x, 1, weight, bias) is not None:
            raise UnprovenError(_CHANNELS)


def _compare_gradients(
    subject: Subject, leading: tuple[int, ...], eps: float, scales: tuple[float, ...]
) -> None:
    x = subject.given(leading, scales).requires_grad_()
    inputs = {"x": x, "its weight": subject.weight, "its bias": subject.bias}
    wanted = {name: each for name, each in inputs.items() if each is not None}
    y = subject.called(x)
    grad_output = subject.given(leading, (1.0,))
    if not y.requires_grad:
        raise UnprovenError("gives no gradient")
    found = torch.autograd.grad(y, list(wanted.values()), grad_output, allow_unused=True)
    problem = subject.problem(x.detach(), eps)
    exact = allowed_gradients(problem, grad_output, subject.dtype)
    for (name, each), gradient in zip(wanted.items(), found, strict=True):
        if gradient is None:
            raise UnprovenError(f"gives no gradient of {name}")
        reference, allowed = exact[name]
        if not is_within(gradient.reshape(reference.shape), reference, allowed):
            difference = difference_in_words(gradient.reshape(reference.shape), reference, allowed)
            raise UnprovenError(f"has another gradient of {name} than torch's: {difference}")
        assert each is not None  # left out above


def _explained(subject: Subject, problem: Problem, y: Tensor) -> str:
    """Say how a result differs from torch's: by a frequent mistake, or by how much."""
    allowed = allowed_result(problem, subject.dtype)
    difference = difference_in_words(y, problem.y, allowed)
    if subject.dtype in LOW_DTYPES:  # compared in float32 before, where it was right
        return (
            f"is no LayerNorm in {subject.dtype} with the eps that it has in float32: {difference}"
        )
    for eps in (problem.eps, *known_eps(subject.module), 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
        for mistake, wrong in problem.mistaken(eps, subject.shape):
            if is_within(y, wrong, 4 * allowed):
                return mistake
    return f"is no LayerNorm: {difference}"


def _nearest(original: nn.Module, subject: Subject, device: torch.device) -> str | None:
    """Say which other normalisation it is; None if none is near."""
    if len(subject.shape) > 1:  # several axes are nothing that other normalisations know
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
    """Name what a module without parameters computes of an x of any size."""
    x = sample(2, 3, 5, 32)
    module = copy.deepcopy(original).to(device)
    y = module.forward(x.to(device, torch.float32))
    return recognise(y.cpu(), x, -1, None, None) if isinstance(y, Tensor) else None


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def _changed(before: dict[str, object], after: dict[str, object]) -> str:
    different = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(different)

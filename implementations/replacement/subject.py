"""Copies of a module, which are called in its place to find what it computes.

A copy has none of the module's hooks and shares no tensor with it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from implementations.contract import Param
from implementations.replacement.norm_modules import is_hooks
from implementations.replacement.rounding import Problem
from implementations.targets.attempt import Raised, attempt
from implementations.targets.module_parameters import ParameterNames, known_eps
from implementations.targets.recognise import measured_eps

# leading axes of an x; a module need not accept all of them. Few rows, since hidden sizes are
# large, and no axis of size 1: normalising over that too would change nothing
_LEADING = ((2, 3, 2), (2, 3), (5,))
LOW_DTYPES = (torch.float16, torch.bfloat16)


class UnprovenError(Exception):
    """The module was not shown to be a LayerNorm; the message says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A copy of the module, with random parameters."""

    module: nn.Module
    shape: tuple[int, ...]
    weight: Param
    bias: Param
    dtype: torch.dtype
    device: torch.device

    def given(self, leading: tuple[int, ...], scales: tuple[float, ...]) -> Tensor:
        """Draw an x; its rows take these standard deviations in turn, and half of them as means."""
        rows = prod(leading)
        x = torch.randn(
            rows,
            prod(self.shape),
            generator=torch.Generator().manual_seed(rows),
            dtype=torch.float64,
        )
        scale = torch.tensor([scales[i % len(scales)] for i in range(rows)], dtype=torch.float64)
        x = ((x + 0.5) * scale[:, None]).reshape(*leading, *self.shape)
        return x.to(device=self.device, dtype=self.dtype)

    def y(self, x: Tensor) -> Tensor:
        """Call the forward alone, without hooks."""
        y = self.module.forward(x)
        if not isinstance(y, Tensor):
            raise UnprovenError(f"returns {type(y).__name__}, not a tensor")
        return y

    def parameters(self) -> tuple[Tensor | None, Tensor | None]:
        """Return weight and bias, flat, in float64 on the CPU."""
        weight, bias = (
            None if parameter is None else parameter.detach().double().cpu().flatten()
            for parameter in (self.weight, self.bias)
        )
        return weight, bias

    def problem(self, x: Tensor, eps: float) -> Problem:
        """Return the LayerNorm of ``x`` that the copy should compute."""
        return Problem.of(x, self.shape, self.weight, self.bias, eps)


def copied(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy without hooks, whose buffers have become parameters.

    A scale or shift may be either, and :func:`parameter_names` looks at parameters alone.
    """
    empty = {
        id(value): type(value)()
        for inner in module.modules()
        for name, value in vars(inner).items()
        if is_hooks(name, value)
    }
    made = copy.deepcopy(module, empty)
    if any(parameter.is_meta for parameter in made.parameters()):
        made.to_empty(device=device)
        for parameter in made.parameters():
            nn.init.ones_(parameter)
    for inner in made.modules():
        for name, buffer in list(inner._buffers.items()):
            if buffer is not None:
                del inner._buffers[name]
                inner.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    return made


def subject_of(
    original: nn.Module,
    names: ParameterNames,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Subject:
    """Return a copy in ``dtype`` on ``device``, with random weight and bias.

    Raises:
        UnprovenError: a parameter does not have as many elements as ``shape``.
    """
    module = copy.deepcopy(original).to(device=device, dtype=dtype)
    named = dict(module.named_parameters())
    tensors: dict[str, Tensor | None] = {"weight": None, "bias": None}
    for seed, (role, name) in enumerate((("weight", names.weight), ("bias", names.bias))):
        if name is None:
            continue
        parameter = named[name]
        if parameter.numel() != prod(shape):
            raise UnprovenError(
                f"{name} has {parameter.numel()} elements, its normalized_shape {prod(shape)}"
            )
        values = torch.randn(
            parameter.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        with torch.no_grad():
            parameter.copy_((1 - seed + 0.5 * values).reshape(parameter.shape))
        tensors[role] = parameter.requires_grad_()
    return Subject(module, shape, tensors["weight"], tensors["bias"], dtype, device)


@torch.no_grad()
def leading_taken(subject: Subject) -> tuple[list[tuple[int, ...]], str]:
    """Return the leading axes with which the module accepts an x and returns one of its shape.

    The second value is the reason of the first x that it did not accept.
    """
    taken: list[tuple[int, ...]] = []
    reason = ""
    features = f"{list(subject.shape)} features"
    for leading in _LEADING:
        x = subject.given(leading, (1.0,))
        y = attempt(partial(subject.module.forward, x))
        if isinstance(y, Raised):
            reason = reason or f"raises for every x of {features} tried: {y.reason}"
        elif not isinstance(y, Tensor) or y.shape == x.shape:
            taken.append(leading)
        else:  # weight[:, None, None] broadcasts
            reason = reason or f"returns another shape than that of x, for {features}"
    return taken, reason


@torch.no_grad()
def keeps_dtype(subject: Subject, leading: tuple[int, ...]) -> bool:
    """Whether y has the dtype of x, also where the parameters have another one."""
    if subject.weight is None and subject.bias is None:
        return False
    x = subject.given(leading, (1.0,))
    for dtype in (*LOW_DTYPES, torch.float64):
        y = attempt(partial(subject.y, x.to(dtype)))
        if isinstance(y, Raised) or y.dtype != dtype:
            return False
    return True


@torch.no_grad()
def eps_of(subject: Subject, leading: tuple[int, ...]) -> float:
    """Measure the module's eps; 0 if no eps fits, and then the comparison finds a difference."""
    count = prod(subject.shape)

    def call(x: Tensor) -> Tensor:
        given = x.reshape(*leading, *subject.shape).to(device=subject.device, dtype=subject.dtype)
        return subject.y(given).cpu().reshape(x.shape)

    weight, bias = subject.parameters()
    known = known_eps(subject.module)
    eps = measured_eps(call, (prod(leading), count), -1, weight, bias, known)
    return 0.0 if eps is None else eps


def state_of(module: nn.Module) -> dict[str, object]:
    """Return the attributes of a module and its inner modules: plain values, or identities."""
    state: dict[str, object] = {}
    for path, inner in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in vars(inner).items():
            plain = isinstance(value, bool | int | float | str)
            if name != "training":
                state[prefix + name] = value if plain else id(value)
        for name in (*inner._parameters, *inner._modules):
            state[prefix + name] = name
    return state

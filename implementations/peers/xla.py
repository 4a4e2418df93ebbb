"""JAX behind torch: the same number of threads, shared memory, gradients from jax.vjp.

By default, XLA runs even a small computation on another thread, from a pool as large as the
machine. Both are fixed when JAX starts, so this module starts it: without asynchronous dispatch,
and with a pool as large as torch's at that time. With one thread, the calling thread computes.
A JAX that was used earlier in the process keeps its settings.

JAX reads torch's memory in place through NumPy arrays; torch reads JAX's memory through DLPack.
Tensors that are not contiguous, or not aligned to 64 bytes, are copied within the timed call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from implementations.contract import Param, UnsupportedError, install_extra, requires_gradient
from implementations.peers.peer import Package, environment

JAX = Package("jax", ("jax", "jaxlib"), install_extra("jax"))
_POOL = "NPROC"  # XLA reads the size of its thread pool from it

Formula = Callable[..., Any]
"""Called with jax, x, weight, bias (arrays or None), dims and eps; returns y in x's dtype."""


def layer_norm(
    formula: Formula, x: Tensor, weight: Param, bias: Param, dims: int, eps: float
) -> Tensor:
    """Normalise over the last ``dims`` axes with a jitted formula.

    The forward saves only x, weight and bias; the backward computes mean and variance again.

    Raises:
        UnsupportedError: JAX is not installed, or was started with another number of threads.
    """
    runtime = _runtime()
    if runtime.threads != torch.get_num_threads():
        raise UnsupportedError(
            f"jax keeps the {runtime.threads} threads it was started with, and torch has "
            f"{torch.get_num_threads()} now; ask for one number of threads in a process"
        )
    settings = dims, eps
    if requires_gradient(x, weight, bias):
        y: Tensor = _WithGradient.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, formula, settings
        )
        return y
    return runtime.forward(formula, settings, x, weight, bias)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Param,
        bias: Param,
        formula: Formula,
        settings: tuple[int, float],
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.formula, ctx.settings = formula, settings
        return _runtime().forward(formula, settings, x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _runtime().backward(ctx.formula, ctx.settings, *ctx.saved_tensors, dy)
        return *gradients, None, None


@dataclass(frozen=True, slots=True)
class _Runtime:
    """JAX with the settings it was started with."""

    jax: Any
    threads: int
    device: Any
    """The CPU, if it is not JAX's default device; else None."""

    def forward(
        self, formula: Formula, settings: tuple[int, float], *tensors: Tensor | None
    ) -> Tensor:
        with self._prepared(tensors[0]):
            y = _forward(formula)(*map(self._array, tensors), settings)
            return from_dlpack(y.block_until_ready())

    def backward(
        self, formula: Formula, settings: tuple[int, float], *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        with self._prepared(tensors[0]):
            found = _backward(formula)(*map(self._array, tensors), settings)
            self.jax.block_until_ready(found)
            return tuple(None if array is None else from_dlpack(array) for array in found)

    def _array(self, tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        plain = tensor.detach().resolve_neg().contiguous()
        if plain.dtype == torch.bfloat16:
            return plain.view(torch.uint16).numpy().view(self.jax.dtypes.bfloat16)
        return plain.numpy()

    @contextmanager
    def _prepared(self, x: Tensor | None) -> Iterator[None]:
        """Enable float64 if x needs it, and make the CPU the default device."""
        with ExitStack() as stack:
            if x is not None and x.dtype == torch.float64:
                stack.enter_context(self.jax.enable_x64(True))
            if self.device is not None:
                stack.enter_context(self.jax.default_device(self.device))
            yield


@cache
def _runtime() -> _Runtime:
    """Start JAX on the CPU with as many threads as torch has."""
    jax = JAX.load("jax", "enable_x64")
    threads = torch.get_num_threads()
    with environment(_POOL, str(threads)):
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        cpu = jax.devices("cpu")[0]  # creates the client and its threads
    return _Runtime(jax, threads, None if jax.default_backend() == "cpu" else cpu)


@cache
def _forward(formula: Formula) -> Callable[..., Any]:
    jax = _runtime().jax

    def y(x: Any, weight: Any, bias: Any, settings: tuple[int, float]) -> Any:
        return formula(jax, x, weight, bias, *settings)

    jitted: Callable[..., Any] = jax.jit(y, static_argnums=3)
    return jitted


@cache
def _backward(formula: Formula) -> Callable[..., Any]:
    jax = _runtime().jax

    def gradients(x: Any, weight: Any, bias: Any, dy: Any, settings: tuple[int, float]) -> Any:
        dims, eps = settings
        forward = partial(formula, jax, dims=dims, eps=eps)
        _, pull_back = jax.vjp(forward, x, weight, bias)
        return pull_back(dy)

    jitted: Callable[..., Any] = jax.jit(gradients, static_argnums=4)
    return jitted

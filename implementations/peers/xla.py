"""JAX under torch: as many threads as torch has, memory shared by DLPack, gradients by jax.vjp.

XLA would run even a small computation on a thread of its own, of a pool as large as the machine.
Both are settled when JAX starts, so it is started here: without asynchronous dispatch, and with a
pool of the size that torch's has at the time. With one thread it then works on the calling one.
A JAX that has been used before in the process keeps what it has.

Memory is shared if it begins at a multiple of 64 bytes and has no gaps, as torch's own has; what
does not is copied, in the time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from implementations.contract import UnsupportedError
from implementations.peers.package import Package, environment

__all__ = ["JAX", "Formula", "layer_norm"]

JAX = Package("jax", ("jax", "jaxlib"), "pip install 'layernorm-bench[jax]'")
_POOL = "NPROC"  # read by XLA for the size of its pool of threads

Formula = Callable[..., Any]
"""Called with jax, x, weight, bias (arrays or None), dims and eps; returns y in x's dtype."""


def layer_norm(
    formula: Formula, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> Tensor:
    """Normalise over the last ``dims`` axes by a jitted formula.

    The backward forms mean and variance again from x, which is all that the forward keeps.

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
    if torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (x, weight, bias)
    ):
        y: Tensor = _WithGradient.apply(x, weight, bias, formula, settings)
        return y
    return runtime.forward(formula, settings, x, weight, bias)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        formula: Formula,
        settings: tuple[int, float],
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.formula, ctx.settings = formula, settings
        return _runtime().forward(formula, settings, x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _runtime().backward(ctx.formula, ctx.settings, *ctx.saved_tensors, dy)
        return *gradients, None, None


@dataclass(frozen=True, slots=True)
class _Runtime:
    """JAX, as it was started."""

    jax: Any
    threads: int

    def forward(
        self, formula: Formula, settings: tuple[int, float], *tensors: Tensor | None
    ) -> Tensor:
        with self._precision(tensors[0]):
            y = _forward(formula)(*map(self._array, tensors), settings)
            return torch.from_dlpack(y.block_until_ready())

    def backward(
        self, formula: Formula, settings: tuple[int, float], *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        with self._precision(tensors[0]):
            found = _backward(formula)(*map(self._array, tensors), settings)
            return tuple(None if each is None else torch.from_dlpack(each) for each in found)

    def _array(self, tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        return self.jax.dlpack.from_dlpack(tensor.detach().contiguous())

    def _precision(self, x: Tensor | None) -> AbstractContextManager[object]:
        """JAX knows no float64 unless asked to."""
        wide = x is not None and x.dtype == torch.float64
        context: AbstractContextManager[object] = (
            self.jax.enable_x64(True) if wide else nullcontext()
        )
        return context


@cache
def _runtime() -> _Runtime:
    """Start JAX on the CPU with as many threads as torch has."""
    jax = JAX.load("jax", "enable_x64")
    JAX.load("jax.dlpack")
    threads = torch.get_num_threads()
    with environment(_POOL, str(threads)):
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.devices("cpu")  # the client and its threads are made now
    return _Runtime(jax, threads)


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

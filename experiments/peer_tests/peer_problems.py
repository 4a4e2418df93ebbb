"""Parts of :mod:`peer_tests.peer_checks`: problems, guarded calls, torch's results, comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from implementations.contract import LayerNormFunction

__all__ = ["PeerOutputs", "Problem", "is_close", "pairs", "run", "seeded", "torch_results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Arguments of one call; dy is None if the peer's test checks no gradients."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    dims: int = 1
    eps: float = 1e-5
    dy: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem, its tensors rounded to ``dtype``."""
        x, weight, bias, dy = (
            None if tensor is None else tensor.to(dtype)
            for tensor in (self.x, self.weight, self.bias, self.dy)
        )
        assert x is not None  # for mypy: self.x is a Tensor
        return Problem(x=x, weight=weight, bias=bias, dims=self.dims, eps=self.eps, dy=dy)


@dataclass(frozen=True, slots=True)
class PeerOutputs:
    """Results of one call: y, and a gradient for each input if the problem has a dy."""

    y: Tensor
    dx: Tensor | None = None
    dweight: Tensor | None = None
    dbias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> PeerOutputs:
        """The same results rounded to ``dtype``."""
        names = ("dx", "dweight", "dbias")
        gradients = {name: getattr(self, name) for name in names}
        rounded = {name: None if g is None else g.to(dtype) for name, g in gradients.items()}
        return PeerOutputs(self.y.to(dtype), **rounded)


def run(function: LayerNormFunction, problem: Problem) -> PeerOutputs | None:
    """Run ``function``; None if it raises, or if y differs from x in type, shape or dtype."""
    named = {"x": problem.x, "weight": problem.weight, "bias": problem.bias}
    # copies with the same strides: a function that overwrites its inputs must not affect the next
    leaves = {
        name: torch
        .empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        .copy_(tensor)
        .requires_grad_(problem.dy is not None)
        for name, tensor in named.items()
        if tensor is not None
    }
    x = leaves["x"]
    shape = x.shape[x.dim() - problem.dims :]
    try:
        y = function(x, shape, leaves.get("weight"), leaves.get("bias"), problem.eps)
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            return None
        if problem.dy is None:
            return PeerOutputs(y)
        gradients = torch.autograd.grad(y, tuple(leaves.values()), problem.dy)
    except Exception:  # noqa: BLE001 - a function under test may raise anything; the peer's test fails
        return None
    named_gradients = zip(leaves, gradients, strict=True)
    return PeerOutputs(y.detach(), **{f"d{name}": gradient for name, gradient in named_gradients})


def torch_results(problem: Problem) -> PeerOutputs:
    """Return torch's results as a GPU computes them: the peers compute their references on a GPU.

    float16 and bfloat16 inputs are converted to float32, and the results are rounded once. torch's
    CPU kernel sums gradients in the dtype of x instead; right implementations differ from that by
    more than the tolerances.
    """
    wide = torch.promote_types(problem.x.dtype, torch.float32)
    found = run(functional.layer_norm, problem.to(wide))  # type: ignore[arg-type]
    assert found is not None  # torch supports every problem of these tests
    return found.to(problem.x.dtype)


def pairs(found: PeerOutputs, expected: PeerOutputs) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each result with the expected one."""
    for name in ("y", "dx", "dweight", "dbias"):
        one, other = getattr(found, name), getattr(expected, name)
        if one is not None and other is not None:
            yield one, other


def is_close(
    found: Tensor, expected: Tensor, *, rtol: float | None = None, atol: float | None = None
) -> bool:
    """Whether torch.testing.assert_close passes; its default tolerances depend on the dtype."""
    try:
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    except AssertionError:
        return False
    return True


def seeded(seed: int = 0) -> Generator:
    """Return a new generator with this seed."""
    return Generator().manual_seed(seed)

"""Problems that other projects put to a LayerNorm, and what comes back.

What :mod:`peer_checks` is made of: a call of someone else's function that may do anything, torch's
own results, and comparisons as torch makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from implementations.contract import LayerNorm

__all__ = ["Problem", "Results", "is_close", "pairs", "run", "seeded", "torchs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Arguments of one call; dy is None where the peer asks for no gradients."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    dims: int = 1
    eps: float = 1e-5
    dy: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem, its tensors rounded to ``dtype``."""
        x, weight, bias, dy = (
            None if each is None else each.to(dtype)
            for each in (self.x, self.weight, self.bias, self.dy)
        )
        assert x is not None  # it was not None before
        return Problem(x=x, weight=weight, bias=bias, dims=self.dims, eps=self.eps, dy=dy)


@dataclass(frozen=True, slots=True)
class Results:
    """What one call gave; gradients only where there was a dy, and a parameter to have one."""

    y: Tensor
    dx: Tensor | None = None
    dweight: Tensor | None = None
    dbias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Results:
        """The same results rounded to ``dtype``."""
        names = ("dx", "dweight", "dbias")
        gradients = {name: getattr(self, name) for name in names}
        rounded = {name: None if g is None else g.to(dtype) for name, g in gradients.items()}
        return Results(self.y.to(dtype), **rounded)


def run(function: LayerNorm, problem: Problem) -> Results | None:
    """Run ``function``; None if it raises, or returns another type, shape or dtype than it must."""
    named = {"x": problem.x, "weight": problem.weight, "bias": problem.bias}
    # values are copied, strides kept: what one function overwrites, the next must not see
    leaves = {
        name: torch
        .empty_strided(each.shape, each.stride(), dtype=each.dtype)
        .copy_(each)
        .requires_grad_(problem.dy is not None)
        for name, each in named.items()
        if each is not None
    }
    x = leaves["x"]
    shape = x.shape[x.dim() - problem.dims :]
    try:
        y = function(x, shape, leaves.get("weight"), leaves.get("bias"), problem.eps)
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            return None
        if problem.dy is None:
            return Results(y)
        gradients = torch.autograd.grad(y, tuple(leaves.values()), problem.dy)
    except Exception:  # noqa: BLE001 - the implementation's own, and a peer's test fails by it
        return None
    named_gradients = zip(leaves, gradients, strict=True)
    return Results(y.detach(), **{f"d{name}": each for name, each in named_gradients})


def torchs(problem: Problem) -> Results:
    """What torch's own LayerNorm makes of a problem on a GPU, as peers' references are.

    There float16 and bfloat16 are computed in float32 and rounded once; torch's CPU kernel adds
    up their gradients in their own dtype, and no right one would be close to that.
    """
    wide = torch.promote_types(problem.x.dtype, torch.float32)
    found = run(functional.layer_norm, problem.to(wide))  # type: ignore[arg-type]
    assert found is not None  # torch takes every problem in this file
    return found.to(problem.x.dtype)


def pairs(found: Results, expected: Results) -> Iterator[tuple[Tensor, Tensor]]:
    """Each result there is, with the expected one."""
    for name in ("y", "dx", "dweight", "dbias"):
        one, other = getattr(found, name), getattr(expected, name)
        if one is not None and other is not None:
            yield one, other


def is_close(
    found: Tensor, expected: Tensor, *, rtol: float | None = None, atol: float | None = None
) -> bool:
    """Whether torch.testing.assert_close passes; its defaults know the dtype."""
    try:
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    except AssertionError:
        return False
    return True


def seeded(seed: int = 0) -> Generator:
    """Return a generator of its own for a problem."""
    return Generator().manual_seed(seed)

"""What a deliberately wrong LayerNorm is, and how one is written in a few lines.

A mutant is a :class:`~implementations.contract.LayerNormFunction` with exactly one mistake,
of a kind that was made before. It is right in everything else: where its mistake does not show,
it must be called right. Nothing here is ever offered as an implementation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from implementations.contract import LayerNormFunction, scale_and_shift, trailing_axes, wide_dtype

__all__ = [
    "DTYPES",
    "HALVES",
    "Check",
    "Family",
    "Mutant",
    "Remembering",
    "Rows",
    "as_if_contiguous",
    "layer_norm_of",
    "mutant",
    "on_rows",
    "with_value",
]

HALVES = frozenset({"float16", "bfloat16"})
DTYPES = HALVES | {"float32", "float64"}


class Family(StrEnum):
    """Where the mistake was made."""

    SEMANTICS = "semantics"
    """Another function is computed, exactly."""
    PRECISION = "precision"
    """The right function, with fewer digits than the algorithm class allows."""
    KERNEL = "kernel"
    """An index, a tail or a padding: some elements are read or written wrongly."""
    STATE = "state"
    """Something is remembered from an earlier call, or a caller's tensor is changed."""
    LAYOUT = "layout"
    """The result is not what the contract says, or the memory is not laid out as assumed."""
    GRADIENT = "gradient"
    """The forward is right and its gradient is not."""
    GRAPH = "graph"
    """The gradient is right in the usual call, and not in another that autograd allows."""
    COMPANY = "company"
    """Each call is right by itself, and not beside others, or in another form or mode."""
    PATH = "path"
    """Right where tests look, wrong in inference, in vectors, at one width or in many rows."""


class Check(StrEnum):
    """The weakest check that catches a mutant; those named before it do not."""

    VALUES = "values"
    """One call's y against the exact one, x contiguous."""
    GRADIENT = "gradient"
    """One call's dx, dweight and dbias against the exact ones, x contiguous."""
    CONTRACT = "contract"
    """Type, shape and dtype of what came back, and whether the inputs are as before."""
    LAYOUT = "layout"
    """One call's values where its tensors are not contiguous, or kept negated."""
    REPETITION = "repetition"
    """Several calls of one function, with other data, parameters, eps and shape."""
    THREADS = "threads"
    """One call on several threads."""
    GRAPH = "graph"
    """Some gradients only, a graph's a second time, theirs in turn, and what is written over."""
    COMPANY = "company"
    """Graphs that overlap, results that are kept, training, other forms of a call, other modes."""


class Remembering:
    """A LayerNorm with a memory, which is the mistake. A new instance remembers nothing."""

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong LayerNorm and what is wrong with it. Callable like the right one."""

    name: str
    """Stable identifier."""
    mistake: str
    """What it does, as the end of a sentence that begins with its name."""
    family: Family
    """Where the mistake was made."""
    function: LayerNormFunction
    """The wrong function; see :meth:`fresh` before calling it more than once."""
    dtypes: frozenset[str] = DTYPES
    """Names of x's dtypes for which it differs from a right one by more than rounding."""
    directions: frozenset[Direction] = frozenset(Direction)
    """Passes whose results show it; y counts as a result of all of them."""
    caught_by: Check = Check.VALUES
    """The weakest check that catches it."""
    remark: RemarkKind | None = None
    """The remark that a verification makes of it; None where it is wrong."""

    def fresh(self) -> LayerNormFunction:
        """Return the function with nothing remembered of earlier calls."""
        if isinstance(self.function, Remembering):
            return type(self.function)()
        return self.function

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalise ``x`` wrongly, as a first call would."""
        return self.fresh()(x, normalized_shape, weight, bias, eps)


@dataclass(frozen=True, slots=True)
class Rows:
    """The arguments of a LayerNorm as most mutants want them."""

    x: Tensor
    """(rows, hidden), in float32 or wider."""
    weight: Tensor | None
    """(hidden,)"""
    bias: Tensor | None
    """(hidden,)"""
    eps: float

    @property
    def hidden(self) -> int:
        return self.x.shape[1]

    @property
    def mean(self) -> Tensor:
        return self.x.mean(-1, keepdim=True)

    @property
    def deviation(self) -> Tensor:
        return self.x - self.mean

    @property
    def variance(self) -> Tensor:
        return self.deviation.square().mean(-1, keepdim=True)

    @property
    def rstd(self) -> Tensor:
        return torch.rsqrt(self.variance + self.eps)

    @property
    def y(self) -> Tensor:
        """The right result."""
        return self.affine(self.deviation * self.rstd)

    def affine(self, normalised: Tensor) -> Tensor:
        """Scale and shift by what there is of weight and bias."""
        return scale_and_shift(normalised, self.weight, self.bias)

    def normalised_by(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The right result but for its statistics."""
        return self.affine((self.x - mean) * torch.rsqrt(variance + self.eps))


def layer_norm_of(rows_to_y: Callable[[Rows], Tensor]) -> LayerNormFunction:
    """Give a function of rows the signature of a LayerNorm: shapes, dtypes and checks are right."""

    @wraps(rows_to_y)
    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        split = x.dim() - len(trailing_axes(x, normalized_shape, weight, bias))
        rows = x.reshape(x.shape[:split].numel(), x.shape[split:].numel())
        weight, bias = (None if each is None else each.flatten() for each in (weight, bias))
        y = rows_to_y(Rows(rows.to(wide_dtype(x.dtype)), weight, bias, eps))
        return y.reshape(x.shape).to(x.dtype)

    return layer_norm


def mutant(
    family: Family,
    *,
    dtypes: frozenset[str] = DTYPES,
    directions: frozenset[Direction] = frozenset(Direction),
    caught_by: Check = Check.VALUES,
    remark: RemarkKind | None = None,
) -> Callable[[LayerNormFunction | type[Remembering]], Mutant]:
    """Wrap a function, or a class of them, as a mutant named and described after it."""

    def wrap(wrong: LayerNormFunction | type[Remembering]) -> Mutant:
        return Mutant(
            name=_name_of(wrong),
            mistake=_mistake_of(wrong),
            family=family,
            function=wrong() if isinstance(wrong, type) else wrong,
            dtypes=dtypes,
            directions=directions,
            caught_by=caught_by,
            remark=remark,
        )

    return wrap


def on_rows(
    family: Family, *, dtypes: frozenset[str] = DTYPES, caught_by: Check = Check.VALUES
) -> Callable[[Callable[[Rows], Tensor]], Mutant]:
    """Wrap a function of rows as a mutant named and described after it."""

    def wrap(rows_to_y: Callable[[Rows], Tensor]) -> Mutant:
        return mutant(family, dtypes=dtypes, caught_by=caught_by)(layer_norm_of(rows_to_y))

    return wrap


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """What lies in memory from the first element of ``tensor`` on, and at its end from there again.

    A kernel would go on reading beyond the end.
    """
    first = int(tensor.storage_offset())
    size = int(tensor.untyped_storage().nbytes()) // tensor.element_size() - first
    memory = torch.as_strided(tensor, (size,), (1,), first)
    return memory[torch.arange(tensor.numel(), device=tensor.device) % size].view(tensor.shape)


def with_value(differentiable: Tensor, value: Tensor) -> Tensor:
    """Return ``value``, its very memory, with the gradient of ``differentiable``."""
    found: Tensor = _WithValue.apply(differentiable, value)  # type: ignore[no-untyped-call]
    return found


class _WithValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, differentiable: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _name_of(wrong: object) -> str:
    """The name of a function, or that of a class as a function's would be written."""
    words = re.sub("(?<!^)([A-Z])", r"_\1", getattr(wrong, "__name__").strip("_"))  # noqa: B009
    return words.lower()


def _mistake_of(wrong: object) -> str:
    """The first sentence of its docstring, as the end of a sentence."""
    first = (wrong.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return first[:1].lower() + first[1:]

"""Mutants: deliberately wrong LayerNorms, and decorators to write one in a few lines.

A mutant is a :class:`~implementations.contract.LayerNormFunction` with exactly one mistake,
of a kind that occurs in practice. On inputs for which the mistake has no effect, the result is
right and the verifier must accept it. No mutant is ever offered as an implementation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.arguments import LayerNormCall, Rows, layer_norm_of
from implementations.contract import LayerNormFunction

__all__ = [
    "DTYPES",
    "HALVES",
    "RECORDING",
    "CheckKind",
    "Mutant",
    "Options",
    "Stateful",
    "as_if_contiguous",
    "first_rows",
    "mutant",
    "on_call",
    "on_rows",
    "rounded_to",
    "with_value",
    "without_tail",
]

HALVES = frozenset({"float16", "bfloat16"})
DTYPES = HALVES | {"float32", "float64"}
RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})
"""The directions in which gradients are recorded."""


class CheckKind(StrEnum):
    """Kinds of check, from weak to strong."""

    VALUES = "values"
    """y of one call against the exact y, with contiguous x."""
    GRADIENT = "gradient"
    """dx, dweight and dbias of one call against the exact ones, with contiguous x."""
    CONTRACT = "contract"
    """Type, shape and dtype of the result, and whether the inputs are unmodified."""
    LAYOUT = "layout"
    """Values of one call whose tensors are not contiguous, or are stored negated."""
    REPETITION = "repetition"
    """Several calls of one function, with different data, parameters, eps and shapes."""
    THREADS = "threads"
    """One call on several threads."""
    GRAPH = "graph"
    """Gradients of some inputs only, a second backward, second derivatives, modified inputs."""
    INTERACTION = "interaction"
    """Overlapping graphs, earlier results, training, omitted arguments, no_grad, autocast."""
    EFFECT = "effect"
    """Memory beside the tensors of a call, tensors kept alive, the state of the process."""


class Stateful:
    """A LayerNorm whose mistake is to keep state between calls; a new instance has no state."""

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        return self.y(LayerNormCall(x, normalized_shape, weight, bias, eps))

    def y(self, call: LayerNormCall) -> Tensor:
        """Return the wrong result; overridden if ``y_of_rows`` cannot express the mistake."""
        return call.by(layer_norm_of(self.y_of_rows))

    def y_of_rows(self, rows: Rows) -> Tensor:
        """Return the wrong result for ``rows``."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong LayerNorm and its mistake, callable like a right one."""

    name: str
    """Stable identifier."""
    mistake: str
    """What it does wrong, as a verb phrase: "leaves one lane of 32 out of the sums"."""
    function: LayerNormFunction
    """The wrong function; see :meth:`fresh` before calling it more than once."""
    dtypes: frozenset[str] = DTYPES
    """Names of the dtypes of x for which the mistake is larger than rounding errors."""
    directions: frozenset[Direction] = frozenset(Direction)
    """Directions whose results show the mistake; y is a result of each direction."""
    caught_by: CheckKind = CheckKind.VALUES
    """The weakest kind of check that catches it."""
    remark: RemarkKind | None = None
    """The remark that the verification makes instead of a failure; None if it is a failure."""

    def fresh(self) -> LayerNormFunction:
        """Return the function without state from earlier calls."""
        if isinstance(self.function, Stateful):
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
        """Normalise ``x`` wrongly, without state from earlier calls."""
        return self.fresh()(x, normalized_shape, weight, bias, eps)


class Options(TypedDict, total=False):
    """Fields of a :class:`Mutant` other than its name, mistake and function."""

    dtypes: frozenset[str]
    directions: frozenset[Direction]
    caught_by: CheckKind
    remark: RemarkKind | None


def mutant(**options: Unpack[Options]) -> Callable[[LayerNormFunction | type[Stateful]], Mutant]:
    """Wrap a function or stateful class as a mutant; take name and mistake from it."""

    def wrap(wrong: LayerNormFunction | type[Stateful]) -> Mutant:
        function = wrong() if isinstance(wrong, type) else wrong
        return Mutant(
            name=_name_of(wrong), mistake=_mistake_of(wrong), function=function, **options
        )

    return wrap


def on_rows(**options: Unpack[Options]) -> Callable[[Callable[[Rows], Tensor]], Mutant]:
    """Wrap a function of rows as a mutant; take name and mistake from it."""

    def wrap(rows_to_y: Callable[[Rows], Tensor]) -> Mutant:
        return mutant(**options)(layer_norm_of(rows_to_y))

    return wrap


def on_call(**options: Unpack[Options]) -> Callable[[Callable[[LayerNormCall], Tensor]], Mutant]:
    """Wrap a function of a whole call as a mutant; take name and mistake from it."""

    def wrap(call_to_y: Callable[[LayerNormCall], Tensor]) -> Mutant:
        @wraps(call_to_y)
        def layer_norm(
            x: Tensor,
            normalized_shape: Sequence[int],
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            eps: float = 1e-5,
        ) -> Tensor:
            return call_to_y(LayerNormCall(x, normalized_shape, weight, bias, eps))

        return mutant(**options)(layer_norm)

    return wrap


def rounded_to(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Round ``value`` to ``dtype`` and convert it back to its own dtype."""
    return value.to(dtype).to(value.dtype)


def without_tail(count: int, step: int) -> int:
    """Return the largest multiple of ``step`` that is at most ``count``."""
    return count - count % step


def first_rows(y: Tensor, count: int, otherwise: Tensor | None = None) -> Tensor:
    """Return ``y`` with the rows from ``count`` on replaced by zeros or by ``otherwise``."""
    kept = torch.arange(y.shape[0], device=y.device)[:, None] < count
    return torch.where(kept, y, torch.zeros_like(y) if otherwise is None else otherwise)


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """Read ``tensor`` as a kernel that ignores its strides does, from its first element.

    At the end of the memory it starts again, where a kernel would read out of bounds.
    """
    first = int(tensor.storage_offset())
    size = int(tensor.untyped_storage().nbytes()) // tensor.element_size() - first
    memory = torch.as_strided(tensor, (size,), (1,), first)
    return memory[torch.arange(tensor.numel(), device=tensor.device) % size].view(tensor.shape)


def with_value(differentiable: Tensor, value: Tensor) -> Tensor:
    """Return a view of ``value`` whose gradient is passed to ``differentiable``."""
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
    """The name of a function or class, in snake case."""
    words = re.sub("(?<!^)([A-Z])", r"_\1", getattr(wrong, "__name__").strip("_"))  # noqa: B009
    return words.lower()


def _mistake_of(wrong: object) -> str:
    """The first line of its docstring, without the capital and the full stop."""
    first = (wrong.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return first[:1].lower() + first[1:]

"""Mutants: deliberately wrong LayerNorms, each written as a function of a few lines.

A mutant is a :class:`~implementations.contract.LayerNormFunction` with exactly one mistake,
of a kind that occurs in practice. On inputs for which the mistake has no effect, the result is
right and the verifier must accept it. No mutant is ever offered as an implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.mutants.arguments import (
    LayerNormCall,
    Rows,
    function_of,
    layer_norm_of,
    passed_on,
    with_gradient,
    with_gradients,
)
from harness.mutants.conditions import CallCondition, CallFacts
from harness.records.finding import RemarkKind
from implementations.contract import (
    Algorithm,
    Implementation,
    LayerNormFunction,
    implementation,
)

BFLOAT16 = frozenset({"bfloat16"})
HALVES = BFLOAT16 | {"float16"}
DTYPES = HALVES | {"float32", "float64"}
F = TypeVar("F", bound=Callable[..., Any])
Memory = dict[Any, Any]
"""What a wrong function keeps between its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong LayerNorm and its mistake."""

    name: str
    """Stable identifier."""
    mistake: str
    """What it does wrong, as a verb phrase: "divides the variance by N-1 instead of N"."""
    function: Callable[[LayerNormCall, Memory], Tensor]
    """Returns the wrong y of a call; may keep state in the memory."""
    keeps_state: bool = False
    """Whether the mistake is to keep state between calls."""
    default_eps: float = 1e-5
    """The eps where none is given."""
    where: tuple[CallCondition, ...] = ()
    """The conditions under which it makes the mistake: it is right in other calls."""
    is_of_eps: bool = False
    """Whether eps alone is wrong: the variance is right."""
    dtypes: frozenset[str] = DTYPES
    """Names of the dtypes of x for which the mistake is larger than rounding errors."""
    inaccurate: frozenset[str] = frozenset()
    """Those in which it is LayerNorm with too few digits: inaccurate instead of wrong."""
    rounded: frozenset[str] = frozenset()
    """Those in which it only rounds again: right, with a remark."""
    remark: RemarkKind | None = None
    """The remark that the verification makes instead of a failure; None if it is a failure."""

    @property
    def sentence(self) -> str:
        """The mistake with the conditions: "does not add the bias where there is no weight"."""
        where = " and ".join(part.text for part in self.where)
        return f"{self.mistake} where {where}" if where else self.mistake

    def fresh(self) -> LayerNormFunction:
        """Return the function without state from earlier calls."""
        memory: Memory = {}
        wrong = function_of(lambda call: self.function(call, memory), self.default_eps)
        return with_trigger(wrong, self.where) if self.where else wrong


# --- functions that make a mistake ---------------------------------------------------------------


def _y_before(effect: Callable[[LayerNormCall], None], call: LayerNormCall) -> Tensor:
    y = call.y
    effect(call)
    return y


_FIELDS: dict[Callable[..., Any], dict[str, Any]] = {}
_FORMS: dict[str, Callable[[Callable[..., Any], LayerNormCall], Tensor]] = {
    "LayerNormCall": lambda wrong, call: wrong(call),
    "Rows": lambda wrong, call: call.by_rows(wrong),
    "Terms": lambda wrong, call: call.by_rows(lambda rows: with_gradients(rows, wrong)),
    "Tensor": lambda wrong, call: with_gradient(call.y, wrong),
    "None": _y_before,
    "float": lambda wrong, call: replace(call, eps=wrong(call.eps)).y,
}
"""What a function with one mistake returns, by the type of its first parameter: y of a call or of
its rows; or, with a right y, gradients by their terms, or an altered dy; or another eps. One that
returns None does something else after a right call."""


def with_fields(**fields: Any) -> Callable[[F], F]:
    """Give the mutant or the implementation of a function fields that are not the usual ones."""

    def declare(wrong: F) -> F:
        _FIELDS[wrong] = fields
        return wrong

    return declare


def mutant_of(wrong: Callable[..., Any]) -> Mutant:
    """Return the mutant of a function, named and described after it.

    A second parameter is what the function keeps between its calls.
    """
    kind, *kept, returned = wrong.__annotations__.values()
    form = _FORMS[returned if returned == "None" else kind]

    def function(call: LayerNormCall, memory: Memory) -> Tensor:
        return form(partial(wrong, memory=memory) if kept else wrong, call)

    mistake = (wrong.__doc__ or "").partition("\n")[0].rstrip(".")
    return Mutant(
        name=wrong.__name__,
        mistake=mistake[:1].lower() + mistake[1:],
        function=function,
        keeps_state=bool(kept),
        **{"is_of_eps": kind == "float", **_FIELDS.get(wrong, {})},
    )


def right_of(rows_to_y: Callable[[Rows], Tensor]) -> Implementation:
    """Return a right function of rows as an implementation named and described after it."""
    usual = {"source": "the formula", "algorithm": Algorithm.TWO_PASS}
    return implementation(**usual | _FIELDS.get(rows_to_y, {}))(layer_norm_of(rows_to_y))


def functions_in(*modules: ModuleType) -> Iterator[Callable[..., Any]]:
    """Return the public functions that modules define, in order."""
    return (
        value
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    )


# --- mistakes under conditions -------------------------------------------------------------------


def with_trigger(base: LayerNormFunction, trigger: Sequence[CallCondition]) -> LayerNormFunction:
    """Return a right LayerNorm that calls ``base`` where all conditions hold.

    If a condition reads dy, then y is right, and the gradients are those of ``base``.
    """
    before = [part for part in trigger if not part.reads_dy]
    on_dy = [part for part in trigger if part.reads_dy]

    def y_of(call: LayerNormCall) -> Tensor:
        facts = CallFacts(call)
        if not all(part.holds(facts) for part in before):
            return call.y
        if not on_dy:
            return call.by(base)
        right = call.y
        if not right.requires_grad:
            return right

        def chosen(dy: Tensor) -> list[Tensor | None]:
            facts = CallFacts(call, dy)
            return [None, dy] if all(part.holds(facts) for part in on_dy) else [dy, None]

        return passed_on(right, chosen, right, call.by(base))

    return function_of(y_of)


# --- parts of mistakes ---------------------------------------------------------------------------


def rounded_to(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Round ``value`` to ``dtype`` and convert it back to its own dtype."""
    return value.to(dtype).to(value.dtype)


def running_sum(summands: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, one after the other, rounded to ``dtype`` at every step."""
    total = summands.new_zeros(summands.shape[1], dtype=dtype)
    for summand in summands.to(dtype):
        total = total + summand
    return total.to(summands.dtype)


def without_tail(count: int, step: int) -> int:
    """Return the largest multiple of ``step`` that is at most ``count``."""
    return count - count % step


def first_rows(y: Tensor, count: int, otherwise: Tensor | None = None) -> Tensor:
    """Return ``y`` with the rows from ``count`` on replaced by zeros or by ``otherwise``."""
    kept = torch.arange(y.shape[0], device=y.device)[:, None] < count
    return torch.where(kept, y, torch.zeros_like(y) if otherwise is None else otherwise)


def read_from_memory(tensor: Tensor, indices: Tensor | None = None) -> Tensor:
    """Read elements at steps from the first one, as a kernel that ignores the strides does.

    At the end of the memory it starts again, where a kernel would read out of bounds.

    Args:
        tensor: whose memory to read.
        indices: of the elements, counted from the first one; None for one after the other.
    """
    first = int(tensor.storage_offset())
    size = int(tensor.untyped_storage().nbytes()) // tensor.element_size() - first
    memory = torch.as_strided(tensor, (size,), (1,), first)
    indices = torch.arange(tensor.numel()) if indices is None else indices
    return memory[indices.to(tensor.device) % size].view(tensor.shape)


def evenly_spaced(tensor: Tensor) -> Tensor:
    """Read rows at the step of the last batch axis, as if that led from each row to the next."""
    if tensor.dim() < 3 or tensor.stride(-1) != 1 or not tensor.numel():
        return tensor
    rows, hidden = tensor.shape[:-1].numel(), tensor.shape[-1]
    steps = torch.arange(rows)[:, None] * int(tensor.stride(-2))
    return read_from_memory(tensor, steps + torch.arange(hidden))


def in_portions(rows: Rows, count: int) -> Tensor:
    """Return y of portions of the rows, whose dweight and dbias autograd adds in their dtype."""
    return torch.cat([replace(rows, x=portion).y for portion in rows.x.split(count)])

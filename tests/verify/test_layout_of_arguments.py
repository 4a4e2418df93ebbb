"""Who reads weight, bias or dy where they do not lie, or as they are not kept, breaks a promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.inputs import LAYOUTS
from harness.verify.checks.contract_checks import contract_findings
from harness.verify.checks.memory import reads_what_is_negated, reads_what_lies_anywhere
from harness.verify.findings import Remark, RemarkKind
from harness.verify.mutants import WRONG
from harness.verify.trial import first_case
from implementations import Implementation, UnsupportedError

CASE = first_case("implementation", "float32", "cpu")


def implementation(function: Any, **claims: Any) -> Implementation:
    return Implementation(name="implementation", function=function, source="", **claims)


def mutant(name: str) -> Implementation:
    return implementation(next(each for each in WRONG if each.name == name).function)


def right(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
    return functional.layer_norm(x, tuple(shape), *others)


class Declining(torch.autograd.Function):
    """Hands dy on, if it is contiguous."""

    kind: type[Exception]

    @staticmethod
    def forward(ctx: Any, y: Tensor, kind: type[Exception]) -> Tensor:
        ctx.kind = kind
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if not dy.is_contiguous():
            raise ctx.kind("takes a contiguous dy")
        return dy, None


def declining(kind: type[Exception]) -> Implementation:
    return implementation(lambda *each: Declining.apply(right(*each), kind))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dy_strides_ignored", "dx changes with the layout of dy: padded_rows"),
        ("parameter_strides_ignored", "y changes with the layout of weight or bias: every_second"),
    ],
)
def test_one_that_ignores_where_its_arguments_lie_is_found(
    name: str, said: str, dtype: str
) -> None:
    assert (
        reads_what_lies_anywhere(mutant(name), first_case("implementation", dtype, "cpu")) == said
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_one_that_ignores_that_dy_is_kept_negated_is_found(dtype: str) -> None:
    case = first_case("implementation", dtype, "cpu")
    found = reads_what_is_negated(mutant("dy_negative_bit_ignored"), case)
    assert found is not None
    assert found.endswith("dx changes with the layout of dy: negated")
    assert reads_what_lies_anywhere(mutant("dy_negative_bit_ignored"), case) is None


def test_a_number_for_all_of_dy_is_among_the_layouts() -> None:
    """y.sum() hands back one number, expanded: stride 0 in every direction."""
    seen: set[tuple[int, ...]] = set()

    class Watching(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return y.view_as(y)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            seen.add(dy.stride())
            return dy

    watching = implementation(lambda *each: Watching.apply(right(*each)))  # type: ignore[no-untyped-call]
    assert reads_what_lies_anywhere(watching, CASE) is None
    assert {(0, 0), (0, 1), (1, 6), (32, 1), (35, 1), (64, 2)} <= seen


def test_one_that_declines_a_layout_breaks_no_promise() -> None:
    assert reads_what_lies_anywhere(declining(UnsupportedError), CASE) is None


def test_one_that_raises_for_a_layout_is_remarked_on() -> None:
    assert reads_what_lies_anywhere(declining(RuntimeError), CASE) is None
    (found,) = contract_findings(declining(RuntimeError), CASE)
    assert isinstance(found, Remark)
    assert found.kind is RemarkKind.DECLINES_LAYOUT
    assert found.text.startswith("declines a dy in the layout")
    assert found.text.endswith("RuntimeError: takes a contiguous dy")


def test_one_without_gradients_is_not_asked_for_them() -> None:
    function = mutant("dy_strides_ignored").function
    assert reads_what_lies_anywhere(implementation(function, forward_only=True), CASE) is None
    function = mutant("parameter_strides_ignored").function
    assert reads_what_lies_anywhere(implementation(function, forward_only=True), CASE) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_negated_layout_has_the_values_and_not_the_memory(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.5, -0.0, float("inf"), -3]], dtype=dtype)
    negated = LAYOUTS["negated"](x)
    assert torch.equal(negated, x)
    assert negated.is_neg()
    assert torch.equal(torch._neg_view(negated), -x)
    assert negated.stride() == x.stride()

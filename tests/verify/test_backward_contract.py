"""What a backward promises is missed where it is broken, whatever breaks it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.numerics.computed import ContractViolationError, ImplementationError
from harness.verify.checks.backward import (
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_them_again,
    notices_what_has_changed,
)
from harness.verify.checks.contract_checks import contract_findings
from harness.verify.checks.second_derivative import (
    differentiates_again_correctly,
)
from harness.verify.checks.training import leaves_given_gradients_alone
from harness.verify.findings import Remark, RemarkKind
from harness.verify.mutants import WRONG
from harness.verify.trial import first_case
from implementations import Implementation, native

CASE = first_case("implementation", "float32", "cpu")
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])


def right(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def implementation(function: Callable[..., Any], **claims: Any) -> Implementation:
    return Implementation(name="implementation", function=function, source="", **claims)


def mutant(name: str) -> Implementation:
    return implementation(next(each for each in WRONG if each.name == name).fresh())


# --- each gradient -------------------------------------------------------------------------------


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Callable[[], float]) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor(), None


@pytest.mark.parametrize(("place", "name"), [(0, "dx"), (2, "dweight"), (3, "dbias")])
def test_a_gradient_that_grows_is_found(place: int, name: str) -> None:
    count = itertools.count(1)

    def growing(*arguments: Any) -> Tensor:
        given = list(arguments)
        if given[place] is not None:
            given[place] = _Scaled.apply(given[place], lambda: float(next(count)))
        return right(*given)

    found = gives_each_gradient(implementation(growing), CASE)
    assert found == f"{name} of a second backward differs from that of the first"


def test_a_missing_gradient_is_found() -> None:
    def without_dbias(
        x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        return right(x, shape, weight, None if bias is None else bias.detach(), eps)

    with pytest.raises(ContractViolationError, match="dbias is None"):
        gives_each_gradient(implementation(without_dbias), CASE)
    assert "dbias is None, although bias requires a gradient" in [
        *contract_findings(implementation(without_dbias), CASE)
    ]


def test_what_claims_no_gradient_owes_none() -> None:
    detached = implementation(lambda *arguments: right(*arguments).detach(), forward_only=True)
    assert list(contract_findings(detached, CASE)) == []


def test_gradients_are_asked_for_where_recording_is_off() -> None:
    with torch.no_grad():
        assert gives_each_gradient(native, CASE) is None


# --- as autograd asks ----------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("frozen_weight_stops_dx", "dx is another where no more than dx is asked for"),
        ("frozen_x_stops_dweight", "dweight is another where no more than dweight is asked for"),
    ],
)
def test_a_gradient_that_depends_on_others_being_asked_for_is_found(
    name: str, said: str, dtype: str
) -> None:
    assert (
        gives_the_gradients_asked_for(mutant(name), first_case("implementation", dtype, "cpu"))
        == said
    )


def test_a_gradient_that_is_not_recorded_for_parameters_alone_is_found() -> None:
    with pytest.raises(
        ContractViolationError, match="without gradient where weight alone asked for one"
    ):
        gives_the_gradients_asked_for(mutant("recorded_for_x_alone"), CASE)


def test_a_backward_that_fails_where_some_are_frozen_is_found() -> None:
    def picky(x: Tensor, shape: Sequence[int], *parameters: Any) -> Tensor:
        if x.requires_grad and parameters[0] is not None and not parameters[0].requires_grad:
            raise TypeError("weight must require grad")
        return right(x, shape, *parameters)

    with pytest.raises(ImplementationError, match="weight must require grad"):
        gives_the_gradients_asked_for(implementation(picky), CASE)
    (found,) = contract_findings(implementation(picky), CASE)
    assert isinstance(found, Remark)
    assert found.kind is RemarkKind.RAISES
    assert "TypeError: weight must require grad" in found.text


@every_dtype
def test_a_graph_that_its_backward_uses_up_is_found(dtype: str) -> None:
    found = gives_them_again(
        mutant("used_up_by_the_backward"), first_case("implementation", dtype, "cpu")
    )
    assert found == "dx is another when it is taken of the same graph a second time"


@every_dtype
def test_a_gradient_that_a_later_one_writes_over_is_found(dtype: str) -> None:
    reusing = mutant("gradient_buffer_reused")
    found = leaves_given_gradients_alone(reusing, first_case("implementation", dtype, "cpu"))
    assert found == "dweight changes after it was returned, when later ones are taken"


# --- differentiated again ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_second_derivative_without_a_term_is_found(dtype: str) -> None:
    lacking = mutant("second_derivative_of_constant_statistics")
    found = differentiates_again_correctly(lacking, first_case("implementation", dtype, "cpu"))
    assert found == ("has a wrong second derivative: that of its gradients by x, without error")


def test_a_second_derivative_that_is_missing_without_a_word_is_found() -> None:
    """Its dx is recorded, by dy alone."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor, x: Tensor, dx_of: Any) -> Tensor:
            ctx.dx_of = dx_of
            return y.clone()

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
            return dy, ctx.dx_of(dy.detach()) + 0 * dy, None

    def layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        def dx_of(dy: Tensor) -> Tensor:
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                y = right(leaf, shape, weight, bias, eps)
            return torch.autograd.grad(y, leaf, dy)[0]

        y: Tensor = Once.apply(right(x.detach(), shape, weight, bias, eps), x, dx_of)
        return y

    found = differentiates_again_correctly(implementation(layer_norm), CASE)
    assert found == ("has a wrong second derivative: that of its gradients by x, without error")


def test_one_that_refuses_to_be_differentiated_again_breaks_no_promise() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return dy

    once = implementation(lambda *each, **more: Once.apply(right(*each, **more)))
    assert differentiates_again_correctly(once, CASE) is None


# --- what is written over in between -------------------------------------------------------------


def test_inputs_that_are_not_guarded_are_found() -> None:
    found = notices_what_has_changed(mutant("inputs_kept_unguarded"), CASE)
    assert found == (
        "gives a wrong dx, without an error, where x is changed in place between forward and "
        "backward"
    )


def test_a_result_that_is_not_guarded_is_found() -> None:
    """A backward that computes from y: an activation in place behind it changes y."""

    def layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        affine = right(x.detach() + 0 * x, shape, weight, bias, eps)  # dweight and dbias
        y: Tensor = _DxOfY.apply(x, weight, affine)
        return y

    found = notices_what_has_changed(implementation(layer_norm), CASE)
    assert found == (
        "gives a wrong dx, without an error, where y is changed in place between forward and "
        "backward"
    )


class _DxOfY(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, affine: Tensor) -> Tensor:
        y = affine.clone()
        ctx.kept = y, y.clone()
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, Tensor]:
        x, weight = ctx.saved_tensors
        now, before = ctx.kept
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = functional.layer_norm(leaf, x.shape[-1:], weight)
        (dx,) = torch.autograd.grad(y, leaf, dy)
        return dx + (now - before), None, dy


def test_an_error_of_autograd_is_notice_enough() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    y = native(x, (4,))
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()
    assert notices_what_has_changed(native, CASE) is None

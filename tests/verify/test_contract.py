"""Each promise that no single result shows is kept by the kernel and missed where it is broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from inspect import isfunction
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.records import Case
from harness.verify import checks as contract
from harness.verify.checks import backward as backward_contract
from harness.verify.checks import calls as calls_contract
from harness.verify.checks import memory as memory_contract
from harness.verify.checks import module as module_contract
from harness.verify.checks import second_derivative
from harness.verify.checks import training as training_contract
from harness.verify.checks.contract_checks import BACKWARD_CHECKS, CHECKS, Check, contract_findings
from harness.verify.findings import Remark, RemarkKind
from harness.verify.mutants import RIGHT, WRONG
from harness.verify.trial import first_case
from implementations import ALL, Implementation, UnsupportedError, adopt, native

CASE = first_case("implementation", "float32", "cpu")


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("check", CHECKS + BACKWARD_CHECKS, ids=lambda each: each.__name__)
def test_the_kernel_keeps_each(check: Check, dtype: str) -> None:
    assert check(native, first_case("native", dtype, "cpu")) is None


@pytest.mark.parametrize(
    "implementation", [each for each in ALL if "cpu" in each.devices], ids=lambda each: each.name
)
def test_our_own_break_none(implementation: Implementation) -> None:
    assert list(contract_findings(implementation, CASE)) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", RIGHT, ids=lambda each: each.name)
def test_the_right_ones_break_none(implementation: Implementation, dtype: str) -> None:
    assert list(contract_findings(implementation, first_case("right", dtype, "cpu"))) == []


@pytest.mark.parametrize(
    "module",
    [
        contract,
        memory_contract,
        backward_contract,
        calls_contract,
        module_contract,
        second_derivative,
        training_contract,
    ],
)
def test_every_check_is_in_a_list(module: ModuleType) -> None:
    own = {
        each
        for name, each in vars(module).items()
        if isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }
    assert own
    assert own - {contract_findings} <= {*CHECKS, *BACKWARD_CHECKS}


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "owner"),
    [
        (lambda x, shape, weight, bias, eps: x.view_as(x), "x"),
        (lambda x, shape, weight, bias, eps: weight.expand_as(x), "weight"),
        (lambda x, shape, weight, bias, eps: bias.expand_as(x), "bias"),
    ],
    ids=["x", "weight", "bias"],
)
def test_a_result_in_an_arguments_memory_is_found(
    function: Callable[..., Tensor], owner: str
) -> None:
    assert (
        memory_contract.shares_no_memory(implementation(function), CASE)
        == f"y shares the memory of {owner}"
    )


def test_a_result_in_the_memory_of_the_one_before_is_found() -> None:
    buffers: dict[torch.Size, Tensor] = {}

    def reusing(x: Tensor, *others: Any) -> Tensor:
        return buffers.setdefault(x.shape, torch.empty_like(x)).copy_(right(x, *others))

    found = memory_contract.shares_no_memory(implementation(reusing), CASE)
    assert found == "y shares the memory of the y before"


def from_a_slab(step: int) -> Callable[..., Tensor]:
    """A right one, each result so many elements further on in one slab."""
    slab, starts = torch.empty(1 << 12), itertools.count(0, step)

    def sliced(x: Tensor, *others: Any) -> Tensor:
        y = slab[next(starts) :][: x.numel()].view(x.shape)
        return y.copy_(right(x, *others))

    return sliced


def test_results_side_by_side_in_one_slab_share_no_memory() -> None:
    assert memory_contract.shares_no_memory(implementation(from_a_slab(4 * 32)), CASE) is None


@pytest.mark.parametrize("step", [0, 1, 4 * 32 - 1])
def test_results_that_overlap_in_one_slab_are_found(step: int) -> None:
    found = memory_contract.shares_no_memory(implementation(from_a_slab(step)), CASE)
    assert found == "y shares the memory of the y before"


class _WithGradients(torch.autograd.Function):
    """A right y; as gradients whatever ``change`` makes of zeros."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, change: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.change = change
        return right(x, x.shape[-1:], weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        names = ("dx", "dweight", "dbias")
        return (
            *(
                None if each is None else ctx.change(name, each.new_zeros(each.shape))
                for name, each in zip(names, ctx.saved_tensors, strict=True)
            ),
            None,
            None,
        )


@pytest.mark.parametrize("name", ["dx", "dweight", "dbias"])
def test_a_gradient_whose_elements_overlap_is_found(name: str) -> None:
    def overlapping(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
        def change(of: str, zeros: Tensor) -> Tensor:
            return zeros.flatten()[:1].expand(zeros.shape) if of == name else zeros

        y: Tensor = _WithGradients.apply(x, *others, change)
        return y

    found = memory_contract.has_memory_for_each_element(implementation(overlapping), CASE)
    assert found == f"{name}'s elements overlap in memory, for an x that is contiguous"


def overlapping_like_x(x: Tensor, *others: Any) -> Tensor:
    """Computes the rows that x has memory for, and gives y the strides of x."""
    return right(x[:1], *others).expand(x.shape) if x.stride(0) == 0 else right(x, *others)


def test_a_result_whose_elements_overlap_is_found() -> None:
    found = memory_contract.has_memory_for_each_element(implementation(overlapping_like_x), CASE)
    assert found == "y's elements overlap in memory, for an x that is expanded"


def test_overlap_is_looked_for_where_no_gradient_is_claimed() -> None:
    detached = implementation(lambda *each: overlapping_like_x(*each).detach(), forward_only=True)
    found = memory_contract.has_memory_for_each_element(detached, CASE)
    assert found == "y's elements overlap in memory, for an x that is expanded"


@pytest.mark.parametrize(
    "strides",
    [lambda y: y.mT.contiguous().mT, lambda y: y.repeat(1, 2)[:, : y.shape[1]]],
    ids=["transposed", "padded"],
)
def test_other_strides_than_those_of_x_are_no_overlap(strides: Callable[[Tensor], Tensor]) -> None:
    other = implementation(lambda *arguments: strides(right(*arguments)))
    assert memory_contract.has_memory_for_each_element(other, CASE) is None


def test_a_layout_that_is_declined_is_no_overlap() -> None:
    def dense_only(x: Tensor, *others: Any) -> Tensor:
        if not x.is_contiguous():
            raise RuntimeError("x must be contiguous")
        return right(x, *others)

    assert memory_contract.has_memory_for_each_element(implementation(dense_only), CASE) is None


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_that_is_broadcast_is_found(name: str) -> None:
    def broadcasting(
        x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        if name == "weight":
            return right(x, shape, None, bias, eps) * weight
        return right(x, shape, weight, None, eps) + bias

    found = contract.refuses_wrong_parameters(implementation(broadcasting), CASE)
    assert found == f"accepts a {name} of shape [1] for a normalized_shape of [6]"


def test_a_parameter_for_each_row_is_found() -> None:
    def each_row(
        x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        if weight.shape == x.shape:
            return right(x, shape, None, bias, eps) * weight
        return right(x, shape, weight, bias, eps)

    found = contract.refuses_wrong_parameters(implementation(each_row), CASE)
    assert found == "accepts a weight of shape [4, 6] for a normalized_shape of [6]"


def test_a_shape_taken_without_a_look_is_found() -> None:
    def last_axis(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
        return right(x, x.shape[-1:], *others)

    found = contract.refuses_a_wrong_shape(implementation(last_axis), CASE)
    assert found == "accepts a normalized_shape of [4] for an x of shape [4, 6]"


# --- repetition ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (1, "call 2 gives another answer than the first, for the same arguments"),
        (40, "call 100 gives another answer than the first, for the same arguments"),
        (101, "an answer changes when other calls have come between"),
    ],
)
def test_an_answer_that_changes_after_some_calls_is_found(calls: int, words: str) -> None:
    count = itertools.count()

    def tiring(*arguments: Any) -> Tensor:
        y = right(*arguments)
        return y if next(count) < calls else -y

    assert contract.answers_alike_every_time(implementation(tiring), CASE) == words


def test_nan_after_some_calls_is_found() -> None:
    count = itertools.count()

    def tiring(*arguments: Any) -> Tensor:
        return right(*arguments) * (1 if next(count) < 40 else float("nan"))

    found = contract.answers_alike_every_time(implementation(tiring), CASE)
    assert found is not None
    assert found.startswith("call 100 gives another answer")


def test_one_answer_for_all_arguments_is_found() -> None:
    known: dict[torch.Size, Tensor] = {}

    def cached(x: Tensor, *others: Any) -> Tensor:
        return known.setdefault(x.shape, right(x, *others)).clone()

    found = contract.answers_alike_every_time(implementation(cached), CASE)
    assert found == "gives the same answer for other arguments of the same shape"


def test_small_answers_are_not_taken_for_one() -> None:
    small = implementation(lambda *arguments: right(*arguments) * 1e-6)
    assert contract.answers_alike_every_time(small, CASE) is None


@pytest.mark.parametrize("place", [0, 2, 3], ids=["x", "weight", "bias"])
def test_old_numbers_of_an_address_are_found(place: int) -> None:
    known: dict[int, Tensor] = {}
    held: list[Tensor] = []  # so that no address is given twice

    def remembering(*arguments: Any) -> Tensor:
        given = list(arguments)
        held.append(given[place])
        remembered = known.setdefault(given[place].data_ptr(), given[place].clone())
        if remembered.shape == given[place].shape:
            given[place] = remembered
        return right(*given)

    name = {0: "x", 2: "weight", 3: "bias"}[place]
    found = contract.sees_new_data(implementation(remembering), CASE)
    assert found == f"takes new numbers in {name} at an old address for the old ones"


def test_a_second_shape_that_raises_is_found() -> None:
    first: list[int] = []

    def one_shape(x: Tensor, *others: Any) -> Tensor:
        first.append(x.shape[-1])
        if x.shape[-1] == 48:
            raise RuntimeError("made for one shape")
        return right(x, *others)

    (found,) = contract_findings(implementation(one_shape), CASE)
    assert isinstance(found, Remark)
    assert found.kind is RemarkKind.RAISES
    assert found.text.endswith("RuntimeError: made for one shape")


@pytest.mark.parametrize("name", ["unbiased_variance", "root_mean_square", "eps_squared"])
def test_what_is_wrong_but_steady_breaks_no_promise(name: str) -> None:
    mutant = next(each for each in WRONG if each.name == name)
    assert list(contract_findings(adopt(mutant.fresh(), name), CASE)) == []


def test_what_is_wrong_by_another_amount_each_time_breaks_no_promise() -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(*arguments: Any) -> Tensor:
        y = right(*arguments)
        return y + 1e-3 * (2 * torch.rand(y.shape, generator=generator) - 1)

    assert list(contract_findings(implementation(noisy), CASE)) == []


def test_what_is_wrong_and_later_another_thing_is_found() -> None:
    mutant = next(each for each in WRONG if each.name == "unbiased_variance")
    wrong, count = mutant.fresh(), itertools.count()

    def tiring(*arguments: Any) -> Tensor:
        y = wrong(*arguments)
        return y if next(count) < 40 else -y

    found = contract.answers_alike_every_time(implementation(tiring), CASE)
    assert found == "call 100 gives another answer than the first, for the same arguments"


# --- in words ------------------------------------------------------------------------------------


def test_what_is_declined_is_no_broken_promise() -> None:
    def declining(*arguments: Any) -> Tensor:
        raise UnsupportedError("not here")

    assert list(contract_findings(implementation(declining), CASE)) == []


def test_what_broke_the_contract_is_said_once() -> None:
    pair = adopt(lambda *arguments: (right(*arguments), None), "pair")
    assert list(contract_findings(pair, CASE)) == ["y is a tuple, expected a torch.Tensor"]


def test_the_case_that_is_given_stays_as_it_was() -> None:
    case = Case(implementation="native", shape=(1, 1), dtype="float64", param_dtype="float64")
    assert list(contract_findings(native, case)) == []
    assert case.shape == (1, 1)

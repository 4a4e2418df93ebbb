"""Contract checks of results: two calls agree, and no memory is shared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, case_in, layer_norm, mutant, target, then
from torch import Tensor

from harness.cases import make_inputs
from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import compared
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.run.attempt import attempt
from harness.verify.checks.calls import Call
from harness.verify.checks.memory import (
    y_shares_no_memory,
)
from harness.verify.checks.surroundings import (
    repeated_calls_agree,
    sees_new_values_at_old_addresses,
)
from implementations import Algorithm, Implementation, native, one_pass

DOUBLE = case_in("float64")  # so that a fraction of a bound can be represented


def differing(
    first: Tensor, again: Tensor, case: Case = CASE, implementation: Implementation = native
) -> list[str]:
    inputs = make_inputs(case)
    return Call(implementation, case, inputs).differing(Outputs(y=first), Outputs(y=again))


def exact_and_bound(case: Case = CASE) -> tuple[Tensor, Tensor]:
    inputs = make_inputs(case)
    outputs = Outputs(y=torch.zeros_like(inputs.x))
    bounds, reference = error_bound_of(native, case), Reference(inputs, case)
    (part,) = compared(outputs, inputs, case, bounds, reference)
    return part.exact[0], part.bound


def test_two_results_within_their_bounds_agree() -> None:
    exact, bound = exact_and_bound(DOUBLE)
    assert differing(exact + 0.9 * bound, exact - 0.9 * bound, DOUBLE) == []


def test_a_right_result_and_one_three_bounds_away_differ() -> None:
    exact, bound = exact_and_bound(DOUBLE)
    assert differing(exact, exact + 3 * bound, DOUBLE) == ["y"]
    assert differing(exact + 3 * bound, exact, DOUBLE) == ["y"]


def test_results_are_compared_at_the_precision_of_their_dtype() -> None:
    inputs = make_inputs(CASE)
    y = native(inputs.x, (32,), inputs.weight, inputs.bias)
    assert differing(y, y * (1 + 1e-4)) == ["y"]


@pytest.mark.parametrize(("noise", "expected"), [(1.5, []), (5.0, ["y"])])
def test_two_wrong_results_agree_up_to_noise_of_the_size_of_their_error(
    noise: float, expected: list[str]
) -> None:
    exact, bound = exact_and_bound(DOUBLE)
    wrong = exact + 1000 * bound
    changed = wrong + 1000 * noise * bound
    assert differing(wrong, changed, DOUBLE) == expected
    assert differing(changed, wrong, DOUBLE) == expected


def test_nan_in_the_same_place_agrees() -> None:
    exact, _ = exact_and_bound(DOUBLE)
    holed = exact.clone()
    holed[1, 2] = float("nan")
    assert differing(holed, holed.clone(), DOUBLE) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_finite_and_a_non_finite_result_differ(value: float) -> None:
    exact, _ = exact_and_bound(DOUBLE)
    holed = exact.clone()
    holed[1, 2] = value
    assert differing(holed, exact, DOUBLE) == ["y"]
    assert differing(exact, holed, DOUBLE) == ["y"]


def test_results_without_a_bound_never_differ() -> None:
    case = Case(implementation="one_pass", shape=(6, 32), distribution="offset_1e6")
    zeros = torch.zeros(6, 32)
    assert one_pass.algorithm is Algorithm.ONE_PASS
    assert differing(zeros, zeros + 1, case, one_pass) == []
    assert differing(zeros, zeros / 0, case, one_pass) == []


def test_differing_gradients_are_named() -> None:
    case = Case(implementation="native", shape=(5, 16), direction=Direction.BACKWARD)
    inputs = make_inputs(case)
    outputs = attempt(native, case, is_judged=False).outputs
    assert outputs is not None
    assert outputs.dx is not None
    assert outputs.dbias is not None
    other = Outputs(outputs.y, outputs.dx + 1e-3, outputs.dweight, outputs.dbias + 1e-3)
    assert Call(native, case, inputs).differing(outputs, other) == ["dx", "dbias"]


# === A result in the memory of an argument or of an earlier result is found


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
    assert f"memory of {owner}" in str(y_shares_no_memory(target(function), CASE))


def from_a_slab(step: int) -> Implementation:
    """A right LayerNorm, each result so many elements further on in one allocation."""
    slab, starts = torch.empty(1 << 12), itertools.count(0, step)

    def sliced(x: Tensor, *others: Any) -> Tensor:
        y = slab[next(starts) :][: x.numel()].view(x.shape)
        return y.copy_(layer_norm(x, *others))

    return target(sliced)


@pytest.mark.parametrize(
    ("step", "shares"), [(0, True), (1, True), (6 * 32 - 1, True), (6 * 32, False)]
)
def test_results_share_memory_if_they_overlap_in_one_allocation(step: int, shares: bool) -> None:
    assert (y_shares_no_memory(from_a_slab(step), CASE) is not None) is shares


# === A result that depends on earlier calls is found, however late it changes


def changing_after(
    calls: int, change: Callable[[Tensor], Tensor], function: Callable[..., Tensor] = layer_norm
) -> Callable[..., Tensor]:
    """Change every result after so many calls."""
    count = itertools.count()

    def changing(*arguments: Any) -> Tensor:
        y = function(*arguments)
        return y if next(count) < calls else change(y)

    return changing


@pytest.mark.parametrize(
    ("calls", "change", "fact"),
    [
        (1, torch.neg, "call 2 "),
        (40, torch.neg, "call 100 "),
        (40, lambda y: y * float("nan"), "call 100 "),
        (101, torch.neg, "calls with other arguments"),
    ],
)
def test_a_result_that_changes_after_some_calls_is_found(
    calls: int, change: Callable[[Tensor], Tensor], fact: str
) -> None:
    assert fact in str(repeated_calls_agree(target(changing_after(calls, change)), CASE))


def test_a_wrong_result_that_changes_is_found_too() -> None:
    wrong = changing_after(40, torch.neg, mutant("unbiased_variance").function)
    assert "call 100 " in str(repeated_calls_agree(target(wrong), CASE))


def test_one_result_for_all_arguments_is_found() -> None:
    known: dict[torch.Size, Tensor] = {}

    def cached(x: Tensor, *others: Any) -> Tensor:
        return known.setdefault(x.shape, layer_norm(x, *others)).clone()

    assert "other arguments" in str(repeated_calls_agree(target(cached), CASE))


def test_small_results_are_told_apart() -> None:
    assert repeated_calls_agree(target(then(lambda y: y * 1e-6)), CASE) is None


@pytest.mark.parametrize(("place", "name"), [(0, "x"), (2, "weight"), (3, "bias")])
def test_values_remembered_by_address_are_found(place: int, name: str) -> None:
    known: dict[int, Tensor] = {}
    held: list[Tensor] = []  # so that no address is reused

    def remembering(*arguments: Any) -> Tensor:
        given = list(arguments)
        held.append(given[place])
        remembered = known.setdefault(given[place].data_ptr(), given[place].clone())
        if remembered.shape == given[place].shape:
            given[place] = remembered
        return layer_norm(*given)

    text = sees_new_values_at_old_addresses(target(remembering), CASE)
    assert f"old values of {name} " in str(text)


def test_a_second_shape_that_raises_is_found() -> None:
    def one_shape(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 48:
            raise RuntimeError("made for one shape")
        return layer_norm(x, *others)

    with pytest.raises(Exception, match="RuntimeError: made for one shape"):
        sees_new_values_at_old_addresses(target(one_shape), CASE)

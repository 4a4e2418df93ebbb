"""Truth after the timing: what an implementation remembers of the timed calls is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from known_functions import BACKWARD, CASE, ONE_EPOCH, Known, good, measured
from torch import Tensor

from harness.inputs import LAYOUTS
from harness.records import Case, Direction, Measurement, Record, Status, WarningKind
from harness.run.case import CaseRunner

LATENCY = (Measurement.LATENCY,)
AFTER = 3  # calls, of which there are more in any epoch


Key = Callable[[Tensor], object]
KEYS: dict[str, Key] = {
    "address": lambda x: x.data_ptr(),
    "shape": lambda x: tuple(x.shape),
    "count": lambda _: None,
}


def remembering(key: Key) -> Callable[..., Tensor]:
    """A LayerNorm that gives its last result again, after some calls with the same key."""
    calls: dict[object, int] = {}
    results: dict[object, Tensor] = {}

    def function(x: Tensor, *rest: Any) -> Tensor:
        found = key(x)
        calls[found] = calls.get(found, 0) + 1
        if calls[found] <= AFTER:
            results[found] = good(x, *rest)
        return results[found]

    return function


class _Remembering(torch.autograd.Function):
    """Mean and deviation are remembered by shape, and so are wrong for other numbers."""

    kept: dict[object, tuple[Tensor, Tensor]] = {}  # noqa: RUF012 - autograd makes no instances

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        found = (x.mean(-1, keepdim=True), (x.var(-1, correction=0, keepdim=True) + eps).rsqrt())
        mean, rstd = _Remembering.kept.setdefault(x.shape, found)
        normalised = (x - mean) * rstd
        ctx.save_for_backward(normalised, rstd, weight)
        return normalised * weight + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        normalised, rstd, weight = ctx.saved_tensors
        g = dy * weight
        along = (g * normalised).mean(-1, keepdim=True)
        dx = rstd * (g - g.mean(-1, keepdim=True) - normalised * along)
        return dx, (dy * normalised).sum(0), dy.sum(0), None


def is_found_out(record: Record) -> bool:
    warned = WarningKind.CACHED_RESULT in {each.kind for each in record.warnings}
    assert warned is (record.status is Status.WRONG)
    return warned


# --- what remembers ------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_an_implementation_that_gives_a_remembered_result_is_wrong_after_the_timing(
    runner: CaseRunner, implementation: Known, key: str
) -> None:
    record = runner.run(implementation(remembering(KEYS[key])), LATENCY, ONE_EPOCH)
    assert is_found_out(record)
    assert measured(record) == {"errors", "latency"}  # those of when it was right


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 32), (1, 32), (3, 4, 8)], ids=str)
def test_it_is_found_out_in_any_layout_and_with_one_row(
    runner: CaseRunner, implementation: Known, layout: str, shape: tuple[int, ...]
) -> None:
    case = replace(CASE, shape=shape, layout=layout)
    remembers = remembering(KEYS["address"])
    assert is_found_out(runner.run(implementation(remembers, case), LATENCY, ONE_EPOCH))


@pytest.mark.parametrize("direction", [Direction.BACKWARD, Direction.FORWARD_BACKWARD])
def test_gradients_from_remembered_statistics_are_found_out(
    runner: CaseRunner, implementation: Known, direction: Direction
) -> None:
    _Remembering.kept.clear()
    case = implementation(
        lambda x, _, *rest: _Remembering.apply(x, *rest),  # type: ignore[no-untyped-call]
        replace(BACKWARD, direction=direction),
    )
    assert is_found_out(runner.run(case, LATENCY, ONE_EPOCH))


def test_without_a_timing_nothing_is_asked_again(runner: CaseRunner, implementation: Known) -> None:
    calls: list[None] = []

    def counting(*arguments: Any) -> Tensor:
        calls.append(None)
        return good(*arguments)

    runner.run(implementation(counting), (Measurement.ERRORS,), ONE_EPOCH)
    assert len(calls) == 1


def test_what_was_wrong_from_the_start_is_not_said_to_remember(
    runner: CaseRunner, implementation: Known
) -> None:
    record = runner.run(implementation(lambda *a: good(*a) * 1.01), LATENCY, ONE_EPOCH)
    assert record.status is Status.WRONG
    assert WarningKind.CACHED_RESULT not in {each.kind for each in record.warnings}


# --- what does not -------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "two_pass"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_implementation_is_right_after_the_timing_too(
    runner: CaseRunner, implementation: str, direction: Direction, layout: str
) -> None:
    case = Case(implementation=implementation, shape=(3, 4, 8), direction=direction, layout=layout)
    assert runner.run(case, LATENCY, ONE_EPOCH).status is Status.OK


@pytest.mark.parametrize("shape", [(1, 32), (1, 1), (32,), (0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("direction", Direction)
def test_one_row_and_no_elements_are_asked_again_too(
    runner: CaseRunner, shape: tuple[int, ...], direction: Direction
) -> None:
    case = Case(implementation="two_pass", shape=shape, direction=direction)
    record = runner.run(case, LATENCY, ONE_EPOCH)
    assert (record.status, record.reason) == (Status.OK, "")


@pytest.mark.parametrize("distribution", ["constant", "nan_row", "offset_1e4"])
def test_inputs_that_are_hard_are_asked_again_too(runner: CaseRunner, distribution: str) -> None:
    case = Case(implementation="native", shape=(8, 64), distribution=distribution)
    once = runner.run(case, (Measurement.ERRORS,), ONE_EPOCH)
    assert runner.run(case, LATENCY, ONE_EPOCH).status is once.status


def seeds(runner: CaseRunner) -> set[int]:
    """Seeds of the inputs that were drawn."""
    return {each.seed for each in runner._resources._drawn}


def test_a_result_that_turns_bit_by_bit_needs_no_other_numbers(runner: CaseRunner) -> None:
    runner.run(CASE, LATENCY, ONE_EPOCH)
    assert seeds(runner) == {0}


def test_a_result_that_does_not_turn_bit_by_bit_is_held_to_its_bound_for_other_numbers(
    runner: CaseRunner, implementation: Known
) -> None:
    def by_place(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y = good(x, shape, weight, bias, eps).clone()
        y[0] = good(x[0].double(), shape, weight.double(), bias.double(), eps)
        return y

    record = runner.run(implementation(by_place), LATENCY, ONE_EPOCH)
    assert record.status is Status.OK
    assert seeds(runner) == {0, 1}


def test_an_implementation_that_returns_the_same_buffer_each_time_is_right(
    runner: CaseRunner, implementation: Known
) -> None:
    buffer = torch.empty(CASE.shape)
    record = runner.run(implementation(lambda *a: buffer.copy_(good(*a))), LATENCY, ONE_EPOCH)
    assert record.status is Status.OK


def test_the_case_of_the_record_is_the_one_that_was_asked_for(
    runner: CaseRunner, implementation: Known
) -> None:
    case = implementation(remembering(KEYS["shape"]), replace(CASE, seed=7))
    assert runner.run(case, LATENCY, ONE_EPOCH).case == case

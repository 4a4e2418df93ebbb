"""The check after the timing detects cached results, and passes right implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ONE_EPOCH, Known, good, measured
from torch import Tensor

from harness.cases.inputs import LAYOUTS
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
    """Return a LayerNorm that returns a cached result after some calls with the same key."""
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
    """Mean and deviation are cached by shape, so they are wrong for other values."""

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


def is_detected(record: Record) -> bool:
    warned = WarningKind.CACHED_RESULT in {warning.kind for warning in record.warnings}
    assert warned is (record.status is Status.WRONG)
    return warned


# --- implementations that cache results ----------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_an_implementation_that_caches_results_is_wrong_after_the_timing(
    runner: CaseRunner, implementation: Known, key: str
) -> None:
    case = implementation(remembering(KEYS[key]), replace(CASE, seed=7))
    record = runner.run(case, LATENCY, ONE_EPOCH)
    assert is_detected(record)
    assert record.case == case
    assert measured(record) == {"errors", "latency"}  # from before it was wrong


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 32), (1, 32), (3, 4, 8)], ids=str)
def test_cached_results_are_detected_in_any_layout_and_with_one_row(
    runner: CaseRunner, implementation: Known, layout: str, shape: tuple[int, ...]
) -> None:
    case = replace(CASE, shape=shape, layout=layout)
    remembers = remembering(KEYS["address"])
    assert is_detected(runner.run(implementation(remembers, case), LATENCY, ONE_EPOCH))


@pytest.mark.parametrize("direction", [Direction.BACKWARD, Direction.FORWARD_BACKWARD])
def test_gradients_from_cached_statistics_are_detected(
    runner: CaseRunner, implementation: Known, direction: Direction
) -> None:
    _Remembering.kept.clear()
    case = implementation(
        lambda x, _, *rest: _Remembering.apply(x, *rest),  # type: ignore[no-untyped-call]
        replace(BACKWARD, direction=direction),
    )
    assert is_detected(runner.run(case, LATENCY, ONE_EPOCH))


# --- right implementations -----------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "two_pass"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_implementation_is_right_after_the_timing(
    runner: CaseRunner, implementation: str, direction: Direction, layout: str
) -> None:
    case = Case(implementation=implementation, shape=(3, 4, 8), direction=direction, layout=layout)
    assert runner.run(case, LATENCY, ONE_EPOCH).status is Status.OK


@pytest.mark.parametrize("distribution", ["constant", "nan_row", "offset_1e4"])
def test_difficult_inputs_are_right_after_the_timing(runner: CaseRunner, distribution: str) -> None:
    case = Case(implementation="native", shape=(8, 64), distribution=distribution)
    once = runner.run(case, (Measurement.ERRORS,), ONE_EPOCH)
    assert runner.run(case, LATENCY, ONE_EPOCH).status is once.status


def seeds(runner: CaseRunner) -> set[int]:
    """Seeds of the inputs that were drawn."""
    return {case.seed for case in runner.exact._kept}


def test_an_equivariant_result_needs_no_new_values(runner: CaseRunner) -> None:
    runner.run(CASE, LATENCY, ONE_EPOCH)
    assert seeds(runner) == {0}


def test_a_result_that_is_not_equivariant_is_judged_on_new_values(
    runner: CaseRunner, implementation: Known
) -> None:
    def by_place(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y = good(x, shape, weight, bias, eps).clone()
        y[0] = good(x[0].double(), shape, weight.double(), bias.double(), eps)
        return y

    record = runner.run(implementation(by_place), LATENCY, ONE_EPOCH)
    assert record.status is Status.OK
    assert seeds(runner) == {0, 1}


def test_an_implementation_that_returns_one_buffer_each_time_is_right(
    runner: CaseRunner, implementation: Known
) -> None:
    buffer = torch.empty(CASE.shape)
    record = runner.run(implementation(lambda *a: buffer.copy_(good(*a))), LATENCY, ONE_EPOCH)
    assert record.status is Status.OK

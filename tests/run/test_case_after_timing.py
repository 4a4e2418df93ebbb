"""The check after the timing detects cached results, and passes right implementations."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from factories.fake_device import FakeDevice, steady
from factories.known_functions import BACKWARD, CASE, ONE_EPOCH, Known, good, measured
from torch import Tensor

from harness.cases import LAYOUTS, make_inputs
from harness.measure.devices import device_of
from harness.measure.latency import Sampler, TimedCall
from harness.numerics.outputs import GRADIENTS
from harness.records import (
    ArmRole,
    Cache,
    Case,
    Direction,
    Measurement,
    Record,
    Status,
    WarningKind,
)
from harness.run.call import ContractViolationError, bind, grad_mode
from harness.run.case import CaseRunner, Timed, reuse, run_again

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


# === Calls after the timing: their results, their order, and their times for new values


NEW = 1.3e-6
"""Seconds of a call with new values, where one with the same values takes 1e-6."""
every_direction = pytest.mark.parametrize("direction", Direction)


def timed(function: Callable[..., Tensor], case: Case) -> Timed:
    """Return the timed calls of a function, bound to a copy of the inputs of its case."""
    inputs = make_inputs(case)
    placed = inputs.at([tensor.clone() for tensor in inputs.tensors])
    call = TimedCall(ArmRole.SUBJECT, "subject", partial(bind, function, case))
    subject = Sampler(call, device_of("cpu", 1), Cache.WARM)
    with grad_mode(case):
        subject.bind([placed.tensors])
    return Timed(case, function, subject, placed, inputs)


def scripted(script: Callable[[str, int], float], case: Case = CASE) -> tuple[Timed, FakeDevice]:
    """Return calls whose number n takes as long as the script says."""
    device = FakeDevice(script)
    (call,) = device.timed_calls("subject")
    subject = Sampler(call, device, Cache.WARM)
    inputs = make_inputs(case)
    placed = inputs.at([tensor.clone() for tensor in inputs.tensors])
    subject.bind([placed.tensors])
    return Timed(case, good, subject, placed, inputs), device


def alternating(name: str, number: int) -> float:
    """Take longer for each call with new values, which are the first, the third and so on."""
    return NEW if number % 2 == 0 else 1e-6


def new_inputs(case: Case) -> Any:
    return make_inputs(replace(case, seed=case.seed + 1))


@every_direction
def test_a_right_function_returns_the_same_in_a_timed_call(direction: Direction) -> None:
    case = replace(BACKWARD, direction=direction)
    new = new_inputs(case)
    target = timed(good, case)
    with grad_mode(case):
        (in_timer, _), alone = run_again(target, new)
    assert torch.equal(alone.y, good(new.x, (32,), new.weight, new.bias))
    if direction is Direction.FORWARD:
        assert torch.equal(in_timer.y, alone.y)
    if direction is Direction.FORWARD_BACKWARD:
        for name in GRADIENTS:
            assert torch.equal(getattr(in_timer, name), getattr(alone, name))
    if direction is Direction.BACKWARD:  # only dy is new to its graph
        assert torch.equal(in_timer.dbias, alone.dbias)
        assert not torch.equal(in_timer.dx, alone.dx)


def test_a_timed_call_is_first_then_the_last_of_two() -> None:
    calls: list[Tensor] = []

    def counting(*arguments: Any) -> Tensor:
        calls.append(arguments[0])
        return good(*arguments) + len(calls)

    target = timed(counting, CASE)
    with grad_mode(CASE):
        (first, last), alone = run_again(target, new_inputs(CASE))
    assert torch.allclose(first.y + 3, alone.y)
    assert torch.allclose(last.y + 1, alone.y)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (torch.empty_like, "in a timed call, y has elements that were never written"),
        (lambda y: y[:3], "y has shape"),
        (lambda y: y.as_subclass(torch.nn.Parameter), "y is of type Parameter, expected"),
        (lambda y: (gc.get_objects(), y)[1], "searches the objects of the process"),
    ],
)
def test_a_call_that_violates_its_contract_is_named(
    change: Callable[[Tensor], Tensor], said: str
) -> None:
    target = timed(lambda *arguments: change(good(*arguments)), replace(CASE, shape=(61, 67)))
    with grad_mode(CASE), pytest.raises(ContractViolationError, match=said):
        run_again(target, new_inputs(target.case))


def test_calls_that_take_longer_with_new_values_reuse_results() -> None:
    target, _ = scripted(alternating)
    said = "with new values a call takes 1.3 times as long"
    assert str(reuse(target)).endswith(said)


@pytest.mark.parametrize(
    "script",
    [
        steady,
        lambda *_: NEW,
        lambda name, number: 1e-6 if number == 4 else alternating(name, number),
        lambda name, number: 1e-6 if number % 2 == 0 else NEW,
    ],
    ids=["steady", "slow", "one_new_value_is_fast", "same_values_are_slow"],
)
def test_other_times_are_no_reuse(script: Callable[[str, int], float]) -> None:
    target, _ = scripted(script)
    assert reuse(target) is None


@pytest.mark.parametrize(("per_call_s", "calls"), [(NEW / 1.2, 2), (NEW / 1.3, 84)])
def test_one_sample_is_enough_if_it_is_as_fast_as_the_timed_ones(
    per_call_s: float, calls: int
) -> None:
    target, device = scripted(alternating)
    assert (reuse(target, per_call_s) is None) is (calls == 2)
    assert len(device.sampled) == calls  # of these, one in three takes the changes alone


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
@every_direction
def test_only_x_gets_new_values_or_dy_of_a_backward(direction: Direction, layout: str) -> None:
    case = replace(CASE, direction=direction, layout=layout)
    target, _ = scripted(alternating, case)
    reuse(target)
    changed = "dy" if direction is Direction.BACKWARD else "x"
    for name in ("x", "weight", "bias", "dy"):
        now, before = getattr(target.placed, name), getattr(target.inputs, name)
        if before is not None:
            assert torch.equal(now, before) is (name != changed)


def test_an_empty_x_has_no_values_to_reuse() -> None:
    target, device = scripted(alternating, replace(CASE, shape=(0, 32)))
    assert reuse(target) is None
    assert device.sampled == []

"""The check after the timing detects cached results, and passes right implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.fake_device import FakeDevice, steady
from factories.known_functions import BACKWARD, CASE, ONE_EPOCH, Known, good, measured
from torch import Tensor

from harness.cases import LAYOUTS, make_inputs
from harness.measure import Sampler
from harness.records import Cache, Case, Direction, Measurement, Record, Status, WarningKind
from harness.run import CaseRunner, Timed, reuse

LATENCY = (Measurement.LATENCY,)
AFTER = 3  # calls, of which there are more in any epoch


def remembering(key: Callable[[Tensor], object]) -> Callable[..., Tensor]:
    """Return a LayerNorm that returns a cached result after some calls with the same key."""
    results: dict[object, list[Tensor]] = {}

    def function(x: Tensor, *rest: Any) -> Tensor:
        found = results.setdefault(key(x), [])
        if len(found) < AFTER:
            found.append(good(x, *rest))
        return found[-1]

    return function


def is_detected(record: Record) -> bool:
    warned = WarningKind.CACHED_RESULT in {warning.kind for warning in record.warnings}
    assert warned is (record.status is Status.WRONG)
    return warned


# --- implementations that are wrong in later calls -----------------------------------------------


@pytest.mark.parametrize("key", [Tensor.data_ptr, lambda _: None], ids=["address", "count"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 32), (1, 32), (3, 4, 8)], ids=str)
def test_an_implementation_that_caches_results_is_wrong_after_the_timing(
    runner: CaseRunner, implementation: Known, key: Any, layout: str, shape: tuple[int, ...]
) -> None:
    case = implementation(remembering(key), replace(CASE, shape=shape, layout=layout, seed=7))
    record = runner.run(case, LATENCY, ONE_EPOCH)
    assert is_detected(record)
    assert measured(record) == {"errors", "latency"}  # from before it was wrong


def test_cached_gradients_are_detected(runner: CaseRunner, implementation: Known) -> None:
    kept: dict[object, Tensor] = {}

    def function(x: Tensor, *rest: Any) -> Tensor:
        x = x.view_as(x)
        x.register_hook(lambda dx: kept.setdefault(dx.shape, dx.clone()))
        return good(x, *rest)

    assert is_detected(runner.run(implementation(function, BACKWARD), LATENCY, ONE_EPOCH))


# --- right implementations -----------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "two_pass"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_implementation_is_right_after_the_timing(
    runner: CaseRunner, implementation: str, direction: Direction, layout: str
) -> None:
    case = Case(implementation=implementation, shape=(3, 4, 8), direction=direction, layout=layout)
    assert runner.run(case, LATENCY, ONE_EPOCH).status is Status.OK


def in_one_buffer(*arguments: Any, buffer: Tensor = torch.empty(CASE.shape)) -> Tensor:  # noqa: B008
    return buffer.copy_(good(*arguments))


def test_a_result_that_returns_to_one_buffer_is_right(
    runner: CaseRunner, implementation: Known
) -> None:
    assert runner.run(implementation(in_one_buffer), LATENCY, ONE_EPOCH).status is Status.OK


# --- the times of calls with new values ----------------------------------------------------------


NEW = 1.3e-6
"""Seconds of a call with new values, where one with the same values takes 1e-6."""
Script = Callable[[str, int], float]


def scripted(script: Script) -> tuple[Timed, FakeDevice]:
    """Return calls whose number n takes as long as the script says."""
    device = FakeDevice(script)
    (call,) = device.timed_calls("subject")
    subject = Sampler(call, device, Cache.WARM)
    inputs = make_inputs(CASE)
    placed = inputs.at([tensor.clone() for tensor in inputs.tensors])
    subject.bind([placed.tensors])
    return Timed(CASE, good, subject, placed, inputs), device


def alternating(name: str, number: int) -> float:
    """Take longer for each call with new values, which are the first, the third and so on."""
    return NEW if number % 2 == 0 else 1e-6


@pytest.mark.parametrize(
    ("script", "per_call_s", "is_reuse", "calls"),
    [
        (alternating, 0.0, True, 84),
        (alternating, NEW / 1.3, True, 84),
        (alternating, NEW / 1.2, False, 2),  # the first sample is as fast as the timed ones
        (steady, 0.0, False, 21),
        (lambda *_: NEW, 0.0, False, 21),
        (lambda name, n: 1e-6 if n == 4 else alternating(name, n), 0.0, False, 21),
        (lambda name, n: 1e-6 if n % 2 == 0 else NEW, 0.0, False, 21),
    ],
)
def test_calls_that_take_longer_with_new_values_reuse_results(
    script: Script, per_call_s: float, is_reuse: bool, calls: int
) -> None:
    target, device = scripted(script)
    said = reuse(target, per_call_s)
    assert (said or "").endswith("a call takes 1.3 times as long") is is_reuse
    assert (said is None) is not is_reuse
    assert len(device.sampled) == calls

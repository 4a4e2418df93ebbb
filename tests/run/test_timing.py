"""What is timed in turn with a case, what must move, and a replay where a launch takes long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from factories.fake_device import ROOMY, FakeDevice, latency_of

from harness.cases import make_inputs
from harness.measure import Sampled, TimedCall
from harness.records import Affine, Allocation, ArmRole, Cache, Case, Clock, Direction, Status
from harness.run import Judged, model_bytes, result_bytes, time_case, timed_calls_of
from implementations import find

CASE = Case(implementation="native", shape=(16, 32))
LARGE = replace(CASE, shape=(256, 1024))  # x of 1 MiB
X, WIDTH = 16 * 32 * 4, 32 * 4


# --- what is timed in turn -----------------------------------------------------------------------


def names(case: Case) -> list[tuple[ArmRole, str]]:
    function = find(case.implementation).function
    return [(timed.role, timed.name) for timed in timed_calls_of(function, case)]


@pytest.mark.parametrize(
    ("device", "copies"),
    [("cpu", ["torch copy_", "numpy copyto"]), ("cuda", ["torch copy_", "torch add"])],
)
def test_the_reference_and_two_copies_are_timed_with_a_case(device: str, copies: list[str]) -> None:
    assert names(replace(CASE, implementation="two_pass", device=device)) == [
        (ArmRole.SUBJECT, "two_pass"),
        (ArmRole.REFERENCE, "native"),
        *((ArmRole.CEILING, name) for name in copies),
    ]


def test_from_one_megabyte_on_a_streamed_copy_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_streamed(**changes: Any) -> bool:
        return (ArmRole.CEILING, "streamed copy") in names(replace(LARGE, **changes))

    monkeypatch.setattr("harness.run.timing.can_stream", lambda: True)
    assert is_streamed()
    assert not is_streamed(shape=(255, 1024))
    assert not is_streamed(dtype="bfloat16")
    assert not is_streamed(layout="transposed")


@pytest.mark.parametrize(
    ("change", "moved", "results"),
    [
        ({}, 2 * X + 2 * WIDTH, X),
        # x, dy, weight read; dx, dweight, dbias written
        ({"direction": Direction.BACKWARD}, 3 * X + 3 * WIDTH, X + 2 * WIDTH),
        # both, with y written between them
        ({"direction": Direction.FORWARD_BACKWARD}, 5 * X + 5 * WIDTH, 2 * X + 2 * WIDTH),
        ({"affine": Affine.BIAS}, 2 * X + WIDTH, X),
        ({"dtype": "bfloat16"}, X + 2 * WIDTH, X // 2),  # the parameters stay float32
        ({"shape": (5, 0)}, 0, 0),
    ],
)
def test_bytes_that_must_move_are_those_of_each_given_tensor_once_in_each_pass(
    change: dict[str, Any], moved: int, results: int
) -> None:
    case = replace(CASE, **change)
    inputs = make_inputs(case)
    assert (model_bytes(case, inputs), result_bytes(case, inputs)) == (moved, results)


# --- the latency and, where the launch takes long, its replay ------------------------------------

TIMES_S = {"subject": 4e-6, "reference": 8e-6, "copy": 1e-6}
TIMES_S |= {"replayed subject": 3e-6, "replayed reference": 2e-6}


def by_name(name: str, _: int) -> float:
    return TIMES_S[name]


GPU = partial(FakeDevice, kind="cuda", clock=Clock.CUDA_EVENT)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sampled]:
    """Time a case on a device, with the timed calls of the device instead of those of the case."""

    def time(device: FakeDevice, case: Case = CASE, cache: Cache = Cache.WARM) -> Sampled:
        def timed_calls_of(*_: object) -> list[TimedCall]:
            return device.timed_calls("subject", "reference", "copy")

        monkeypatch.setattr("harness.run.timing.timed_calls_of", timed_calls_of)
        monkeypatch.setattr("harness.measure.latency.perf_counter", device.now)
        return time_case(
            Judged(case=case, status=Status.OK, function=find("native").function),
            *(make_inputs(case), device, ROOMY),
            allocation=Allocation.DEFAULT,
            cache=cache,
        )

    return time


@pytest.mark.parametrize(("launch_s", "warnings"), [(2.1e-6, []), (9e-6, ["launch_bound"])])
def test_a_call_with_a_long_launch_is_replayed_with_the_reference(
    timed: Callable[..., Sampled], launch_s: float, warnings: list[str]
) -> None:
    device = GPU(by_name, launch_s=launch_s)
    sampled = timed(device)
    latency = latency_of(sampled)
    assert "replayed copy" not in dict(device.sampled)
    assert [arm.name for arm in latency.arms] == ["subject", "reference", "copy"]
    assert latency.per_call_s.value == pytest.approx(4e-6)
    assert latency.replay_s.value == pytest.approx(3e-6)
    assert latency.replay_ratio.value == pytest.approx(1.5)
    assert [warning.kind for warning in sampled.warnings] == warnings
    assert sampled.sampling_s + sampled.warming_s == pytest.approx(device.now())


@pytest.mark.parametrize(
    ("call_s", "cache", "calls"),
    [
        (4e-6, Cache.WARM, 20),
        (60e-6, Cache.WARM, 3),
        (300e-6, Cache.WARM, 1),
        (4e-6, Cache.FLUSHED, 1),  # only the first of several would be cold
    ],
)
def test_a_replay_has_up_to_20_warm_calls(
    timed: Callable[..., Sampled], call_s: float, cache: Cache, calls: int
) -> None:
    device = GPU(lambda *_: call_s, launch_s=1e-3)
    assert latency_of(timed(device, cache=cache)).replay_s is not None
    assert device.recorded == {calls}


@pytest.mark.parametrize(
    ("device", "is_tried"),
    [
        (GPU(by_name, launch_s=1.9e-6), False),
        (GPU(lambda name, _: 0.0 if "replayed" in name else TIMES_S[name], launch_s=9e-6), True),
    ],
    ids=["short launch", "the clock stands still in the replay"],
)
def test_a_call_with_a_short_launch_or_a_failed_replay_has_its_latency_alone(
    timed: Callable[..., Sampled], device: FakeDevice, is_tried: bool
) -> None:
    latency = latency_of(timed(device))
    assert (latency.replay_s, latency.replay_ratio) == (None, None)
    assert latency.per_call_s.value == pytest.approx(4e-6)
    assert ("replayed subject" in dict(device.sampled)) is is_tried


def test_a_latency_is_compared_with_a_copy_of_the_bytes_of_the_case(
    timed: Callable[..., Sampled],
) -> None:
    latency = latency_of(timed(FakeDevice(by_name)))
    # a copy of x takes 1 us, the subject 4
    assert latency.ceiling_ratio == pytest.approx((2 * X + 2 * WIDTH) / (2 * X) / 4)
    latency = latency_of(timed(FakeDevice(by_name), replace(CASE, shape=(0, 5))))
    assert latency.ceiling_ratio is None

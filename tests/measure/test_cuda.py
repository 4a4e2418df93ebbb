"""The CUDA device on a fake GPU: cache, clock, replays, condition, and the time of calls."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable

import pytest
import torch
from factories.fake_cuda import POOL, QUEUE, UUID, Gpu, Nvml

from harness.measure.devices import CudaDevice
from harness.records import Clock, DeviceState

US = 1e-6
NEAR = 0.1 * US  # beyond what the fake's events can tell apart


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu().installed(monkeypatch)


@pytest.fixture
def device(gpu: Gpu) -> CudaDevice:
    return gpu.ready_device()


# --- the cache -----------------------------------------------------------------------------------


def test_twice_the_devices_own_cache_is_read_and_allocated_once(
    gpu: Gpu, device: CudaDevice
) -> None:
    assert device.cache_bytes() == 50 << 20
    issued = gpu.now_s
    device.evict()
    device.evict()
    assert gpu.happened == ["allocate"] + [f"read {100 << 20}"] * 2
    assert gpu.now_s - issued < 30 * US  # not waited for
    assert gpu.current.free_at > gpu.now_s


def test_nothing_is_called_between_the_eviction_and_the_timed_call(
    gpu: Gpu, device: CudaDevice
) -> None:
    call, flood = gpu.kernel(2 * US, 10 * US), f"read {100 << 20}"
    device.evict()
    gpu.happened.clear()
    device.time(call, 1)
    assert gpu.happened == ["call", flood, "call"]  # once to get to know it
    device.evict()
    gpu.happened.clear()
    assert device.time(call, 1).wall_s == pytest.approx(2 * US, abs=NEAR)
    assert gpu.happened == ["call"]
    gpu.happened.clear()
    device.time(gpu.kernel(2 * US, 10 * US), 1)  # without an eviction
    assert gpu.happened == ["call"] * 2


def test_memory_that_the_allocator_holds_unused_is_free(device: CudaDevice) -> None:
    assert device.free_bytes() == (1 << 30) + (1 << 20)  # of the driver, and of the allocator


# --- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [32e-9, 0.5e-6, 1e-6])
def test_the_step_of_the_events_is_the_resolution(gpu: Gpu, step_s: float) -> None:
    gpu.step_s = step_s
    device = CudaDevice()
    assert device.resolution_s() == pytest.approx(step_s, rel=1e-3)
    gpu.slept.clear()
    device.resolution_s()
    assert gpu.slept == []  # measured once


def test_wake_keeps_the_device_busy_for_a_fifth_of_a_second(gpu: Gpu, device: CudaDevice) -> None:
    began = gpu.now_s
    device.wake()
    assert 0.19 < sum(gpu.blocks_s()) <= gpu.now_s - began < 0.21


# --- replays -------------------------------------------------------------------------------------


def test_a_replay_takes_the_time_of_the_device(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    replay = device.replayed(lambda: lambda: (call(), call()))
    assert replay is not None
    assert len(gpu.happened) == 8  # three times before it was recorded
    reading = device.time(replay, 10)
    assert reading.wall_s == pytest.approx(10 * 2 * 2 * US, abs=NEAR)
    assert reading.launch_s == pytest.approx(10 * gpu.replay_s)


def test_a_call_is_recorded_on_its_own_stream_and_in_its_own_pool(
    gpu: Gpu, device: CudaDevice
) -> None:
    used = []

    def prepare() -> Callable[[], object]:
        used.append(gpu.current)  # a forward runs here, on the stream of its backward
        return lambda: (used.append(gpu.current), gpu.launch(US, US))

    device.replayed(prepare)
    assert set(used) == {*gpu.streams[1:]}
    assert len(gpu.streams) == 2
    assert gpu.current is gpu.default
    assert [graph.pools for graph in gpu.graphs] == [(POOL,)]


def test_a_recording_starts_after_earlier_work(gpu: Gpu, device: CudaDevice) -> None:
    gpu.launch(1e-3, 1 * US)  # such as what fills its inputs
    ready_at, began_at = gpu.default.free_at, []
    device.replayed(lambda: lambda: (began_at.append(gpu.current.free_at), gpu.launch(US, US)))
    assert min(began_at) >= ready_at


def test_a_call_that_cannot_be_recorded_has_no_replay_and_the_stream_still_works(
    gpu: Gpu, device: CudaDevice
) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    assert device.replayed(lambda: lambda: (call(), gpu.current.synchronize())) is None
    assert gpu.given_up == [("end_allocation_to_pool", POOL), ("release_pool", POOL)]
    assert gpu.current is gpu.default
    assert device.time(call, 10).wall_s == pytest.approx(20 * US, abs=NEAR)
    assert device.replayed(lambda: call) is not None
    gpu.leaves_pools, gpu.given_up = True, []
    assert device.replayed(lambda: gpu.current.synchronize) is None
    assert gpu.given_up == [("end_allocation_to_pool", POOL)]


def test_a_call_that_replaces_the_error_has_no_replay(gpu: Gpu, device: CudaDevice) -> None:
    def call() -> None:
        try:
            gpu.current.synchronize()
        except RuntimeError as error:
            raise LookupError from error  # ending the capture fails all the same

    assert device.replayed(lambda: call) is None
    assert gpu.current is gpu.default


def test_a_call_on_another_stream_has_no_replay(gpu: Gpu, device: CudaDevice) -> None:
    assert device.replayed(lambda: gpu.kernel(2 * US, 10 * US, gpu.stream())) is None


@pytest.mark.parametrize("made", [0, 3])
def test_another_exception_of_a_recorded_call_propagates(
    gpu: Gpu, device: CudaDevice, made: int
) -> None:
    calls = iter(range(made))

    def call() -> None:
        if next(calls, None) is None:
            raise KeyError(made)

    with pytest.raises(KeyError):
        device.replayed(lambda: call)
    assert gpu.current is gpu.default


def test_a_replay_keeps_its_tensors_alive(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    results = []

    def calling() -> object:
        call()
        results.append(result := torch.ones(1))
        return result

    kept, replay = weakref.ref(calling), device.replayed(lambda call=calling: call)
    written = weakref.ref(results[-1])
    results.clear()
    del calling
    gc.collect()
    assert (kept() is None, written() is None) == (False, False)
    del replay
    gc.collect()
    assert (kept(), written()) == (None, None)


# --- its condition -------------------------------------------------------------------------------


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return Nvml(os.getpid(), reasons=0x04).installed(monkeypatch)


def test_the_condition_is_that_of_the_gpu_with_the_current_devices_uuid(
    gpu: Gpu, device: CudaDevice, nvml: Nvml
) -> None:
    class Uuid:  # torch gives an object of its own
        def __str__(self) -> str:
            return UUID

    gpu.uuid = Uuid()
    assert device.condition().throttled_by == ("power cap",)
    assert nvml.asked == [f"GPU-{UUID}"]
    gpu.uuid = None  # an older torch gives none
    assert device.condition() == DeviceState()


def test_nvml_is_opened_once_and_shut_with_the_device(
    gpu: Gpu, device: CudaDevice, nvml: Nvml
) -> None:
    device = CudaDevice()
    device.condition()
    device.condition()
    assert nvml.open == 1
    del device
    gc.collect()
    assert nvml.open == 0


# === The time of calls on a CUDA device is that of the device, and never too short


def wait_after(gpu: Gpu, call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that waits for its own result."""

    def waiting() -> None:
        call()
        gpu.current.synchronize()

    return waiting


# --- device time, not host time ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "device_s", "host_s"), [(1, 2 * US, 10 * US), (30, 2 * US, 10 * US), (5, 1e-4, US)]
)
def test_a_call_takes_the_time_of_the_device(
    gpu: Gpu, device: CudaDevice, calls: int, device_s: float, host_s: float
) -> None:
    reading = device.time(gpu.kernel(device_s, host_s), calls)
    assert reading.wall_s == pytest.approx(calls * device_s, abs=NEAR)


def test_launch_time_is_the_time_of_the_host(gpu: Gpu, device: CudaDevice) -> None:
    reading = device.time(gpu.kernel(100 * US, 3 * US), 5)
    assert reading.launch_s == pytest.approx(15 * US)
    assert reading.cpu_s is None
    assert device.clock is Clock.CUDA_EVENT


def test_calls_are_made_as_often_as_asked_and_a_new_one_once_more(
    gpu: Gpu, device: CudaDevice
) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    device.time(call, 7)
    assert gpu.happened == ["call"] * 8
    device.time(call, 7)  # known by now
    assert gpu.happened == ["call"] * 15


def test_more_launches_than_the_queue_holds_never_look_faster(gpu: Gpu, device: CudaDevice) -> None:
    calls = 3 * QUEUE
    call = gpu.kernel(2 * US, 10 * US)
    for _ in range(5):
        assert device.time(call, calls).wall_s >= calls * 2 * US - NEAR


def test_an_exception_of_a_timed_call_propagates(device: CudaDevice) -> None:
    with pytest.raises(ZeroDivisionError):
        device.time(lambda: 1 // 0, 1)


# --- the block -----------------------------------------------------------------------------------


def test_the_block_is_one_and_a_half_times_the_issue_time(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    device.time(call, 20)
    assert gpu.blocks_s() == [pytest.approx(1.5 * 20 * 10 * US)]
    device.time(call, 10)
    assert gpu.blocks_s()[1:] == [pytest.approx(1.5 * 10 * 10 * US)]


@pytest.mark.parametrize("hz", [345e6, 2e9])
def test_the_clock_rate_is_measured(gpu: Gpu, hz: float) -> None:
    gpu.hz = hz
    CudaDevice().time(gpu.kernel(2 * US, 10 * US), 100)
    assert gpu.blocks_s()[-1] == pytest.approx(1.5e-3, rel=1e-3)


def test_a_clock_rate_that_rises_is_noticed(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    gpu.hz *= 5  # as an idle GPU does when it gets work
    device.time(call, 100)
    device.time(call, 100)
    device.time(call, 100)
    assert gpu.blocks_s()[-1] == pytest.approx(1.5e-3, rel=0.01)
    assert device.time(call, 100).wall_s == pytest.approx(200 * US, abs=NEAR)


def test_a_block_that_is_too_short_is_doubled(gpu: Gpu, device: CudaDevice) -> None:
    costs = iter([10 * US] + [50 * US] * 1000)

    def call() -> None:
        gpu.launch(2 * US, next(costs))

    readings = [device.time(call, 10).wall_s for _ in range(4)]
    assert gpu.blocks_s()[:3] == pytest.approx([150 * US, 300 * US, 600 * US])
    assert readings[0] > readings[1] > 20 * US + NEAR  # the queue ran dry: too long, not too short
    assert readings[2:] == pytest.approx([20 * US] * 2, abs=NEAR)
    assert gpu.blocks_s()[3] == pytest.approx(1.5 * 500 * US)


def test_interruptions_of_the_host_do_not_end_the_blocks(gpu: Gpu, device: CudaDevice) -> None:
    costs = iter([10 * US, 4e-3, 10 * US] * 4)

    def call() -> None:
        gpu.launch(2 * US, next(costs))

    device.time(call, 1)
    for _ in range(3):
        assert device.time(call, 1).wall_s == pytest.approx(2 * US, abs=NEAR)
        device.time(call, 1)
        device.time(call, 1)
    assert gpu.blocks_s() == pytest.approx([15 * US, *[30 * US, 15 * US, 15 * US] * 3])


def test_a_block_is_never_longer_than_50_ms(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 20e-3)
    for _ in range(5):
        device.time(call, 4)
    assert max(gpu.blocks_s()) == pytest.approx(50e-3)
    assert len(gpu.slept) == 3  # none of which would do


def test_a_call_that_waits_for_the_device_is_soon_not_blocked(gpu: Gpu, device: CudaDevice) -> None:
    call = wait_after(gpu, gpu.kernel(100 * US, 10 * US))
    readings = [device.time(call, 2) for _ in range(6)]
    assert len(gpu.slept) == 3
    assert sum(gpu.blocks_s()) < 3e-3
    assert readings[-1].launch_s == pytest.approx(220 * US)
    assert all(reading.wall_s >= 210 * US - NEAR for reading in readings)


def test_a_timed_call_is_not_kept_alive(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    device.time(call, 1)
    gone = weakref.ref(call)
    del call
    gc.collect()
    assert gone() is None


# --- work on other streams -----------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 10])
@pytest.mark.parametrize("device_s", [50 * US, 10e-3])
def test_work_on_another_stream_is_timed(
    gpu: Gpu, device: CudaDevice, device_s: float, calls: int
) -> None:
    call = gpu.kernel(device_s, 10 * US, gpu.stream())
    for _ in range(3):
        reading = device.time(call, calls)
        assert reading.wall_s >= calls * device_s - NEAR
        assert reading.wall_s <= calls * device_s + 20 * US  # its launch, and finding it done
    assert gpu.slept == []


def test_work_on_another_stream_is_not_hidden_by_an_eviction(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(20 * US, 10 * US, gpu.stream())
    for _ in range(3):
        device.evict()
        assert device.time(call, 1).wall_s >= 20 * US


def test_a_call_with_work_on_another_stream_stays_timed_by_the_host(
    gpu: Gpu, device: CudaDevice
) -> None:
    streams = iter([gpu.stream()] * 3 + [None])

    def call() -> None:
        gpu.launch(50 * US, 10 * US, next(streams))

    assert device.time(call, 1).wall_s == pytest.approx(60 * US + gpu.sync_s, abs=NEAR)


def test_work_that_the_stream_waits_for_is_timed_by_events(gpu: Gpu, device: CudaDevice) -> None:
    side = gpu.stream()

    def call() -> None:
        side.wait_stream(gpu.current)
        gpu.launch(2 * US, 10 * US, side)
        gpu.current.wait_stream(side)

    assert device.time(call, 20).wall_s == pytest.approx(40 * US, abs=NEAR)


def test_a_longer_wait_after_work_is_not_work_on_another_stream(gpu: Gpu) -> None:
    gpu.rested_s, gpu.sync_s = 2 * US, 8 * US
    reading = CudaDevice().time(gpu.kernel(2 * US, 10 * US), 20)
    assert reading.wall_s == pytest.approx(40 * US, abs=NEAR)


def test_an_interrupted_host_is_not_taken_for_work_on_another_stream(
    gpu: Gpu, device: CudaDevice
) -> None:
    call = gpu.kernel(2 * US, 10 * US)

    def interrupted() -> None:
        if len(gpu.happened) < 2:
            gpu.hiccup_s = 1e-3
        call()

    assert device.time(interrupted, 5).wall_s == pytest.approx(10 * US, abs=NEAR)
    gpu.hiccup_s = 1e-3
    assert device.time(interrupted, 5).wall_s > 1e-3  # too long, and the next one is right
    assert device.time(interrupted, 5).wall_s == pytest.approx(10 * US, abs=NEAR)

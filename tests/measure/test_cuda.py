"""The CUDA device apart from its readings: cache, clock, replays, condition."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable

import pytest
import torch
from factories.fake_cuda import POOL, UUID, Gpu, Nvml

from harness.measure.devices import CudaDevice
from harness.records import DeviceState

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

"""The CUDA device on a fake GPU: cache, clock, replays, condition, and the time of calls."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import replace
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pynvml
import pytest
from factories.fake_cuda import UUID, Gpu, Nvml

from harness.measure import CudaDevice
from harness.records import DeviceState

US = 1e-6
NEAR = 0.1 * US  # beyond what the fake's events can tell apart


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu().installed(monkeypatch)


@pytest.fixture
def device(gpu: Gpu) -> CudaDevice:
    return gpu.ready_device()


# --- cache, memory and clock ---------------------------------------------------------------------

FLOOD = f"read {100 << 20}"


def test_nothing_is_called_between_the_eviction_and_the_timed_call(
    gpu: Gpu, device: CudaDevice
) -> None:
    assert device.cache_bytes() == 50 << 20
    device.evict()  # twice the cache
    call = gpu.kernel(2 * US, 10 * US)
    # a new call is made once to get to know it
    for expected in (["call", FLOOD, "call"], ["call"]):
        device.evict()
        gpu.happened.clear()
        assert device.time(call, 1).wall_s == pytest.approx(2 * US, abs=NEAR)
        assert gpu.happened == expected
    gpu.happened.clear()
    device.time(gpu.kernel(2 * US, 10 * US), 1)  # without an eviction
    assert gpu.happened == ["call"] * 2


def test_memory_that_the_allocator_holds_unused_is_free(device: CudaDevice) -> None:
    assert device.free_bytes() == (1 << 30) + (1 << 20)  # of the driver, and of the allocator


def test_the_step_of_the_events_is_the_resolution(gpu: Gpu) -> None:
    gpu.step_s = 0.5e-6
    assert CudaDevice().resolution_s == pytest.approx(0.5e-6, rel=1e-3)


def test_what_two_events_show_around_nothing_is_measured_behind_a_spin(gpu: Gpu) -> None:
    gpu.pair_s = 2 * US
    assert CudaDevice().empty_s == pytest.approx(2 * US)


class Result: ...


# --- replays -------------------------------------------------------------------------------------


def test_a_replay_takes_the_time_of_the_device_and_holds_one_result(
    gpu: Gpu, device: CudaDevice
) -> None:
    held: list[weakref.ref[object]] = []
    kernel = gpu.kernel(2 * US, 10 * US)

    def call() -> object:
        assert not any(result() for result in held)  # earlier results are freed
        kernel()
        result = Result()
        held.append(weakref.ref(result))
        return result

    replay = device.replayed(lambda: call, 5)
    assert replay is not None
    assert len(gpu.happened) == 8  # three times before it was recorded
    reading = device.time(replay, 10)
    assert reading.wall_s == pytest.approx(10 * 5 * 2 * US, abs=NEAR)
    assert reading.launch_s == pytest.approx(10 * gpu.replay_s)
    assert held[-1]() is not None


def test_a_call_that_cannot_be_recorded_has_no_replay_and_the_stream_still_works(
    gpu: Gpu, device: CudaDevice
) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    assert device.replayed(lambda: lambda: (call(), gpu.current.synchronize()), 2) is None
    assert gpu.current is gpu.default
    assert device.time(call, 10).wall_s == pytest.approx(20 * US, abs=NEAR)
    assert device.replayed(lambda: call, 2) is not None
    assert device.replayed(lambda: gpu.kernel(US, US, gpu.stream()), 2) is None  # nothing recorded


# --- its condition, as NVML says -----------------------------------------------------------------

ME, OTHER = os.getpid(), os.getpid() + 1
FULL = DeviceState(
    clock_hz=1980e6,
    clock_max_hz=1995e6,
    memory_clock_hz=3201e6,
    power_w=350.5,
    power_limit_w=700.0,
    temperature_c=41.0,
    throttled_by=(),
    other_processes=0,
)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """One GPU, on which this process computes alone."""
    return Nvml(ME).installed(monkeypatch)


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
def test_the_condition_is_that_of_the_gpu_with_the_current_devices_uuid(
    gpu: Gpu, uuid: str
) -> None:
    gpu.uuid = uuid
    assert CudaDevice().condition() == FULL


@pytest.mark.usefixtures("gpu")
def test_a_field_that_cannot_be_read_is_none_and_the_others_are_read(nvml: Nvml) -> None:
    nvml.fails = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo"}
    unknown = dict.fromkeys(("power_w", "clock_hz", "memory_clock_hz"))
    assert CudaDevice().condition() == replace(FULL, **unknown)


def condition(patch: pytest.MonkeyPatch, *processes: int, reasons: int = 0) -> DeviceState:
    Nvml(*processes, reasons=reasons).installed(patch)
    return CudaDevice().condition()


@pytest.mark.usefixtures("gpu")
def test_a_reason_for_throttling_has_words_and_an_idle_gpu_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle, capped = pynvml.nvmlClocksEventReasonGpuIdle, pynvml.nvmlClocksEventReasonSwPowerCap
    assert condition(monkeypatch, reasons=idle).throttled_by == ()
    assert condition(monkeypatch, reasons=idle | capped).throttled_by == ("power cap",)


@pytest.mark.usefixtures("gpu")
def test_other_processes_are_counted_if_this_one_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {
        (ME,): 0,
        (ME, OTHER, OTHER + 1): 2,
        (OTHER, ME, OTHER, ME): 1,  # listed once per slice of the GPU
        (OTHER,): None,  # this process is not listed
    }
    found = {listed: condition(monkeypatch, *listed).other_processes for listed in others}
    assert found == others


@pytest.mark.usefixtures("gpu")
def test_workers_of_the_same_run_are_not_counted_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with Popen([sys.executable, "-c", "input()"], stdin=PIPE) as sibling:
        assert condition(monkeypatch, ME, sibling.pid, 2**30).other_processes == 2
        # of the same parent, as a worker would find it
        parent = SimpleNamespace(pid=ME)
        monkeypatch.setattr("harness.measure.devices.parent_process", lambda: parent)
        assert condition(monkeypatch, ME, sibling.pid, 2**30).other_processes == 1
        sibling.communicate(b"\n")


# --- the time of calls is that of the device, and never too short --------------------------------


@pytest.mark.parametrize(
    ("calls", "device_s", "host_s"), [(1, 2 * US, 10 * US), (30, 2 * US, 10 * US), (5, 1e-4, US)]
)
def test_a_call_takes_the_time_of_the_device_and_its_launch_that_of_the_host(
    gpu: Gpu, device: CudaDevice, calls: int, device_s: float, host_s: float
) -> None:
    call = gpu.kernel(device_s, host_s)
    reading = device.time(call, calls)
    assert reading.wall_s == pytest.approx(calls * device_s, abs=NEAR)
    assert (reading.cpu_s, reading.launch_s) == (None, pytest.approx(calls * host_s))


def test_a_block_that_is_too_short_is_doubled(gpu: Gpu, device: CudaDevice) -> None:
    costs_s = iter([10 * US, *[50 * US] * 40])  # of the host

    def call() -> None:
        gpu.launch(2 * US, next(costs_s))

    readings = [device.time(call, 10).wall_s for _ in range(4)]
    assert gpu.blocks_s == pytest.approx([150 * US, 300 * US, 600 * US, 1.5 * 500 * US])
    assert readings[0] > readings[1] > 20 * US + NEAR  # the queue ran dry: too long, not too short
    assert readings[2:] == pytest.approx([20 * US] * 2, abs=NEAR)


# --- work on other streams -----------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 10])
def test_work_on_another_stream_is_timed(gpu: Gpu, device: CudaDevice, calls: int) -> None:
    call = gpu.kernel(50 * US, 10 * US, gpu.stream())
    for _ in range(3):
        reading = device.time(call, calls)
        # its launch, and finding it done
        assert -NEAR <= reading.wall_s - calls * 50 * US <= 20 * US


def test_a_sample_whose_wait_is_late_once_is_taken_again(gpu: Gpu, device: CudaDevice) -> None:
    kernel, late = gpu.kernel(2 * US, 10 * US), [False]

    def call() -> None:
        gpu.sync_s = 4e-3 if late.pop() else 4e-6  # an interruption of the host
        late.append(False)
        kernel()

    device.time(call, 1)
    late[:] = [True]
    assert device.time(call, 1).wall_s == pytest.approx(2 * US, abs=NEAR)

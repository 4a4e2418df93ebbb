"""The CUDA device on a fake GPU: cache, clock, replays, condition, and the time of calls."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pynvml
import pytest
import torch
from factories.fake_cuda import POOL, UUID, Gpu, Nvml, Stream

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


def launching(gpu: Gpu, *costs_s: float) -> Callable[[], object]:
    """Return a call of 2 us that takes the host as long as ``costs_s`` says, the last for ever."""
    costs = list(reversed(costs_s))
    return lambda: gpu.launch(2 * US, costs.pop() if len(costs) > 1 else costs[0])


@pytest.mark.parametrize(
    ("cuda", "is_available", "why"),
    [(None, False, "built without CUDA"), ("12.4", False, "no CUDA device"), ("12.4", True, None)],
)
def test_cuda_that_cannot_be_used_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, is_available: bool, why: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    found = CudaDevice().unavailable()
    assert found is None if why is None else why in (found or "")


# --- cache, memory and clock ---------------------------------------------------------------------

FLOOD = f"read {100 << 20}"  # twice the cache


def test_twice_the_devices_own_cache_is_read_and_allocated_once(
    gpu: Gpu, device: CudaDevice
) -> None:
    assert device.cache_bytes() == 50 << 20
    issued = gpu.now_s
    device.evict()
    device.evict()
    assert gpu.happened == ["allocate", FLOOD, FLOOD]
    assert gpu.now_s - issued < 30 * US  # not waited for
    assert gpu.current.free_at > gpu.now_s


def test_nothing_is_called_between_the_eviction_and_the_timed_call(
    gpu: Gpu, device: CudaDevice
) -> None:
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


@pytest.mark.parametrize("step_s", [32e-9, 0.5e-6, 1e-6])
def test_the_step_of_the_events_is_the_resolution(gpu: Gpu, step_s: float) -> None:
    gpu.step_s = step_s
    device = CudaDevice()
    assert device.resolution_s() == pytest.approx(step_s, rel=1e-3)
    gpu.blocks_s.clear()
    device.resolution_s()
    assert gpu.blocks_s == []  # measured once


def test_wake_keeps_the_device_busy_for_a_fifth_of_a_second(gpu: Gpu, device: CudaDevice) -> None:
    began = gpu.now_s
    device.wake()
    assert 0.19 < sum(gpu.blocks_s) <= gpu.now_s - began < 0.21


# --- replays -------------------------------------------------------------------------------------


def test_a_replay_takes_the_time_of_the_device(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    replay = device.replayed(lambda: lambda: (call(), call()))
    assert replay is not None
    assert len(gpu.happened) == 8  # three times before it was recorded
    reading = device.time(replay, 10)
    assert reading.wall_s == pytest.approx(10 * 2 * 2 * US, abs=NEAR)
    assert reading.launch_s == pytest.approx(10 * gpu.replay_s)


def test_a_call_is_recorded_on_its_own_stream_and_in_its_own_pool_after_earlier_work(
    gpu: Gpu, device: CudaDevice
) -> None:
    gpu.launch(1e-3, US)  # such as what fills its inputs
    ready_at, used = gpu.default.free_at, list[tuple[Stream, float]]()

    def prepare() -> Callable[[], object]:
        used.append((gpu.current, ready_at))  # a forward runs here, on the stream of its backward
        return lambda: (used.append((gpu.current, gpu.current.free_at)), gpu.launch(US, US))

    device.replayed(prepare)
    _, recording = gpu.streams
    assert {stream for stream, _ in used} == {recording}
    assert min(began_at for _, began_at in used) >= ready_at
    assert gpu.current is gpu.default
    assert [graph.pools for graph in gpu.graphs] == [(POOL,)]


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
    assert device.replayed(lambda: gpu.kernel(US, US, gpu.stream())) is None  # nothing recorded


def test_a_call_that_replaces_the_error_has_no_replay(gpu: Gpu, device: CudaDevice) -> None:
    def call() -> None:
        try:
            gpu.current.synchronize()
        except RuntimeError as error:
            raise LookupError from error  # ending the capture fails all the same

    assert device.replayed(lambda: call) is None


@pytest.mark.parametrize("made", [0, 3])
def test_another_exception_of_a_recorded_call_propagates(
    gpu: Gpu, device: CudaDevice, made: int
) -> None:
    costs_s = [US] * made

    def call() -> None:
        gpu.launch(US, costs_s.pop() if costs_s else {}["no more"])

    with pytest.raises(KeyError):
        device.replayed(lambda: call)
    assert gpu.current is gpu.default


def test_a_replay_keeps_its_tensors_alive(gpu: Gpu, device: CudaDevice) -> None:
    results = []

    def calling() -> object:
        gpu.launch(US, US)
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


def test_the_condition_is_that_of_the_gpu_with_the_current_devices_uuid(
    gpu: Gpu, nvml: Nvml
) -> None:
    class Uuid:  # torch gives an object of its own
        def __str__(self) -> str:
            return UUID

    for uuid in (UUID, f"GPU-{UUID}", Uuid()):
        gpu.uuid = uuid
        assert CudaDevice().condition() == FULL
    assert {*nvml.asked} == {f"GPU-{UUID}"}


@pytest.mark.parametrize(
    ("uuid", "fails"),
    [("f" * 36, ""), (None, ""), (UUID, "nvmlInit"), (UUID, "nvmlDeviceGetHandleByUUID")],
    ids=["unknown GPU", "no UUID, in an older torch", "no NVML", "no handle"],
)
def test_a_gpu_that_cannot_be_found_has_no_condition(
    gpu: Gpu, nvml: Nvml, uuid: str | None, fails: str
) -> None:
    gpu.uuid, nvml.fails = uuid, {fails}
    assert CudaDevice().condition() == DeviceState()
    gc.collect()
    assert nvml.open == 0


def test_nvml_is_opened_once_and_shut_with_the_device(gpu: Gpu, nvml: Nvml) -> None:
    device = CudaDevice()
    assert device.condition() == device.condition() == FULL
    assert nvml.open == 1
    nvml.answers["nvmlDeviceGetPowerUsage"] = lambda _: 1 // 0
    with pytest.raises(ZeroDivisionError):
        device.condition()
    assert nvml.open == 1
    del device
    gc.collect()
    assert nvml.open == 0


QUESTIONS = {
    "nvmlDeviceGetMaxClockInfo": ["clock_max_hz"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_w"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetCurrentClocks": ["throttled_by"],
    "nvmlDeviceGetComputeRunningProcesses": ["other_processes"],
    "nvmlDeviceGetClockInfo": ["clock_hz", "memory_clock_hz"],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_field_that_cannot_be_read_is_none_and_the_others_are_read(
    gpu: Gpu, nvml: Nvml, question: str
) -> None:
    nvml.fails = {answer for answer in nvml.answers if answer.startswith(question)}
    assert CudaDevice().condition() == replace(FULL, **dict.fromkeys(QUESTIONS[question]))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("newer", "field", "answer"),
    [
        ("nvmlDeviceGetTemperatureV", "temperature_c", 42.0),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttled_by", ("power brake",)),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "other_processes", 0),
    ],
)
def test_a_function_that_is_missing_or_fails_is_replaced_by_its_older_one(
    monkeypatch: pytest.MonkeyPatch, newer: str, field: str, answer: object
) -> None:
    for lacks, fails in (("", newer), (newer, "")):
        Nvml(ME, OTHER).installed(monkeypatch, lacks=lacks).fails = {fails}
        assert getattr(CudaDevice().condition(), field) == answer


def condition(patch: pytest.MonkeyPatch, *processes: int, reasons: int = 0) -> DeviceState:
    Nvml(*processes, reasons=reasons).installed(patch)
    return CudaDevice().condition()


WORDS = {
    "SwPowerCap": ("power cap",),
    "HwSlowdown": ("hardware slowdown",),
    "SwThermalSlowdown": ("thermal slowdown by the driver",),
    "HwThermalSlowdown": ("thermal slowdown by the hardware",),
    "HwPowerBrakeSlowdown": ("power brake",),
    # idle, or a chosen clock
    **dict.fromkeys(("None", "GpuIdle", "SyncBoost"), ()),
    **dict.fromkeys(("ApplicationsClocksSetting", "DisplayClockSetting"), ()),
}


@pytest.mark.usefixtures("gpu")
def test_each_reason_for_throttling_has_its_words_and_an_idle_gpu_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bits = {name: getattr(pynvml, f"nvmlClocksEventReason{name}") for name in WORDS}
    found = {name: condition(monkeypatch, reasons=bit).throttled_by for name, bit in bits.items()}
    assert found == WORDS


@pytest.mark.usefixtures("gpu")
def test_other_processes_are_counted_if_this_one_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {
        (ME,): 0,
        (ME, OTHER, OTHER + 1): 2,
        (OTHER, ME, OTHER, ME): 1,  # listed once per slice of the GPU
        (OTHER,): None,  # this process is not listed
        (): None,
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
    assert gpu.happened == ["call"] * (calls + 1)  # a new call once more
    device.time(call, calls)
    assert gpu.happened == ["call"] * (2 * calls + 1)


def test_the_block_is_one_and_a_half_times_the_issue_time(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 10 * US)
    device.time(call, 20)
    device.time(call, 10)
    assert gpu.blocks_s == pytest.approx([1.5 * 20 * 10 * US, 1.5 * 10 * 10 * US])


@pytest.mark.parametrize("hz", [345e6, 2e9])
def test_the_clock_rate_is_measured_and_noticed_when_it_rises(gpu: Gpu, hz: float) -> None:
    gpu.hz = hz
    call, device = gpu.kernel(2 * US, 10 * US), CudaDevice()
    device.time(call, 100)
    assert gpu.blocks_s[-1] == pytest.approx(1.5e-3, rel=1e-3)
    gpu.hz *= 5  # as an idle GPU does when it gets work
    readings = [device.time(call, 100).wall_s for _ in range(4)]
    assert gpu.blocks_s[-1] == pytest.approx(1.5e-3, rel=0.01)
    assert readings[-1] == pytest.approx(200 * US, abs=NEAR)


def test_a_block_that_is_too_short_is_doubled(gpu: Gpu, device: CudaDevice) -> None:
    call = launching(gpu, 10 * US, 50 * US)
    readings = [device.time(call, 10).wall_s for _ in range(4)]
    assert gpu.blocks_s == pytest.approx([150 * US, 300 * US, 600 * US, 1.5 * 500 * US])
    assert readings[0] > readings[1] > 20 * US + NEAR  # the queue ran dry: too long, not too short
    assert readings[2:] == pytest.approx([20 * US] * 2, abs=NEAR)


def test_interruptions_of_the_host_do_not_end_the_blocks(gpu: Gpu, device: CudaDevice) -> None:
    call = launching(gpu, *[10 * US, 4e-3, 10 * US] * 4)
    device.time(call, 1)
    readings = [device.time(call, 1).wall_s for _ in range(9)]
    assert readings[::3] == pytest.approx([2 * US] * 3, abs=NEAR)
    assert gpu.blocks_s == pytest.approx([15 * US, *[30 * US, 15 * US, 15 * US] * 3])


def test_a_block_is_never_longer_than_50_ms(gpu: Gpu, device: CudaDevice) -> None:
    call = gpu.kernel(2 * US, 20e-3)
    for _ in range(5):
        device.time(call, 4)
    assert max(gpu.blocks_s) == pytest.approx(50e-3)
    assert len(gpu.blocks_s) == 3  # none of which would do


def test_a_call_that_waits_for_the_device_is_soon_not_blocked(gpu: Gpu, device: CudaDevice) -> None:
    def call() -> None:
        gpu.launch(100 * US, 10 * US)
        gpu.current.synchronize()

    readings = [device.time(call, 2) for _ in range(6)]
    assert len(gpu.blocks_s) == 3
    assert sum(gpu.blocks_s) < 3e-3
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
        # its launch, and finding it done
        assert -NEAR <= reading.wall_s - calls * device_s <= 20 * US
    assert gpu.blocks_s == []


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

"""The time of calls on a CUDA device is that of the device, and never too short."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
from factories.fake_cuda import QUEUE, Gpu

from harness.measure.devices import CudaDevice
from harness.records import Clock

US = 1e-6
NEAR = 0.1 * US  # beyond what the fake's events can tell apart


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu().installed(monkeypatch)


@pytest.fixture
def device(gpu: Gpu) -> CudaDevice:
    return gpu.ready_device()


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

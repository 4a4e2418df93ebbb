"""A fake GPU: replacements of torch.cuda and NVML with a simulated clock.

Only work moves the clock. Issuing work takes the host time; each stream does its work in order, in
parallel with the others. torch's own context managers for streams and graphs are used, since the
tests include the state that they leave after a failure.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Self

import pynvml
import pytest
import torch

from harness.measure import CudaDevice
from harness.measure import devices as cuda

UUID = "01234567-89ab-cdef-0123-456789abcdef"


class Stream:
    """A stream, whose work is done in order."""

    device = 0

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.free_at = 0.0
        self.captures: Graph | None = None

    def wait_stream(self, other: Stream) -> None:
        self.free_at = max(self.free_at, other.free_at)

    def synchronize(self) -> None:
        self.gpu.refuse_in_capture()
        self.gpu.now_s = max(self.gpu.now_s, self.free_at)


class Event:
    """A point in time on the stream that is current when it is recorded."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.now_s, self.gpu.current.free_at)

    def query(self) -> bool:
        return self.gpu.now_s >= self.at

    def synchronize(self) -> None:
        self.gpu.now_s = max(self.gpu.now_s, self.at)

    def elapsed_time(self, other: Event) -> float:
        step_s = self.gpu.step_s
        return ((other.at // step_s - self.at // step_s) * step_s + self.gpu.pair_s) * 1e3


class Graph:
    """A capture: the times of its kernels, and whether it failed."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.times_s: list[float] = []
        self.is_broken = False

    def capture_begin(self, *_: object, **__: object) -> None:
        self.gpu.current.captures = self

    def capture_end(self) -> None:
        self.gpu.current.captures = None
        if self.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        if not self.times_s:
            warnings.warn("The CUDA Graph is empty. This usually means ...", stacklevel=2)

    def replay(self) -> None:
        self.gpu.launch(sum(self.times_s), self.gpu.replay_s)


class Gpu:
    """One device, and the host that issues work to it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.step_s = 32e-9
        """The resolution of events."""
        self.pair_s = 0.0
        """Seconds between two events around nothing."""
        self.L2_cache_size = 50 << 20
        self.sync_s = 4e-6
        """Seconds that a wait for an idle device takes."""
        self.replay_s = 3e-6
        """Seconds to issue a graph."""
        self.blocks_s: list[float] = []
        """The seconds of every spin."""
        self.happened: list[str] = []
        self.uuid: object = UUID
        self.default = self.current = Stream(self)
        self.streams = [self.default]

    def launch(self, device_s: float, host_s: float, stream: Stream | None = None) -> None:
        """Issue a kernel that takes the device ``device_s`` and the host ``host_s``."""
        stream = stream or self.current
        self.now_s += host_s
        if stream.captures:
            stream.captures.times_s.append(device_s)
            return
        stream.free_at = max(self.now_s, stream.free_at) + device_s

    def kernel(
        self, device_s: float, host_s: float, stream: Stream | None = None
    ) -> Callable[[], object]:
        """Return a call that launches one kernel."""

        def call() -> object:
            self.happened.append("call")
            return self.launch(device_s, host_s, stream)

        return call

    def stream(self) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    def synchronize(self) -> None:
        self.refuse_in_capture()
        self.now_s = max(self.now_s, *(stream.free_at for stream in self.streams), 0.0)
        self.now_s += self.sync_s

    def zeros(self, size: int, dtype: torch.dtype, device: str) -> SimpleNamespace:
        def read() -> None:
            self.happened.append(f"read {size * dtype.itemsize}")
            self.launch(30e-6, 5e-6)

        return SimpleNamespace(sum=read)

    def sleep(self, cycles: int) -> None:
        self.blocks_s.append(cycles / 2e9)
        self.launch(self.blocks_s[-1], 3e-6)

    def refuse_in_capture(self) -> None:
        if self.current.captures:
            self.current.captures.is_broken = True
            raise RuntimeError("operation not permitted when stream is capturing")

    def installed(self, patch: pytest.MonkeyPatch) -> Self:
        """Replace torch's functions."""
        stand_ins: dict[str, object] = {
            "Event": lambda enable_timing: Event(self),
            "Stream": self.stream,
            "CUDAGraph": lambda: Graph(self),
            "current_stream": lambda _=None: self.current,
            "set_stream": lambda stream: setattr(self, "current", stream),
            "synchronize": self.synchronize,
            "empty_cache": lambda: None,
            "graph_pool_handle": lambda: (0, 1),
            "current_device": lambda: 0,
            "_get_device_index": lambda *_: 0,  # torch.cuda.stream does nothing without a device
            "get_device_properties": lambda: self,
            "mem_get_info": lambda: (1 << 30, 4 << 30),
            "memory_reserved": lambda: 2 << 30,
            "memory_allocated": lambda: (2 << 30) - (1 << 20),
        }
        for name, stand_in in stand_ins.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
        patch.setattr(torch, "zeros", self.zeros)
        for name in ("end_allocation_to_pool", "release_pool"):
            patch.setattr(cuda, name, lambda *_: None)
        patch.setattr(cuda, "spin", self.sleep)
        patch.setattr(cuda, "perf_counter", lambda: self.now_s)
        return self

    def ready_device(self) -> CudaDevice:
        """Return a device that has measured its clocks: from now on only readings are recorded."""
        device = CudaDevice()
        device.time(self.kernel(1e-6, 1e-6), 1)
        self.blocks_s.clear()
        self.happened.clear()
        return device


class Nvml:
    """NVML with two GPUs, the second without a power limit; names in ``fails`` raise."""

    def __init__(self, *processes: int, reasons: int = 0) -> None:
        self.fails: set[str] = set()
        self.sliced: set[int] = set()
        """GPUs that are divided into slices (MIG)."""
        self.open = 0
        running = [SimpleNamespace(pid=pid) for pid in processes]
        clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
        self.answers: dict[str, Callable[..., object]] = {
            "nvmlInit": partial(self._open_by, 1),
            "nvmlShutdown": partial(self._open_by, -1),
            "nvmlSystemGetDriverVersion": lambda: "550.54",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: self._needs(uuid == f"GPU-{UUID}", 0),
            "nvmlDeviceGetName": "Imaginary {}".format,
            "nvmlDeviceGetUUID": "GPU-{}".format,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 << 30),
            "nvmlDeviceGetMigMode": lambda handle: [handle in self.sliced, 0],
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, handle),
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: self._needs(handle == 0, 700_000),
            "nvmlDeviceGetPowerUsage": lambda _: 350_500,
            "nvmlDeviceGetClockInfo": lambda _, clock: clocks[clock],
            "nvmlDeviceGetMaxClockInfo": lambda _, clock: clocks[clock] + 15,
            "nvmlDeviceGetTemperatureV": lambda _, sensor: 41 + sensor,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: reasons,
            "nvmlDeviceGetComputeRunningProcesses_v3": lambda _: running,
        }

    def _open_by(self, change: int) -> None:
        self.open += change

    def _needs(self, is_supported: bool, answer: int) -> int:
        if not is_supported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answer

    def _answer(self, name: str, *given: object) -> object:
        assert name == "nvmlInit" or self.open > 0, "asked while it was shut"
        self._needs(name not in self.fails, 0)
        return self.answers[name](*given)

    def installed(self, patch: pytest.MonkeyPatch) -> Self:
        """Replace the functions of pynvml."""
        for name in self.answers:
            patch.setattr(pynvml, name, partial(self._answer, name))
        return self

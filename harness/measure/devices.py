"""The devices that can be measured: the CPU and the current CUDA device.

The CPU is timed by the CPU time of the calling thread while no other thread works. The CPU time of
the process, read together with that of the thread, shows whether another thread worked.

A CUDA device is timed by events on its stream.
The host issues work, and the device does it later, in order. Two events around some calls measure
the device's work and also, if the device is faster than the host, its waiting for the host. So the
stream is blocked first, by a kernel that spins for longer than issuing the calls takes: the calls
then run without a gap.

Work on other streams escapes both the block and the events. It is detected by waiting for the whole
device once the stream is done; calls with such work are timed by the host's clock, up to the end of
all work. Work that ends before its call has been issued, within some microseconds, is not detected:
only a check of the results can find that it ran too early.

The condition of the device is read from its driver's management library, NVML. Nothing is ever set
there: no clock, limit or mode.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from multiprocessing import parent_process
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pynvml
import torch

from harness.records import Clock, DeviceState
from implementations.torch_private import end_allocation_to_pool, lacks, release_pool, spin

POWER_CAP = "power cap"
"""Reason for throttling that may last: the device then works at the speed that its power allows."""

_UNKNOWN_CACHE_BYTES = 64 << 20  # above the last-level cache of most processors
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_SUPPLIES = Path("/sys/class/power_supply")


class Reading(NamedTuple):
    """Seconds that some calls took together."""

    wall_s: float
    """By the wall clock or, on a GPU, between two of its events."""
    cpu_s: float | None
    """CPU time of the calling thread; None where other threads or a device do the work."""
    launch_s: float | None = None
    """Until the host had issued the calls; None where a call does the work itself."""
    process_s: float | None = None
    """CPU time of all threads of this process; None where it is not read."""


class CpuDevice:
    """The CPU. Every device has these methods."""

    kind = "cpu"
    empty_s = 0.0
    """Seconds in each reading that are not of its calls; here they are subtracted."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.clock = Clock.THREAD_CPU if threads == 1 else Clock.WALL
        self._thread_cost_ns, self._process_cost_ns = _clock_costs_ns()

    def wake(self) -> None:
        """Bring an idle device to its working speed: the calls of the warm-up raise the clocks."""

    def unavailable(self) -> str | None:
        """Return why the device cannot be used, or None."""
        return None

    def free_bytes(self) -> int | None:
        """Return the free memory, or None where it is unknown."""
        try:
            with open("/proc/meminfo") as file:
                available = next(line for line in file if line.startswith("MemAvailable:"))
        except (OSError, StopIteration):
            return None
        return int(available.split()[1]) * 1024

    def cache_bytes(self) -> int:
        """Return the size of the last-level cache, or a guess above it where it is unknown."""
        sizes = [_bytes_of(text) for path in _CACHES.glob("index*/size") if (text := _text(path))]
        return max(sizes, default=_UNKNOWN_CACHE_BYTES)

    @cached_property
    def resolution_s(self) -> float:
        """The smallest difference that the clock shows."""
        clock = thread_time_ns if self.clock is Clock.THREAD_CPU else perf_counter_ns
        return _step_ns(clock) / 1e9

    def synchronize(self) -> None:
        """Wait until all issued work is done."""

    def evict(self) -> None:
        """Empty the caches, so that the next call finds nothing in them."""
        raise NotImplementedError("on a CPU, cold calls take other inputs in turn")

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        """Time ``calls`` calls in a row."""
        repeats = range(calls)
        process_start = process_time_ns()
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        for _ in repeats:
            call()
        end = perf_counter_ns()
        cpu_end = thread_time_ns()
        process_end = process_time_ns()
        if self.threads > 1:
            return Reading((end - start) / 1e9, None)
        return Reading(
            (end - start) / 1e9,
            (cpu_end - cpu_start - self._thread_cost_ns) / 1e9,
            process_s=(process_end - process_start - self._process_cost_ns) / 1e9,
        )

    def replayed(
        self, prepare: Callable[[], Callable[[], object]], calls: int
    ) -> Callable[[], object] | None:
        """Return a replay of ``calls`` calls without the host's part; None if it cannot record."""
        return None

    def condition(self) -> DeviceState:
        """Return the device's present condition."""
        return DeviceState(
            load_average=_load_average(),
            steal_s=_steal_s(),
            governor=_text(_GOVERNOR),
            on_battery=_on_battery(),
        )


def _clock_costs_ns() -> tuple[int, int]:
    """Measure the CPU time that reading the clocks adds to that of the thread and the process."""
    of_thread, of_process = [], []
    for _ in range(101):
        process_start = process_time_ns()
        start = thread_time_ns()
        perf_counter_ns()
        perf_counter_ns()
        of_thread.append(thread_time_ns() - start)
        of_process.append(process_time_ns() - process_start)
    return int(median(of_thread)), int(median(of_process))


def _step_ns(clock: Callable[[], int]) -> int:
    """Return the smallest difference between two durations that the clock shows.

    A fine clock shows durations a nanosecond apart, since reading it takes varying time; a coarse
    one shows multiples of its step.
    """
    shown = set()
    for _ in range(101):
        start = now = clock()
        while now == start:
            now = clock()
        shown.add(now - start)
    durations = sorted(shown)
    return min((later - earlier for earlier, later in pairwise(durations)), default=durations[0])


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _bytes_of(size: str) -> int:
    """Read "32768K", as the kernel writes the size of a cache."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(size.rstrip("KMG")) * factors.get(size[-1], 1)


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # not on this system, or unreadable
        return None


def _steal_s() -> float | None:
    """Return the eighth number of the first line of /proc/stat, as seconds; see proc_stat(5)."""
    first = (_text(Path("/proc/stat")) or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    return int(first[8]) / os.sysconf("SC_CLK_TCK")


def _on_battery() -> bool | None:
    mains = [supply for supply in _SUPPLIES.glob("*") if _text(supply / "type") == "Mains"]
    online = [text for supply in mains if (text := _text(supply / "online"))]
    return "1" not in online if online else None


# --- CUDA ------------------------------------------------------------------------------------

_BLOCK_RATIO = 1.5  # trade-off: block over the time that issuing took last, which varies
_MOST_BLOCK_S = 50e-3  # trade-off: a launch queue is full long before
_MOST_DRY = 3  # trade-off: after so many blocks in a row that were too short, blocking ends
_LATE_RATIO = 3  # trade-off: waiting for an idle device varies; waiting for other streams is longer
_MOST_TRIES = 3  # trade-off: interruptions of the host, which rarely come three times in a row
_SPINS = 200_000  # cycles, some 0.1 ms: above the time to record two events and launch a kernel
_WAKING_S = 0.2  # trade-off: an idle GPU needs time to raise its clocks
_PAIRS = 101  # trade-off: event pairs to compare
_PAIR_SPINS = 64  # cycles, some 30 ns: how much longer each pair of events is apart
_WARM_UPS = 3  # on a side stream before a capture, as torch.cuda.make_graphed_callables does
# Bits for reasons why the GPU is slowed down (nvml.h, nvmlClocksEventReasons; bindings name them in
# two ways). Settings (application clocks, sync boost, display clocks) are not listed, because they
# are the same for everything timed; nor is an idle GPU.
_SLOWED_BY = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}


@dataclass(slots=True)
class _Pace:
    """How a call is issued."""

    block_s: float
    """How long to block the stream, per call."""
    dry: int
    """Blocks in a row that ended before the calls had been issued."""
    escapes: bool
    """Whether the device worked after the stream was done."""

    def block_for(self, calls: int) -> float:
        # the length doubles each time; if that never suffices, the call itself waits for the device
        futile = self.escapes or self.dry >= _MOST_DRY
        return 0.0 if futile else min(self.block_s * calls, _MOST_BLOCK_S)


class _Run(NamedTuple):
    """The times around some calls."""

    events_s: float
    """Between the events on the stream."""
    host_s: float
    """From the first call to the end of all work."""
    launch_s: float
    """Until the host had made the calls."""
    issue_s: float
    """Until the host had also recorded the events."""
    late_s: float
    """From the end of the stream's work to the end of all work."""
    is_dry: bool
    """Whether the device had begun before everything was issued."""


class CudaDevice:
    """The current CUDA device, timed by events on its stream."""

    kind = "cuda"
    clock = Clock.CUDA_EVENT

    def __init__(self) -> None:
        self._flood: torch.Tensor | None = None
        self._is_flooded = False
        self._cycles_hz = 0.0  # not measured yet
        # weak: a call keeps its inputs alive, so it must not be kept here
        self._paces: WeakKeyDictionary[Callable[[], object], _Pace] = WeakKeyDictionary()

    def wake(self) -> None:
        """Keep the device busy until its clocks have risen from those of an idle one."""
        began = perf_counter()
        while perf_counter() - began < _WAKING_S:
            spin(_SPINS)
            torch.cuda.synchronize()

    def unavailable(self) -> str | None:
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA"
        if lacking := lacks("torch.cuda:_sleep"):
            return f"{lacking}, which timing on CUDA needs"
        return None if torch.cuda.is_available() else "torch sees no CUDA device"

    def free_bytes(self) -> int | None:
        """Return the driver's free memory, and what torch's allocator holds unused."""
        free, _ = torch.cuda.mem_get_info()
        return int(free) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def cache_bytes(self) -> int:
        """Return the size of the device's L2 cache."""
        return int(torch.cuda.get_device_properties().L2_cache_size)

    @cached_property
    def resolution_s(self) -> float:
        """The smallest difference between the times of two event pairs, to the nanosecond.

        Each pair surrounds a spin that is slightly longer than the last, so that the true times
        differ by less than a step of the clock.
        """
        spins = (number * _PAIR_SPINS for number in range(_PAIRS))
        times = sorted({round(_spun_s(cycles) * 1e9) for cycles in spins})
        steps = (later - earlier for earlier, later in pairwise(times))
        return min(steps, default=times[0]) / 1e9

    @cached_property
    def empty_s(self) -> float:
        """Seconds between two events around nothing.

        They are in each reading and not subtracted, since work may hide an unknown part of them.
        """
        return median(_spun_s(0) for _ in range(_PAIRS))

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def evict(self) -> None:
        """Issue a read of twice the size of the L2 cache.

        A write would leave lines that the timed call has to write back to memory.
        """
        if self._flood is None:
            size = 2 * self.cache_bytes()  # its replacement is not least-recently-used
            self._flood = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
        self._flood.sum()
        self._is_flooded = True

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        """Time ``calls`` calls in a row; a new call is made untimed first.

        A launch queue holds some 1024 kernels. Calls that launch more wait for the host again, so
        they take longer here than on the device alone, never less.
        """
        pace = self._paces.get(call)
        if pace is None:
            pace = self._paces[call] = self._pace_of(call)
        block_s = pace.block_for(calls)
        run = self._run_in_time(call, calls, block_s, 1 if pace.escapes else _MOST_TRIES)
        self._is_flooded = False
        if run.is_dry and block_s:
            pace.dry += 1
            pace.block_s *= 2
        elif block_s:
            pace.dry = 0
            pace.block_s = _BLOCK_RATIO * run.issue_s / calls
        escaped = pace.escapes or run.late_s > self._late_limit_s
        return Reading(
            max(run.events_s, run.host_s) if escaped else run.events_s, None, run.launch_s
        )

    def replayed(
        self, prepare: Callable[[], Callable[[], object]], calls: int
    ) -> Callable[[], object] | None:
        """Record calls in a row as one CUDA graph, in its own memory pool, and return its replay.

        The call is prepared on the recording stream, since a backward runs where its forward ran.
        A result is freed before the next call, as in :meth:`time`, so the pool holds one at a time.
        """
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        side.wait_stream(torch.cuda.current_stream())
        # a capture that cannot be ended stays on its stream; leaving the context leaves the stream
        with torch.cuda.stream(side), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call = prepare()
            for _ in range(_WARM_UPS):
                call()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=side):
                    for _ in range(calls - 1):
                        call()
                    result = call()
            except RuntimeError:  # the call cannot be recorded: it waits for a result, for example
                _give_up(pool)
                return None
        if any("CUDA Graph is empty" in str(warning.message) for warning in caught):
            return None  # its work is on other streams, or there is none

        def replay() -> object:
            graph.replay()
            return call, result  # keeps alive what the graph reads and writes

        return replay

    def condition(self) -> DeviceState:
        return DeviceState() if self._in_nvml is None else _condition(self._in_nvml)

    @cached_property
    def _in_nvml(self) -> Any:
        """NVML's handle of this GPU; None without NVML, and for a slice of a GPU (MIG).

        An index would be ambiguous: NVML counts all GPUs, but CUDA only the visible ones.
        """
        try:
            pynvml.nvmlInit()  # stays open, so that a reading does not initialise it
        except pynvml.NVMLError:
            return None
        weakref.finalize(self, pynvml.nvmlShutdown)
        uuid = str(getattr(torch.cuda.get_device_properties(), "uuid", ""))  # not in every torch
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        except pynvml.NVMLError:  # a slice has another kind of UUID
            return None

    def _run_in_time(
        self, call: Callable[[], object], calls: int, block_s: float, tries: int
    ) -> _Run:
        """Run the calls, again if the wait for their end is late: the host may be interrupted."""
        run = self._run(call, calls, block_s)
        for _ in range(1, tries):
            if run.late_s <= self._late_limit_s:
                break
            if self._is_flooded:
                self.evict()
            run = self._run(call, calls, block_s)
        return run

    def _run(self, call: Callable[[], object], calls: int, block_s: float) -> _Run:
        repeats = range(calls)
        asleep, before, after = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        if block_s and not self._cycles_hz:
            self._learn_hz(_SPINS, _spun_s(_SPINS))
        cycles = round(block_s * self._cycles_hz)
        asleep.record()
        if cycles:
            spin(cycles)
        issuing = perf_counter()
        before.record()
        start = perf_counter()
        for _ in repeats:
            call()
        launched = perf_counter()
        after.record()
        is_dry = before.query()
        issued = perf_counter()
        after.synchronize()
        done = perf_counter()
        torch.cuda.synchronize()
        end = perf_counter()
        if cycles:
            self._learn_hz(cycles, _between_s(asleep, before))
        return _Run(
            events_s=_between_s(before, after),
            host_s=end - start,
            launch_s=launched - start,
            issue_s=issued - issuing,
            late_s=end - done,
            is_dry=is_dry,
        )

    def _pace_of(self, call: Callable[[], object]) -> _Pace:
        """Measure how a call is issued, by making it on an idle device without a block."""
        torch.cuda.synchronize()
        run = self._run_in_time(call, 1, 0.0, _MOST_TRIES)
        if self._is_flooded:  # that call has filled the cache again
            self.evict()
        escapes = run.late_s > self._late_limit_s
        return _Pace(_BLOCK_RATIO * run.issue_s, dry=0, escapes=escapes)

    def _learn_hz(self, cycles: int, took_s: float) -> None:
        """Keep the highest rate: clocks rise with work, and overheads only lower the rate."""
        if took_s > 0:
            self._cycles_hz = max(self._cycles_hz, cycles / took_s)

    @cached_property
    def _late_limit_s(self) -> float:
        """A wait for the device longer than this, once the stream is done, is for other streams."""
        times = []
        for _ in range(_PAIRS):
            spin(_PAIR_SPINS)  # a wait after work may take longer than one without
            after = torch.cuda.Event(enable_timing=True)
            after.record()
            after.synchronize()
            done = perf_counter()
            torch.cuda.synchronize()
            times.append(perf_counter() - done)
        return _LATE_RATIO * median(times)


def _spun_s(cycles: int) -> float:
    """Return the seconds between events around a spin, or around nothing."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    spin(_SPINS)  # hides how long issuing the others takes
    before.record()
    if cycles:
        spin(cycles)
    after.record()
    after.synchronize()
    return _between_s(before, after)


def _give_up(pool: tuple[int, int]) -> None:
    """Have the allocator leave the pool of a capture that could not be ended.

    Up to torch 2.11 the allocator would stay in the capture: it would free no memory, and the next
    capture would fail.
    """
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # newer versions have left it already
        end_allocation_to_pool(device, pool)
        release_pool(device, pool)


def _between_s(before: torch.cuda.Event, after: torch.cuda.Event) -> float:
    return float(before.elapsed_time(after)) / 1e3  # it gives milliseconds


def _condition(handle: object) -> DeviceState:
    """Read the condition of one GPU by NVML; what cannot be read is None."""

    def ask(*names: str, of: tuple[object, ...] = ()) -> Any:
        """Return the answer of the first function that binding, driver and GPU support."""
        for name in names:
            with suppress(AttributeError, pynvml.NVMLError):
                return getattr(pynvml, name)(handle, *of)
        return None

    def scaled(unit: float, *names: str, of: tuple[object, ...] = ()) -> float | None:
        """Return an answer, in NVML's MHz, milliwatts or degrees, in SI units."""
        value = ask(*names, of=of)
        return None if value is None else value * unit

    multiprocessor, memory = (pynvml.NVML_CLOCK_SM,), (pynvml.NVML_CLOCK_MEM,)
    temperature = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")  # the second is older
    reasons = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    # by version: on older drivers the unversioned name raises something else than NVMLError
    processes = (f"nvmlDeviceGetComputeRunningProcesses_v{version}" for version in (3, 2))
    return DeviceState(
        clock_hz=scaled(1e6, "nvmlDeviceGetClockInfo", of=multiprocessor),
        clock_max_hz=scaled(1e6, "nvmlDeviceGetMaxClockInfo", of=multiprocessor),
        memory_clock_hz=scaled(1e6, "nvmlDeviceGetClockInfo", of=memory),
        power_w=scaled(1e-3, "nvmlDeviceGetPowerUsage"),
        power_limit_w=scaled(1e-3, "nvmlDeviceGetEnforcedPowerLimit"),
        temperature_c=scaled(1.0, *temperature, of=(pynvml.NVML_TEMPERATURE_GPU,)),
        throttled_by=_slowed_by(ask(*reasons)),
        other_processes=_others(ask(*processes)),
    )


def _slowed_by(reasons: int | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    return tuple(words for bit, words in _SLOWED_BY.items() if reasons & bit)


def _others(processes: list[Any] | None) -> int | None:
    """Return how many of the processes are neither this one nor workers of the same run.

    None if this process is not listed. In a container its number may differ, or not all processes
    may be listed, so it is unknown which of them are others.
    """
    if processes is None:
        return None
    numbers = {process.pid for process in processes}  # one may be listed per slice of the GPU
    if os.getpid() not in numbers:
        return None
    return sum(not _is_of_this_run(pid) for pid in numbers)


def _is_of_this_run(pid: int) -> bool:
    """Whether a process is this one or another worker of the same parent, which is idle now."""
    if pid == os.getpid():
        return True
    parent = parent_process()
    try:
        # the name in parentheses may hold anything; after it come the state and the parent
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return parent is not None and fields[1:2] == [str(parent.pid)]


Device = CpuDevice | CudaDevice
DEVICES: dict[str, type[Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}
"""By kind; a new one needs its class and its name here."""


def device_of(kind: str, threads: int) -> Device:
    """Return the device of that kind, for calls that use ``threads`` CPU threads."""
    return CpuDevice(threads) if kind == "cpu" else DEVICES[kind]()

"""Latency: raw samples, and the estimates made from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.records.environment import DeviceState

OUR_TIMER = "layernorm-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its confidence interval."""

    value: float
    """Point estimate."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    confidence: float = 0.95
    """Nominal coverage; it holds across processes, and is lower within one process."""


class Cache(StrEnum):
    """The state of the caches when a call begins."""

    WARM = "warm"
    """As the previous calls left them: inputs that fit are cached."""
    ROTATE = "rotate"
    """Calls use other inputs in turn, more than the last-level cache holds."""
    FLUSHED = "flushed"
    """The caches were overwritten before each call."""


class Allocation(StrEnum):
    """How the process gets memory for results."""

    STEADY = "steady"
    """Pages are faulted in once and reused (glibc is set to neither map nor trim)."""
    DEFAULT = "default"
    """The system's default; large results may need fresh pages on every call."""


class Clock(StrEnum):
    """The clock that the estimates are made from."""

    THREAD_CPU = "thread_cpu"
    """CPU time of the calling thread."""
    PROCESS_CPU = "process_cpu"
    """CPU time of all threads, used where other threads do part of a single-threaded call."""
    WALL = "wall"
    CUDA_EVENT = "cuda_event"

    @property
    def is_cpu(self) -> bool:
        """Whether it counts CPU time."""
        return self in {Clock.THREAD_CPU, Clock.PROCESS_CPU}


class ArmRole(StrEnum):
    """Why something was timed."""

    SUBJECT = "subject"
    """The implementation of the case."""
    REFERENCE = "reference"
    """The implementation that the ratio is relative to."""
    CEILING = "ceiling"
    """A copy, which shows how fast the bytes can move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Raw timings of one arm, in the order measured; the arms of a case are timed in turn."""

    role: ArmRole
    """Why it was timed."""
    name: str
    """Implementation timed, or "copy"."""
    calls_per_sample: int
    """Calls between two readings of the clock; samples are per call."""
    wall_s: tuple[float, ...]
    """Seconds per call by the wall clock."""
    cpu_s: tuple[float, ...] | None
    """CPU seconds per call, of the calling thread or of all threads as the clock says; or None."""
    epochs: tuple[int, ...]
    """The epoch of each sample; layernorm-bench's own timer moves the inputs between epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a call takes: raw samples, and the estimates made from them."""

    clock: Clock
    """The clock that the estimates are made from."""
    timer: str = OUR_TIMER
    """The timer, e.g. "pytest-benchmark:perf_counter"; times of two timers are never compared."""
    cache: Cache
    """The state of the caches when a call begins."""
    allocation: Allocation
    """How the process got memory for results."""
    per_call_s: Estimate
    """Seconds per call: median over epochs of the epoch's 10 % quantile; or the mean, if uneven."""
    reference: str | None = None
    """Implementation that the ratio is relative to; None where none could run the case."""
    reference_ratio: Estimate | None
    """Time over that of the reference, timed in turn with it; below 1 is faster."""
    uneven_ratio: float | None = None
    """Mean over low quantile of the samples, relative to the reference (or to the copy, where there
    is none). None where calls are even; elsewhere all times are means over the epochs."""
    ceiling_ratio: float | None
    """Time of a copy of the same bytes over the time per call: 1 is as fast as the copy."""
    model_bytes: int
    """Bytes that any implementation must read and write."""
    converged: bool
    """Whether the interval became as narrow as required within the time limit."""
    processes: int
    """Processes that the samples come from."""
    process_of_epoch: tuple[int, ...] = ()
    """For each epoch the process it ran in; empty where only a trend is read."""
    minor_faults_ratio: float | None
    """Page faults per call; from 1 on, the time includes the system's work."""
    compile_s: float | None
    """Seconds that the first compiled call took beyond a later one."""
    resolution_s: float | None = None
    """Smallest difference that the clock can measure."""
    warm_up_calls: int | None = None
    """Untimed calls, of all arms together, until calls no longer got faster."""
    launch_s: float | None = None
    """Seconds per call that the host takes to issue it; None where calls are synchronous."""
    replay_s: Estimate | None = None
    """Seconds per call replayed from a CUDA graph, without the host's part; None if not done."""
    replay_ratio: Estimate | None = None
    """Time over that of the reference, both replayed from CUDA graphs."""
    others_ratio: float | None = None
    """Share of a call's CPU time spent by threads other than the calling one; None if unknown."""
    throttled_epochs: int = 0
    """Epochs that were dropped and repeated because the device was throttled."""
    before: DeviceState | None = None
    """State of the device before the first sample."""
    after: DeviceState | None = None
    """State of the device after the last sample."""
    is_valid: bool = True
    """False if a call was faster than its bytes can move, or continued after it returned."""
    arms: tuple[Arm, ...] = ()
    """The raw timings; empty when read without the samples."""

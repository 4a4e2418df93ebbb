"""How fast: raw samples, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.records.condition import Condition

__all__ = ["OUR_TIMER", "Allocation", "Arm", "ArmRole", "Cache", "Clock", "Estimate", "Latency"]

OUR_TIMER = "layernorm-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and the interval the data leave it."""

    value: float
    """Point estimate."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    confidence: float = 0.95
    """Nominal coverage. Over epochs of one process it covers less; over processes it holds."""


class Cache(StrEnum):
    """What the caches held when a call began."""

    WARM = "warm"
    """Whatever the previous calls left: inputs that fit are cached."""
    ROTATE = "rotate"
    """Other inputs were used since, more than the last-level cache holds."""
    FLUSHED = "flushed"
    """The caches were overwritten before each call."""


class Allocation(StrEnum):
    """How the process gets memory for results."""

    STEADY = "steady"
    """Pages are faulted in once and reused (glibc told neither to map nor to trim)."""
    DEFAULT = "default"
    """As the system's allocator does it; large results may be fresh pages on every call."""


class Clock(StrEnum):
    """What the estimates are made from."""

    THREAD_CPU = "thread_cpu"
    """CPU time of the calling thread."""
    PROCESS_CPU = "process_cpu"
    """CPU time of all threads, where others do a part of the work that one was to do."""
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
    """What the ratio is taken to."""
    CEILING = "ceiling"
    """A copy, which shows how fast the bytes can move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Raw timings of one of the things that were timed in turn, in the order measured."""

    role: ArmRole
    """Why it was timed."""
    name: str
    """Implementation timed, or "copy"."""
    calls_per_sample: int
    """Calls between two readings of the clock; samples are per call."""
    wall_s: tuple[float, ...]
    """Seconds per call by the wall clock."""
    cpu_s: tuple[float, ...] | None
    """Seconds per call of CPU time: of the calling thread, or of all by that clock; else None."""
    epochs: tuple[int, ...]
    """For each sample the epoch it is from; with our timer inputs have a new place in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a call takes: raw samples, and what they say."""

    clock: Clock
    """What the estimates are made from."""
    timer: str = OUR_TIMER
    """Who timed it, as in "pytest-benchmark:perf_counter"; times of two timers never meet."""
    cache: Cache
    """What the caches held when a call began."""
    allocation: Allocation
    """How the process got memory for results."""
    per_call_s: Estimate
    """Seconds per call: median over epochs of the epoch's 10 % quantile."""
    reference: str | None = None
    """Implementation that the ratio is taken to; None where none could run the case."""
    reference_ratio: Estimate | None
    """Time over that of the reference, interleaved with it; below 1 is faster."""
    ceiling_ratio: float | None
    """Time a copy of the same bytes takes over the time taken: 1 is as fast as bytes move."""
    model_bytes: int
    """Bytes that any implementation must read and write."""
    converged: bool
    """Whether the interval became as narrow as asked before the time was up."""
    processes: int
    """Processes that the samples come from."""
    process_of_epoch: tuple[int, ...]
    """For each epoch the process it ran in."""
    minor_faults_ratio: float | None
    """Page faults per call; at 1 and above the system's work is in the time."""
    compile_s: float | None
    """Seconds that the first compiled call took beyond a later one."""
    resolution_s: float | None = None
    """Smallest difference that the clock shows."""
    warm_up_calls: int | None = None
    """Untimed calls after which calls no longer got faster, all arms together."""
    launch_s: float | None = None
    """Seconds per call until the host had issued it; None where calling and working are one."""
    replay_s: Estimate | None = None
    """Seconds per call replayed from a graph, without the host's part; None where not done."""
    replay_ratio: Estimate | None = None
    """Time over that of the reference, both replayed from graphs."""
    others_ratio: float | None = None
    """Share of a call's CPU time that other threads than the calling one spent; None: not seen."""
    throttled_epochs: int = 0
    """Epochs that were dropped, and measured again, because the device was throttled."""
    before: Condition | None = None
    """What the device was going through before the first sample."""
    after: Condition | None = None
    """What it was going through after the last one."""
    is_valid: bool = True
    """Whether the time is believable: no call is faster than its bytes, or works on after it."""
    arms: tuple[Arm, ...] = ()
    """What was timed in turn; empty when read without the samples."""

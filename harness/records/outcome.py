"""The result of a case: its status, its measurements and the warnings about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from harness.records.case import Case
from harness.records.errors import Errors
from harness.records.latency import Latency

__all__ = ["Cost", "MeasurementWarning", "Memory", "Record", "Status", "WarningKind"]


class Status(StrEnum):
    """How a case ended. Only cases of the first three have complete measurements."""

    OK = "ok"
    """Ran, within its error bound."""
    WRONG = "wrong"
    """Ran, outside its error bound, or not finite where the exact result is finite."""
    OUT_OF_GUARANTEE = "out_of_guarantee"
    """Ran, where its algorithm guarantees nothing: the bound is vacuous. Not a pass."""
    UNSUPPORTED = "unsupported"
    """The implementation declined the case, or the dtype cannot hold its inputs."""
    OUT_OF_MEMORY = "out_of_memory"
    """Memory ran out; another shape may fit."""
    TIMEOUT = "timeout"
    """Exceeded its time limit; its process was ended."""
    CRASHED = "crashed"
    """Its process died."""
    ERROR = "error"
    """The implementation raised; the reason holds the exception."""

    @property
    def is_measured(self) -> bool:
        return self is Status.OK or self is Status.WRONG or self is Status.OUT_OF_GUARANTEE

    @property
    def is_failure(self) -> bool:
        """Whether the case should have run and did not."""
        return self in {Status.TIMEOUT, Status.CRASHED, Status.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one call, as counted by the allocator."""

    peak_extra_bytes: int
    """Most memory held at once during the call, beyond the inputs; results included."""
    allocated_bytes: int
    """Sum of all allocations during the call."""
    allocations: int
    """Number of allocations during the call."""
    saved_bytes: int | None
    """Memory kept for the backward beyond inputs and y; None where no gradient is recorded."""
    minimum_bytes: int
    """Size of the results, which every implementation must hold."""


class WarningKind(StrEnum):
    """Why a measurement should be taken with care."""

    NOT_CONVERGED = "not_converged"
    """The interval is wider than required."""
    TOO_FEW_SAMPLES = "too_few_samples"
    """The time limit left too few samples for an interval."""
    NOISY = "noisy"
    """Something else used the processor."""
    UNEVEN = "uneven"
    """Some calls take much longer than most: they may do the work of the others."""
    CHANGED_SPEED = "changed_speed"
    """The implementation was faster or slower in one half of the epochs than in the other."""
    TIMER_TOO_COARSE = "timer_too_coarse"
    """The clock, or the loop around the calls, is a large part of what was measured."""
    CLOCK_STEPPED = "clock_stepped"
    """The clock went backwards."""
    PAGE_FAULTS = "page_faults"
    """The time includes page faults."""
    FASTER_THAN_COPY = "faster_than_copy"
    """Faster than the bytes can move, which is not believable."""
    THROTTLED = "throttled"
    """The device reduced its clock."""
    POWER_SAVING = "power_saving"
    """The machine saves power, so its clock is not at its maximum."""
    SHARED_GPU = "shared_gpu"
    """Other processes compute on the GPU."""
    OTHER_THREADS = "other_threads"
    """Other threads worked although one thread was requested."""
    LAUNCH_BOUND = "launch_bound"
    """The host takes longer to issue the call than the device takes to run it."""
    CACHED_RESULT = "cached_result"
    """After the timing the implementation returned results of earlier inputs."""
    MEMORY_NOT_COUNTED = "memory_not_counted"
    """torch does not see all memory that a call takes, so neither memory nor operators count."""
    NOT_COUNTED = "not_counted"
    """Instructions cannot be counted here; in older files, memory or instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWarning:
    """A warning about a measurement."""

    kind: WarningKind
    """Kind of the warning."""
    advice: str
    """What was found, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the time of a case went; the harness itself took the rest of the total."""

    total_s: float
    """From the case's start to its record."""
    implementation_s: float = field(metadata={"formerly": "guest_s"})
    """Untimed calls of the implementation: first calls, compilation, warm-up, memory."""
    oracle_s: float
    """Exact reference."""
    sampling_s: float
    """Timed samples, including those of the ceiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of a results file."""

    case: Case
    """The case."""
    environment: str
    """Fingerprint of the environment it ran in, which is in the file's metadata."""
    status: Status
    """How it ended."""
    reason: str = ""
    """Why the status is not ok, in one line; empty where it is."""
    errors: Errors | None = None
    """Numerical error; None where not measured."""
    latency: Latency | None = None
    """Latency; None where not measured."""
    cold: Latency | None = None
    """Latency of calls whose inputs are not in the cache; None where not measured."""
    memory: Memory | None = None
    """Memory; None where not measured."""
    operators: int | None = None
    """Operators that one call runs, without those inside others; None where not counted."""
    instructions: int | None = None
    """Instructions of one call, in user space, with AVX2 kernels; None where not counted."""
    warnings: tuple[MeasurementWarning, ...] = ()
    """Warnings about these measurements."""
    cost: Cost | None = None
    """Where the time went; None where the process ended early."""

    @property
    def memory_not_counted(self) -> str | None:
        """Why memory was to be counted and was not; None otherwise."""
        of_memory = WarningKind.MEMORY_NOT_COUNTED
        return next((each.advice for each in self.warnings if each.kind is of_memory), None)

    @property
    def worst_ulp(self) -> float | None:
        """Scaled error of the worst output; None where not measured."""
        return None if self.errors is None else self.errors.worst_ulp

"""What came of a case: its status, its measurements and the warnings about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from harness.records.case import Case
from harness.records.errors import Errors
from harness.records.latency import Latency

__all__ = ["Cost", "MeasurementWarning", "Memory", "Record", "Status", "WarningKind"]


class Status(StrEnum):
    """How a case ended. Exactly one holds; only with the first three are measurements complete."""

    OK = "ok"
    """Ran, within its error bound."""
    WRONG = "wrong"
    """Ran, outside its error bound or not finite where the exact result is."""
    OUT_OF_GUARANTEE = "out_of_guarantee"
    """Ran, where its algorithm promises nothing: the bound is vacuous. Not a pass."""
    UNSUPPORTED = "unsupported"
    """The implementation, or the dtype, declined the case."""
    OUT_OF_MEMORY = "out_of_memory"
    """Memory ran out; another shape may fit."""
    TIMEOUT = "timeout"
    """Ran past its time limit, and its process was ended."""
    CRASHED = "crashed"
    """Took its process down with it."""
    ERROR = "error"
    """The implementation raised; the reason holds the exception."""

    @property
    def is_measured(self) -> bool:
        return self in {Status.OK, Status.WRONG, Status.OUT_OF_GUARANTEE}

    @property
    def is_failure(self) -> bool:
        """Whether the case should have run and did not."""
        return self in {Status.TIMEOUT, Status.CRASHED, Status.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one call, by the allocator's own count."""

    peak_extra_bytes: int
    """Most memory held at once during the call, beyond the inputs; results included."""
    allocated_bytes: int
    """Sum of all allocations during the call."""
    allocations: int
    """How many there were."""
    saved_bytes: int | None
    """Kept for the backward beyond inputs and y; None where no gradient is recorded."""
    minimum_bytes: int
    """What any implementation must hold: its results."""


class WarningKind(StrEnum):
    """Why a measurement should be taken with care."""

    NOT_CONVERGED = "not_converged"
    """The interval is wider than asked."""
    TOO_FEW_SAMPLES = "too_few_samples"
    """There was no time for what an interval needs."""
    NOISY = "noisy"
    """Something else used the processor."""
    CHANGED_SPEED = "changed_speed"
    """The implementation was faster or slower in one half of the epochs than in the other."""
    TIMER_TOO_COARSE = "timer_too_coarse"
    """The clock, or the loop around the calls, is a large part of what was measured."""
    CLOCK_STEPPED = "clock_stepped"
    """The clock went backwards."""
    PAGE_FAULTS = "page_faults"
    """The system's work is in the time."""
    FASTER_THAN_COPY = "faster_than_copy"
    """Faster than the bytes can move: not to be believed."""
    THROTTLED = "throttled"
    """The device ran below the clock it would choose."""
    POWER_SAVING = "power_saving"
    """The machine saves power: its clock is not its best."""
    SHARED_GPU = "shared_gpu"
    """Other processes compute on the GPU."""
    OTHER_THREADS = "other_threads"
    """Threads other than the calling one worked, where one was asked for."""
    LAUNCH_BOUND = "launch_bound"
    """The host takes longer to issue the call than the device to do it."""
    CACHED_RESULT = "cached_result"
    """After the timing the implementation gave results for inputs it no longer had."""
    NOT_COUNTED = "not_counted"
    """Memory or instructions cannot be counted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWarning:
    """A measurement warning about a measurement."""

    kind: WarningKind
    """Which."""
    advice: str
    """What was seen, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the time of a case went. What is none of the parts is the harness's own."""

    total_s: float
    """From the case's start to its record."""
    implementation_s: float = field(metadata={"formerly": "guest_s"})
    """Untimed calls of what is measured: first calls, compiling, warm-up, memory."""
    oracle_s: float
    """Exact reference."""
    sampling_s: float
    """Timed samples, ceiling included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of a results file."""

    case: Case
    """What was asked."""
    environment: str
    """Fingerprint of the environment it ran in; the file's metadata holds the whole."""
    status: Status
    """How it ended."""
    reason: str = ""
    """Why the status is not ok, in one line; empty when it is."""
    errors: Errors | None = None
    """Numerical error; None where not measured."""
    latency: Latency | None = None
    """Time; None where not measured."""
    cold: Latency | None = None
    """Time on inputs that no cache holds; None where not measured."""
    memory: Memory | None = None
    """Memory; None where not measured."""
    operators: int | None = None
    """Operators that one call runs, those inside PyTorch's own aside; None where not counted."""
    instructions: int | None = None
    """Instructions of one call, in user space and with AVX2 kernels; None where not counted."""
    warnings: tuple[MeasurementWarning, ...] = ()
    """Warnings about these measurements."""
    cost: Cost | None = None
    """Where the time went; None where the process ended before it could say."""

    @property
    def worst_ulp(self) -> float | None:
        """Scaled error of the worst output; None where not measured."""
        return None if self.errors is None else self.errors.worst_ulp

"""The result of a case: its status, errors, measurements and the warnings about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf, isnan

from harness.records.case import Case
from harness.records.latency import Latency


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
class OutputErrors:
    """Distance of one output from its exact value."""

    output: str
    """Which output: "y", "dx", "dweight" or "dbias"."""
    elements: int
    """Elements compared."""
    unexpected_nonfinite: int
    """Elements that are NaN or infinite where the exact value is finite."""
    scaled_max_ulp: float
    """Largest error in ulp at the scale of its row or column; 0.5 is correctly rounded."""
    scaled_p99_ulp: float
    """99th percentile of the same."""
    scaled_mean_ulp: float | None
    """Mean of the same; None where an element is not finite."""
    raw_max_ulp: float
    """Largest error in ulp of the exact element itself; unbounded near zero for good kernels."""
    max_abs: float
    """Largest absolute error."""
    normwise_ratio: float
    """Worst row's error norm over the norm of the exact row; dweight and dbias are one row."""
    bound_ratio: float | None
    """Largest error over its a-priori bound; above 1 is wrong. None where all are vacuous."""
    vacuous_elements: int
    """Elements for which the algorithm guarantees nothing, so that no bound applies."""

    @property
    def worst_ulp(self) -> float:
        """Largest scaled error; infinite if an element is not finite where it should be."""
        # scaled_max_ulp alone may be NaN, for which no comparison holds
        lost = self.unexpected_nonfinite or isnan(self.scaled_max_ulp)
        return inf if lost else self.scaled_max_ulp


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Distance from the exact result, and the conditioning of the case."""

    outputs: tuple[OutputErrors, ...]
    """One for y and, where gradients are computed, one for each gradient."""
    condition_max_ratio: float
    """Largest condition number of a row, sqrt(1 + mean^2/variance), of the inputs as stored."""
    algorithm: str
    """Algorithm class whose bound was applied."""
    reduction: str
    """Reduction shape whose bound was applied."""
    accumulate_dtype: str
    """Dtype in which the statistics are declared to be computed."""
    oracle: str
    """The exact reference: "float64_twice_centred" or "double_double"."""

    @property
    def worst(self) -> OutputErrors:
        """The output furthest from its exact value, in scaled ulp."""
        return max(self.outputs, key=lambda output: output.worst_ulp)

    @property
    def worst_ulp(self) -> float | None:
        """Scaled error of the worst output; None where there are no outputs."""
        return max((output.worst_ulp for output in self.outputs), default=None)


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
    implementation_s: float
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
        return next((found.advice for found in self.warnings if found.kind is of_memory), None)

    @property
    def worst_ulp(self) -> float | None:
        """Scaled error of the worst output; None where not measured."""
        return None if self.errors is None else self.errors.worst_ulp

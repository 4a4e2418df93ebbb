"""The result of a case: where it ran, its status, errors, measurements and warnings.

Of a latency, a record holds the raw samples and the estimates made from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from math import inf, isnan

from harness.records.case import Case

OUR_TIMER = "layernorm-bench"
_OF_FINGERPRINT = (
    "cpu", "cpu_count", "cpu_capability", "platform", "python", "packages", "compiler", "gpus",
    "nvml",
)  # fmt: skip


# --- where it ran ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as NVML describes it."""

    name: str
    uuid: str = field(compare=False, repr=False)  # a lent GPU of the same model is as good
    memory_bytes: int
    power_limit_w: float | None
    compute_capability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a measurement was made."""

    cpu: str
    """Model name of the CPU."""
    cpu_count: int
    """CPUs this process may run on."""
    cpu_capability: str
    """Instruction set that torch's kernels use."""
    memory_bytes: int | None
    """Main memory."""
    platform: str
    """Operating system, kernel and C library."""
    python: str
    """Version of Python."""
    packages: tuple[tuple[str, str], ...]
    """Names and versions of the packages that affect speed or results."""
    compiler: str | None
    """C++ compiler that torch.compile uses; None where there is none."""
    gpus: tuple[Gpu, ...]
    """GPUs that NVML lists."""
    nvml: str
    """NVML's driver version, or "NVML unavailable: reason"."""
    git_commit: str | None
    """Commit of layernorm-bench's own checkout; None where it is installed from a package."""
    git_dirty: bool | None
    """Whether tracked files differ from that commit."""
    load_average: float | None
    """Average number of runnable processes over the minute before the run."""
    git_commit_utc: str | None = None
    """When that commit was made, ISO 8601; None where it is not known."""
    repository_url: str | None = None
    """Web address of the checkout's remote "origin", without credentials; None without one."""

    @property
    def fingerprint(self) -> str:
        """Of the machine and its software; ``check`` may compare times where it differs."""
        same = tuple(getattr(self, name) for name in _OF_FINGERPRINT)
        return sha256(repr(same).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of ``run``: its command, its environment and its cost."""

    name: str
    """Name of the results file, without its suffix."""
    started_utc: str
    """When it began, ISO 8601."""
    command: str
    """Command line."""
    planned: int
    """Cases in the sweep."""
    version: str
    """Version of layernorm-bench."""
    environment: str | None = None
    """Fingerprint of the machine it ran on; None where it ran on several unequal ones."""
    git_commit: str | None = None
    """Commit of layernorm-bench's own checkout; None where it is installed from a package."""
    git_dirty: bool | None = None
    """Whether tracked files differed from that commit."""
    wall_s: float | None = None
    """Seconds from start to end; None while it runs, or if it was interrupted."""
    overhead_ratio: float | None = None
    """Share of the wall time not spent in the implementation, the oracle or timed samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """State of a device at one moment. Each field is None where it cannot be read."""

    load_average: float | None = None
    """Average number of runnable processes over the last minute."""
    steal_s: float | None = None
    """CPU time that the hypervisor gave to other machines since boot, summed over all CPUs."""
    governor: str | None = None
    """CPU frequency governor, e.g. "performance"."""
    on_battery: bool | None = None
    """Whether the machine runs on its battery."""
    clock_hz: float | None = None
    """Clock of the GPU's multiprocessors."""
    clock_max_hz: float | None = None
    """Maximum clock of the GPU's multiprocessors."""
    memory_clock_hz: float | None = None
    """Clock of the GPU's memory."""
    power_w: float | None = None
    """Power draw of the GPU."""
    power_limit_w: float | None = None
    """Power limit of the GPU."""
    temperature_c: float | None = None
    """Temperature of the GPU."""
    throttled_by: tuple[str, ...] | None = None
    """Reasons why the GPU's clock is reduced; empty where it is not."""
    other_processes: int | None = None
    """Number of other processes that compute on the GPU."""


# --- how it ended, and how exactly ----------------------------------------------------------------


class Status(StrEnum):
    """How a case ended. Only cases of the first four have complete measurements."""

    OK = "ok"
    """Ran, within its error bound."""
    INACCURATE = "inaccurate"
    """Ran, outside its error bound, but within that of the same algorithm with its statistics or
    sums in a narrower dtype, or with its sums added one after the other."""
    WRONG = "wrong"
    """Ran, outside all of these bounds, or not finite where the exact result is finite."""
    OUT_OF_GUARANTEE = "out_of_guarantee"
    """Ran, on an input for which its algorithm has no finite error bound. Not a pass."""
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
        return self in {Status.OK, Status.INACCURATE, Status.WRONG, Status.OUT_OF_GUARANTEE}

    @property
    def is_incorrect(self) -> bool:
        """Whether a result is outside its error bound."""
        return self in {Status.INACCURATE, Status.WRONG}

    @property
    def is_failure(self) -> bool:
        """Whether the case should have run and did not."""
        return self in {Status.TIMEOUT, Status.CRASHED, Status.ERROR}


BAD_FIRST = (
    Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR, Status.INACCURATE,
    Status.OUT_OF_GUARANTEE, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.OK,
)  # fmt: skip
"""Statuses in the order in which they need attention."""


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
    """Largest error over its a-priori bound, above 1 where it is inaccurate or wrong. None where
    all bounds are vacuous."""
    vacuous_elements: int
    """Elements for which the algorithm has no finite error bound."""

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


# --- latency --------------------------------------------------------------------------------------


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


# --- the record -----------------------------------------------------------------------------------


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
    """Why the status is not ok, in one line; of ok a remark, or empty."""
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
    def why(self) -> str:
        """The reason; that of ok is marked as a remark."""
        is_remark = self.status is Status.OK and self.reason
        return f"remark: {self.reason}" if is_remark else self.reason

    @property
    def memory_not_counted(self) -> str | None:
        """Why memory was to be counted and was not; None otherwise."""
        of_memory = WarningKind.MEMORY_NOT_COUNTED
        return next((found.advice for found in self.warnings if found.kind is of_memory), None)

    @property
    def worst_ulp(self) -> float | None:
        """Scaled error of the worst output; None where not measured."""
        return None if self.errors is None else self.errors.worst_ulp

"""The nouns: what was asked (Case), what came of it (Record), where (Environment).

Every type is frozen and holds plain values only, so that it can be hashed, compared, sent to
another process, and stored. A field holding a quantity ends in its unit: ``_s`` seconds,
``_bytes`` bytes, ``_ulp`` units in the last place of the case's dtype, ``_ratio`` a pure number.
None means "not measured"; no field uses 0, -1 or NaN to say so. The text under a field is its
description in the stored schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from math import prod

__all__ = [
    "Affine",
    "Allocation",
    "Arm",
    "ArmRole",
    "Budget",
    "Cache",
    "Case",
    "Clock",
    "Cost",
    "Direction",
    "Doubt",
    "DoubtKind",
    "Environment",
    "Errors",
    "Estimate",
    "Gpu",
    "Latency",
    "Measurement",
    "Memory",
    "Mode",
    "OutputErrors",
    "Record",
    "Run",
    "Status",
]


class Mode(StrEnum):
    """How the function is run: two things to verify and to time."""

    EAGER = "eager"
    COMPILED = "compiled"


class Direction(StrEnum):
    """Which pass is run."""

    FORWARD = "forward"
    """Inference: no gradient is recorded."""
    BACKWARD = "backward"
    """Gradients alone, of a graph recorded beforehand."""
    FORWARD_BACKWARD = "forward+backward"
    """A training step: forward with gradient recording, then backward."""


class Affine(StrEnum):
    """Which parameters are given."""

    BOTH = "both"
    WEIGHT = "weight"
    BIAS = "bias"
    NONE = "none"


class Measurement(StrEnum):
    """What can be measured of a case."""

    ERRORS = "errors"
    LATENCY = "latency"
    MEMORY = "memory"


class Status(StrEnum):
    """How a case ended. Exactly one holds; only the first three carry measurements."""

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
class Case:
    """One point of a sweep: everything needed to run it again, and nothing else."""

    implementation: str
    """Name or target of the implementation."""
    mode: Mode = Mode.EAGER
    """Eager, or under torch.compile."""
    shape: tuple[int, ...]
    """Shape of x."""
    normalized_dims: int = 1
    """How many trailing axes are normalised over."""
    dtype: str = "float32"
    """torch name of x's dtype, without the prefix."""
    param_dtype: str = "float32"
    """torch name of the dtype of weight and bias."""
    device: str = "cpu"
    """Device kind, e.g. "cuda". Not the index: that says where, not what."""
    distribution: str = "normal"
    """Name of the input distribution."""
    layout: str = "contiguous"
    """Name of x's layout in memory."""
    direction: Direction = Direction.FORWARD
    """Which pass is run."""
    affine: Affine = Affine.BOTH
    """Which of weight and bias are given."""
    eps: float = 1e-5
    """Added to the variance, inside the square root."""
    threads: int = 1
    """CPU threads that torch may use."""
    seed: int = 0
    """Seed of the inputs."""

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        return self.shape[len(self.shape) - self.normalized_dims :]

    @property
    def rows(self) -> int:
        """How many means there are."""
        return prod(self.shape[: len(self.shape) - self.normalized_dims])

    @property
    def hidden(self) -> int:
        """How many elements share one mean."""
        return prod(self.normalized_shape)

    @property
    def id(self) -> str:
        """Readable key that joins a case to its baseline; stable across releases.

        The axes people read first are always there; the others only where they differ from
        the usual value, so that a new axis changes no existing id.
        """
        shape = "x".join(map(str, self.shape))
        parts = [self.implementation, self.direction, shape, self.dtype, self.distribution]
        unusual = (
            (self.mode is not Mode.EAGER, f"{self.mode}"),
            (self.device != "cpu", self.device),
            (self.normalized_dims != 1, f"dims={self.normalized_dims}"),
            (self.param_dtype != self.dtype, f"params={self.param_dtype}"),
            (self.layout != "contiguous", f"layout={self.layout}"),
            (self.affine is not Affine.BOTH, f"affine={self.affine}"),
            (self.eps != 1e-5, f"eps={self.eps!r}"),
            (self.threads != 1, f"threads={self.threads}"),
            (self.seed != 0, f"seed={self.seed}"),
        )
        return "/".join([*parts, *(text for differs, text in unusual if differs)])


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
    """Worst row's error norm over the norm of the exact row; the whole vector for dweight, dbias."""
    bound_ratio: float | None
    """Largest error over its a-priori bound; above 1 is wrong. None where every bound is vacuous."""
    vacuous_elements: int
    """Elements for which the algorithm promises nothing, so that no bound applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Distance from the exact result, and what the case made possible."""

    outputs: tuple[OutputErrors, ...]
    """One for y and, in a backward direction, one for each gradient."""
    condition_max_ratio: float
    """Largest condition number of a row, sqrt(1 + mean^2/variance), of the inputs as stored."""
    rho_min_ratio: float
    """Smallest sqrt(variance / (variance + eps)) of a row."""
    mean_error_ratio: float | None
    """Worst error of the mean in standard deviations of its row, as y implies it."""
    rstd_error_ratio: float | None
    """Worst relative error of 1/sqrt(variance + eps), as y implies it."""
    algorithm: str
    """Algorithm class whose bound was applied."""
    reduction: str
    """Reduction shape whose bound was applied."""
    accumulate_dtype: str
    """Dtype in which the statistics are declared to be formed."""
    oracle: str
    """Which exact reference: "float64_twice_centred" or "double_double"."""

    @property
    def worst(self) -> OutputErrors:
        """The output furthest from its exact value, in scaled ulp."""
        return max(self.outputs, key=lambda each: each.scaled_max_ulp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop sampling a case."""

    target_ratio: float = 0.01
    """Half-width of the ratio's 95 % interval that is narrow enough."""
    min_epochs: int = 4
    """Epochs sampled at least; an interval over fewer says little."""
    max_epochs: int = 12
    """Epochs sampled at most; more of them in one process narrow nothing."""
    limit_s: float = 2.0
    """Seconds after which no further epoch starts."""


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
    WALL = "wall"
    CUDA_EVENT = "cuda_event"


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
    """Seconds per call of CPU time of the calling thread; None where others do the work."""
    epochs: tuple[int, ...]
    """For each sample the epoch it is from; inputs have a new place in memory in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a call takes: raw samples, and what they say."""

    clock: Clock
    """What the estimates are made from."""
    cache: Cache
    """What the caches held when a call began."""
    allocation: Allocation
    """How the process got memory for results."""
    per_call_s: Estimate
    """Seconds per call: median over epochs of the epoch's 10 % quantile."""
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
    arms: tuple[Arm, ...] = ()
    """What was timed in turn; empty when read without the samples."""


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


class DoubtKind(StrEnum):
    """Why a measurement should be taken with care."""

    NOT_CONVERGED = "not_converged"
    NOISY = "noisy"
    PAGE_FAULTS = "page_faults"
    COARSE_TIMER = "coarse_timer"
    FASTER_THAN_COPY = "faster_than_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A doubt about a measurement."""

    kind: DoubtKind
    """Which."""
    advice: str
    """What was seen, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the time of a case went. What is none of the parts is the harness's own."""

    total_s: float
    """From the case's start to its record."""
    guest_s: float
    """Calls of the implementation and the reference outside samples: first calls, warm-up, memory."""
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
    memory: Memory | None = None
    """Memory; None where not measured."""
    warnings: tuple[Doubt, ...] = ()
    """Doubts about these measurements."""
    cost: Cost | None = None
    """Where the time went; None where the process ended before it could say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as NVML describes it."""

    name: str
    uuid: str
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
    """Names and versions of the packages that matter."""
    compiler: str | None
    """C++ compiler that torch.compile uses; None where there is none."""
    gpus: tuple[Gpu, ...]
    """GPUs seen through NVML."""
    nvml: str
    """NVML's driver version, or "NVML unavailable: reason"."""
    git_commit: str | None
    """Commit of the working directory; None outside a repository."""
    git_dirty: bool | None
    """Whether tracked files differ from that commit."""
    load_average: float | None
    """Processes that wanted to run, over the last minute before the run."""

    @property
    def fingerprint(self) -> str:
        """Latencies are comparable only between equal fingerprints: same machine, same software."""
        same = (
            self.cpu,
            self.cpu_count,
            self.cpu_capability,
            self.platform,
            self.python,
            self.packages,
            self.compiler,
            self.gpus,
            self.nvml,
        )
        return sha256(repr(same).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of ``run``: what was asked, and what it cost."""

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
    wall_s: float | None = None
    """Seconds from start to end; None while it runs, or if it was cut short."""
    overhead_ratio: float | None = None
    """Share of the wall time that was neither implementation, oracle nor sample."""

"""Where and when: the machine and its state, its software, and the invocation."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256


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

"""Where a measurement is made: everything that can change a number, read once a run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pynvml
import torch

from harness.records import Environment, Gpu
from implementations.peers import PACKAGES

__all__ = ["compiler", "read_environment"]

_OTHERS = tuple(name for each in PACKAGES for name in each.distributions)
_PACKAGES = tuple(dict.fromkeys(("torch", "numpy", "triton", *_OTHERS)))  # what is timed runs on


def read_environment() -> Environment:
    """Describe the machine and the software, as far as they can be asked."""
    nvml, gpus = _gpus()
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return Environment(
        cpu=_cpu_model(),
        cpu_count=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        memory_bytes=_memory_bytes(),
        platform=f"{platform.platform()} {''.join(platform.libc_ver())}".strip(),
        python=platform.python_version(),
        packages=tuple((name, version) for name in _PACKAGES if (version := _version(name))),
        compiler=_compiler_version(),
        gpus=gpus,
        nvml=nvml,
        git_commit=commit,
        git_dirty=None if changes is None else bool(changes),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def compiler() -> str | None:
    """Path of the C++ compiler that torch.compile would use, or None."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual))


def _compiler_version() -> str | None:
    path = compiler()
    return None if path is None else (_output(path, "--version") or path).partition("\n")[0]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    return _output("git", *arguments)


def _output(*command: str) -> str | None:
    """Standard output of a command, or None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _gpus() -> tuple[str, tuple[Gpu, ...]]:
    """NVML's driver version and the GPUs, or why there are none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML unavailable: {error}", ()
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return f"driver {pynvml.nvmlSystemGetDriverVersion()}", tuple(map(_gpu, handles))
    except pynvml.NVMLError as error:
        return f"NVML unavailable: {error}", ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: object) -> Gpu:
    try:
        limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3  # it gives milliwatts
    except pynvml.NVMLError:  # not every card has one
        limit_w = None
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        power_limit_w=limit_w,
        compute_capability=f"{major}.{minor}",
    )

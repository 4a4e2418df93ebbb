"""The machine and the software of a measurement: what can change a number, read once per run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pynvml

from harness.records import Environment, Gpu

_PROGRAM = Path(__file__).resolve().parents[1]
# https://user:token@host/path.git, ssh://git@host:22/path.git, git@host:path.git
_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@]*@)?(?P<host>[\w.-]+)(?::\d+)?/|(?:[^/@:]+@)(?P<scp>[\w.-]+):)"
    r"(?P<path>[\w./~+-]+?)(?:\.git)?/?"
)
# set by git for its hooks: they name the repository of the hook, and overrule `git -C`
_HOOK_VARIABLES = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}


def read_environment() -> Environment:
    """Describe the machine and the software; what cannot be read is None."""
    import torch  # here, since a process that only calls git needs none

    nvml, gpus = _gpus()
    # installed inside another repository, the program is not of that repository's commit
    is_tracked = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git("rev-parse", "HEAD") if is_tracked else None
    changes = _git("status", "--porcelain", "--untracked-files=no") if is_tracked else None
    return Environment(
        cpu=_cpu_model(),
        cpu_count=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        memory_bytes=_memory_bytes(),
        platform=f"{platform.platform()} {''.join(platform.libc_ver())}".strip(),
        python=platform.python_version(),
        packages=tuple(_packages()),
        compiler=_compiler_version(),
        gpus=gpus,
        nvml=nvml,
        git_commit=commit,
        git_dirty=None if changes is None else bool(changes),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        git_commit_utc=_git("show", "-s", "--format=%cI", "HEAD") if is_tracked else None,
        repository_url=web_address(_git("remote", "get-url", "origin")) if is_tracked else None,
    )


def environment_outside_hooks() -> dict[str, str]:
    """Return this process's environment without what git sets for its hooks."""
    return {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}


def web_address(remote: str | None) -> str | None:
    """Return the web address of a git remote, such as https://example.org/owner/name.

    User names, passwords and tokens are left out. None for a remote that is a local path.
    """
    found = _REMOTE.fullmatch(remote or "")
    return f"https://{found['host'] or found['scp']}/{found['path']}" if found else None


def compiler() -> str | None:
    """Return the path of the C++ compiler that torch.compile would use, or None."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual))


def _compiler_version() -> str | None:
    path = compiler()
    return None if path is None else (_output(path, "--version") or path).partition("\n")[0]


def _cpu_model() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2] for line in lines if line[:10] == "model name").strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _packages() -> Iterator[tuple[str, str]]:
    """Yield the packages that a number may depend on, each with its version."""
    from implementations.peers import PACKAGES

    peers = (name for peer in PACKAGES for name in peer.distributions)
    for name in dict.fromkeys(("torch", "numpy", "triton", *peers)):
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _git(*arguments: str) -> str | None:
    """Return the output of git in the program's folder; None if it fails."""
    return _output("git", "-C", str(_PROGRAM), *arguments, env=environment_outside_hooks())


def _output(*command: str, env: Mapping[str, str] | None = None) -> str | None:
    """Return the standard output of a command; None if it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _gpus() -> tuple[str, tuple[Gpu, ...]]:
    """Return the driver version and the GPUs; or why NVML does not tell, and what torch does."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML unavailable: {error}", ()
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        is_sliced = any(map(_is_sliced, handles))
        gpus = _gpus_of_torch() if is_sliced else tuple(map(_gpu, handles))
        return f"driver {pynvml.nvmlSystemGetDriverVersion()}", gpus
    except pynvml.NVMLError as error:  # a slice of a GPU may be denied some queries
        return f"NVML unavailable: {error}", _gpus_of_torch()
    finally:
        pynvml.nvmlShutdown()


def _is_sliced(handle: object) -> bool:
    """Whether a GPU is divided (MIG): CUDA then shows one slice, and NVML the whole."""
    with suppress(pynvml.NVMLError):  # most cards have no slices
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _gpus_of_torch() -> tuple[Gpu, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(
        Gpu(
            name=one.name,
            uuid=str(getattr(one, "uuid", "")),  # not in every torch
            memory_bytes=one.total_memory,
            power_limit_w=None,
            compute_capability=f"{one.major}.{one.minor}",
        )
        for one in found
    )


def _gpu(handle: object) -> Gpu:
    limit_w = None
    with suppress(pynvml.NVMLError):  # not every card has one
        limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3  # it gives milliwatts
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        power_limit_w=limit_w,
        compute_capability=f"{major}.{minor}",
    )

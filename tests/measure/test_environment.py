"""The environment: fields that cannot be read are None or hold the reason."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml
import pytest

from harness.measure import environment as module
from harness.measure.environment import compiler, read_environment
from harness.records import Environment, Gpu

OPTIONAL = {
    "compiler", "git_commit", "git_commit_utc", "git_dirty", "load_average", "memory_bytes",
    "repository_url",
}  # fmt: skip


class FakeNvml:
    """NVML with two GPUs, one without a power limit; ``fails`` names the call that raises."""

    NVMLError = pynvml.NVMLError

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.open = 0
        self._answers: dict[str, Callable[..., object]] = {
            "nvmlInit": partial(self._count, 1),
            "nvmlShutdown": partial(self._count, -1),
            "nvmlSystemGetDriverVersion": lambda: "550.54",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetEnforcedPowerLimit": self._power_limit,
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, handle),
            "nvmlDeviceGetName": "Imaginary {}".format,
            "nvmlDeviceGetUUID": "GPU-{}".format,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30),
        }

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name == self.fails:
            return partial(self._raise, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        assert name == "nvmlInit" or self.open == 1, "asked before it was opened"
        return self._answers[name]

    def _count(self, change: int) -> None:
        self.open += change

    def _raise(self, code: int, *_: object) -> NoReturn:
        raise pynvml.NVMLError(code)

    def _power_limit(self, handle: int) -> int:
        return 700_000 if handle == 0 else self._raise(pynvml.NVML_ERROR_NOT_SUPPORTED)


def with_nvml(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> FakeNvml:
    fake = FakeNvml(fails)
    monkeypatch.setattr(module, "pynvml", fake)
    return fake


@pytest.fixture(scope="module")
def environment() -> Environment:
    return read_environment()


def test_every_required_field_is_read(environment: Environment) -> None:
    for field in fields(environment):
        if field.name not in OPTIONAL | {"gpus"}:
            assert getattr(environment, field.name), field.name


def test_only_the_cpus_of_this_process_are_counted_where_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 6})
    assert read_environment().cpu_count == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert read_environment().cpu_count == 11


# --- NVML ----------------------------------------------------------------------------------------


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_nvml(monkeypatch)
    found = read_environment()
    assert found.nvml == "driver 550.54"
    first = Gpu(
        name="Imaginary 0",
        uuid="GPU-0",
        memory_bytes=80 << 30,
        power_limit_w=700.0,
        compute_capability="9.0",
    )
    second = replace(
        first, name="Imaginary 1", uuid="GPU-1", power_limit_w=None, compute_capability="9.1"
    )
    assert found.gpus == (first, second)
    assert fake.open == 0  # what was opened is closed


@pytest.mark.parametrize(
    "stage",
    [
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMemoryInfo",
    ],
)
def test_nvml_that_fails_at_any_call_gives_a_reason_and_no_gpu(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    fake = with_nvml(monkeypatch, fails=stage)
    found = read_environment()
    assert found.nvml == "NVML unavailable: Driver Not Loaded"
    assert found.gpus == ()
    assert fake.open == 0


# --- git -----------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout that the program is part of."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "--quiet")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("one")
    (tmp_path / "beside.py").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--no-gpg-sign", "--message", "first")
    monkeypatch.setattr(module, "_PROGRAM", tmp_path / "harness")
    return tmp_path


def test_the_commit_is_that_of_the_program_wherever_it_is_run(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    git(elsewhere, "init", "--quiet")
    git(elsewhere, "commit", "--quiet", "--no-gpg-sign", "--allow-empty", "--message", "another")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))  # as within a hook of it
    found = read_environment()
    assert found.git_commit == git(repository, "--git-dir=.git", "rev-parse", "HEAD")
    assert found.git_dirty is False
    written = git(repository, "--git-dir=.git", "show", "-s", "--format=%cI", "HEAD")
    assert found.git_commit_utc == written
    assert found.repository_url is None


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.org/owner/name.git", "https://example.org/owner/name"),
        ("https://user:secret@example.org/owner/name", "https://example.org/owner/name"),
        ("ssh://git@example.org:2222/owner/name.git/", "https://example.org/owner/name"),
        ("git@example.org:group/sub/name.git", "https://example.org/group/sub/name"),
        ("/home/somebody/name", None),
        ("https://example.org/<script>", None),
        (None, None),
    ],
)
def test_a_remote_has_a_web_address_without_credentials(
    remote: str | None, address: str | None
) -> None:
    assert module.web_address(remote) == address


def test_a_changed_file_makes_the_commit_dirty_but_a_new_one_does_not(repository: Path) -> None:
    (repository / "new").write_text("untracked")
    assert read_environment().git_dirty is False
    (repository / "beside.py").write_text("two")
    assert read_environment().git_dirty is True


@pytest.mark.parametrize("place", ["installed in a repository", "outside any repository"])
def test_a_program_that_is_not_tracked_has_no_commit(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    installed = (outside if place.startswith("outside") else repository) / ".venv" / "harness"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("one")
    monkeypatch.setattr(module, "_PROGRAM", installed)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(outside.parent))
    monkeypatch.chdir(repository)
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_git_that_is_missing_or_hangs_gives_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hangs: bool
) -> None:
    def hang(command: object, *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(str(command), timeout)

    if hangs:
        monkeypatch.setattr(subprocess, "run", hang)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)


# --- the machine ---------------------------------------------------------------------------------


def cpuinfo(monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    """Let /proc/cpuinfo hold ``content``, or be absent."""
    read_text = Path.read_text

    def fake(path: Path, *arguments: Any, **options: Any) -> str:
        if path != Path("/proc/cpuinfo"):
            return read_text(path, *arguments, **options)
        if content is None:
            raise FileNotFoundError(str(path))
        return content

    monkeypatch.setattr(Path, "read_text", fake)


@pytest.mark.parametrize("content", [None, "", "processor : 0\nBogoMIPS : 50\n"])
def test_a_cpu_without_a_model_name_has_the_name_of_its_architecture(
    monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    cpuinfo(monkeypatch, content)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert read_environment().cpu == platform.machine()
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert read_environment().cpu == "arm"


def test_memory_and_load_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    monkeypatch.delattr(os, "getloadavg")
    found = read_environment()
    assert (found.memory_bytes, found.load_average) == (None, None)


# --- the compiler --------------------------------------------------------------------------------


def test_the_compiler_is_the_one_that_cxx_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "my-cxx"
    monkeypatch.setenv("CXX", str(mine))
    assert compiler() is None
    assert read_environment().compiler is None
    for text, expected in (("echo my-cxx 1.2; echo more", "my-cxx 1.2"), ("exit 1", str(mine))):
        mine.write_text(f"#!/bin/sh\n{text}\n")
        mine.chmod(0o755)
        assert compiler() == str(mine)
        assert read_environment().compiler == expected

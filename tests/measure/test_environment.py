"""The environment: every field that can be read is; the others are None or say why."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml
import pytest
import torch

from harness.measure import environment as module
from harness.measure.environment import compiler, read_environment
from harness.records import Environment, Gpu

OPTIONAL = {"compiler", "git_commit", "git_dirty", "memory_bytes", "load_average"}


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


def test_every_field_that_must_be_there_is(environment: Environment) -> None:
    for each in fields(environment):
        if each.name not in OPTIONAL | {"gpus"}:
            assert getattr(environment, each.name), each.name


def test_software_that_changes_a_number_has_its_version(environment: Environment) -> None:
    packages = dict(environment.packages)
    assert packages["torch"] == torch.__version__
    assert "numpy" in packages
    assert environment.python == platform.python_version()


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGES", ("torch", "no-such-package-at-all"))
    assert [name for name, _ in read_environment().packages] == ["torch"]


def test_reading_twice_gives_one_fingerprint(environment: Environment) -> None:
    assert read_environment().fingerprint == environment.fingerprint


def test_only_cpus_this_process_may_use_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 6})
    assert read_environment().cpu_count == 3


def test_a_system_without_affinity_counts_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert read_environment().cpu_count == 11


# --- NVML ----------------------------------------------------------------------------------------


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_nvml(monkeypatch)
    found = read_environment()
    assert found.nvml == "driver 550.54"
    assert found.gpus == (
        Gpu(
            name="Imaginary 0",
            uuid="GPU-0",
            memory_bytes=80 << 30,
            power_limit_w=700.0,
            compute_capability="9.0",
        ),
        Gpu(
            name="Imaginary 1",
            uuid="GPU-1",
            memory_bytes=80 << 30,
            power_limit_w=None,
            compute_capability="9.1",
        ),
    )
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
def test_nvml_that_fails_at_any_stage_gives_words_and_no_gpu(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    fake = with_nvml(monkeypatch, fails=stage)
    found = read_environment()
    assert found.nvml == "NVML unavailable: Driver Not Loaded"
    assert found.gpus == ()
    assert fake.open == 0


def test_a_card_without_a_power_limit_is_a_card_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_nvml(monkeypatch, fails="nvmlDeviceGetEnforcedPowerLimit")
    found = read_environment()
    assert [each.power_limit_w for each in found.gpus] == [None, None]


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


def test_a_changed_file_makes_it_dirty_and_a_new_one_does_not(repository: Path) -> None:
    (repository / "new").write_text("untracked")
    assert read_environment().git_dirty is False
    (repository / "beside.py").write_text("two")
    assert read_environment().git_dirty is True


def test_a_program_installed_within_a_repository_is_of_no_commit(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = repository / ".venv" / "harness"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("one")
    monkeypatch.setattr(module, "_PROGRAM", installed)
    monkeypatch.chdir(repository)
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)


def test_outside_a_repository_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROGRAM", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)
    assert found.compiler is None


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: object, *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(str(command), timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert read_environment().git_commit is None


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


def test_a_cpu_is_named_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo(monkeypatch, "processor : 0\nmodel name\t: Some CPU: fast\nmodel name : other\n")
    assert read_environment().cpu == "Some CPU: fast"


@pytest.mark.parametrize("content", [None, "", "processor : 0\nBogoMIPS : 50\n"])
def test_a_cpu_without_a_model_name_is_named_by_its_kind(
    monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    cpuinfo(monkeypatch, content)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert read_environment().cpu == platform.machine()
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert read_environment().cpu == "arm"


def test_memory_that_the_system_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert read_environment().memory_bytes is None


def test_a_system_without_load_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert read_environment().load_average is None


# --- the compiler --------------------------------------------------------------------------------


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_compiler_is_the_one_that_cxx_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = script(tmp_path / "my-cxx", "echo my-cxx 1.2.3; echo more")
    monkeypatch.setenv("CXX", str(mine))
    assert compiler() == str(mine)
    assert read_environment().compiler == "my-cxx 1.2.3"


def test_a_compiler_that_does_not_tell_its_version_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = script(tmp_path / "my-cxx", "exit 1")
    monkeypatch.setenv("CXX", str(mine))
    assert read_environment().compiler == str(mine)


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler-at-all")
    assert compiler() is None
    assert read_environment().compiler is None

"""The environment: fields that cannot be read are None or hold the reason."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
from factories.fake_cuda import Nvml

from harness.measure import compiler, read_environment, web_address
from harness.records import Gpu

OPTIONAL = {
    *("compiler", "git_commit", "git_commit_utc", "git_dirty", "load_average", "memory_bytes"),
    *("repository_url", "gpus"),
}


def test_every_required_field_is_read() -> None:
    environment = read_environment()
    required = {field.name for field in fields(environment)} - OPTIONAL
    assert [name for name in required if not getattr(environment, name)] == []


# --- the machine ---------------------------------------------------------------------------------


def test_only_the_cpus_of_this_process_are_counted_where_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 6})
    assert read_environment().cpu_count == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert read_environment().cpu_count == 11


@pytest.mark.parametrize(
    ("content", "processor", "cpu"),
    [
        ("processor : 0\nmodel name : Fast 3000\n", "arm", "Fast 3000"),
        ("processor : 0\nBogoMIPS : 50\n", "arm", "arm"),
        ("", "", platform.machine()),
        (None, "", platform.machine()),
    ],
)
def test_a_cpu_without_a_model_name_has_the_name_of_its_architecture(
    monkeypatch: pytest.MonkeyPatch, content: str | None, processor: str, cpu: str
) -> None:
    def read_text(path: Path) -> str:
        if content is None:
            raise FileNotFoundError(path)
        return content

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr("harness.measure.environment._version", lambda _: None)
    assert read_environment().cpu == cpu


def test_memory_and_load_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: int(name))  # an unknown name: ValueError
    monkeypatch.delattr(os, "getloadavg")
    found = read_environment()
    assert (found.memory_bytes, found.load_average) == (None, None)


def test_the_compiler_is_the_one_that_cxx_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "my-cxx"
    monkeypatch.setenv("CXX", str(mine))
    assert compiler() is read_environment().compiler is None
    for text, expected in (("echo my-cxx 1.2; echo more", "my-cxx 1.2"), ("exit 1", str(mine))):
        mine.write_text(f"#!/bin/sh\n{text}\n")
        mine.chmod(0o755)
        assert (compiler(), read_environment().compiler) == (str(mine), expected)


# --- NVML ----------------------------------------------------------------------------------------


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Nvml().installed(monkeypatch)
    found = read_environment()
    first = Gpu(
        name="Imaginary 0",
        uuid="GPU-0",
        memory_bytes=80 << 30,
        power_limit_w=700.0,
        compute_capability="9.0",
    )
    second = {"name": "Imaginary 1", "uuid": "GPU-1", "compute_capability": "9.1"}
    assert found.gpus == (first, replace(first, power_limit_w=None, **second))
    assert found.nvml == "driver 550.54"
    assert fake.open == 0  # what was opened is closed


@pytest.mark.parametrize("stage", ["Init", "SystemGetDriverVersion", "DeviceGetName"])
def test_nvml_that_fails_at_any_call_gives_a_reason_and_no_gpu(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    fake = Nvml().installed(monkeypatch)
    fake.fails = {f"nvml{stage}"}
    found = read_environment()
    assert (found.nvml, found.gpus) == ("NVML unavailable: Not Supported", ())
    assert fake.open == 0


# --- git -----------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    command = ["git", "-C", str(folder), "--git-dir=.git", *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout that the program is part of."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repository"
    (folder / "harness").mkdir(parents=True)
    (folder / "harness" / "__init__.py").write_text("one")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--no-gpg-sign", "--message", "first")
    monkeypatch.setattr("harness.measure.environment._PROGRAM", folder / "harness")
    return folder


def test_the_commit_is_that_of_the_program_wherever_it_is_run(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(elsewhere, "init", "--quiet")
    git(elsewhere, "commit", "--quiet", "--no-gpg-sign", "--allow-empty", "--message", "another")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))  # as within a hook of it
    found = read_environment()
    assert found.git_commit == git(repository, "rev-parse", "HEAD")
    assert found.git_commit_utc == git(repository, "show", "-s", "--format=%cI", "HEAD")
    assert (found.git_dirty, found.repository_url) == (False, None)
    (repository / "new").write_text("untracked")
    assert read_environment().git_dirty is False
    (repository / "harness" / "__init__.py").write_text("two")
    assert read_environment().git_dirty is True


@pytest.mark.parametrize("place", ["repository/.venv/harness", "outside/harness"])
def test_a_program_that_is_not_tracked_has_no_commit(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    installed = tmp_path / place
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("one")
    monkeypatch.setattr("harness.measure.environment._PROGRAM", installed)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(repository)
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)


def test_a_git_that_is_missing_or_hangs_gives_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang(command: object, *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(str(command), timeout)

    monkeypatch.setenv("PATH", str(tmp_path))
    missing = read_environment()
    monkeypatch.setattr(subprocess, "run", hang)
    for found in (missing, read_environment()):
        assert (found.git_commit, found.git_dirty) == (None, None)


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
    assert web_address(remote) == address

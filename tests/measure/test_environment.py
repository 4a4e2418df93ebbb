"""The environment: fields that cannot be read are None or hold the reason."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from factories.fake_cuda import Nvml
from factories.git_repository import Repository
from factories.results_factory import make_environment

from harness.measure import read_environment, web_address

OPTIONAL = {
    *("compiler", "git_commit", "git_commit_utc", "git_dirty", "load_average", "memory_bytes"),
    *("repository_url", "gpus"),
}


def test_every_required_field_is_read() -> None:
    environment = read_environment()
    required = {field.name for field in fields(environment)} - OPTIONAL
    assert [name for name in required if not getattr(environment, name)] == []


# --- the machine ---------------------------------------------------------------------------------


def test_only_the_cpus_of_this_process_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 6})
    assert read_environment().cpu_count == 3


# --- NVML ----------------------------------------------------------------------------------------


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Nvml().installed(monkeypatch)
    found = read_environment()
    first = replace(make_environment().gpus[0], name="Imaginary 0")
    second = {"name": "Imaginary 1", "uuid": "GPU-1", "compute_capability": "9.1"}
    assert found.gpus == (first, replace(first, power_limit_w=None, **second))
    assert found.nvml == "driver 550.54"
    assert fake.open == 0  # what was opened is closed


def test_of_a_gpu_with_slices_what_cuda_shows_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml().installed(monkeypatch).sliced = {1}
    one = SimpleNamespace(name="A slice", total_memory=10 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: one)
    found = read_environment()
    assert [gpu.name for gpu in found.gpus] == ["A slice"]
    assert found.nvml == "driver 550.54"


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetName"])
def test_nvml_that_fails_at_any_call_gives_a_reason_and_no_gpu(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fake = Nvml().installed(monkeypatch)
    fake.fails = {name}
    found = read_environment()
    assert (found.nvml, found.gpus) == ("NVML unavailable: Not Supported", ())
    assert fake.open == 0


# --- git -----------------------------------------------------------------------------------------


PROGRAM = "harness.measure.environment._PROGRAM"


def test_the_commit_is_that_of_the_program_wherever_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Repository.at(tmp_path / "repository", {"harness/__init__.py": "one"})
    elsewhere = Repository.at(tmp_path / "elsewhere", {}).path
    monkeypatch.setattr(PROGRAM, mine.path / "harness")
    monkeypatch.chdir(elsewhere)
    found = read_environment()
    assert found.git_commit == mine.git("rev-parse", "HEAD")
    assert found.git_commit_utc == mine.git("show", "-s", "--format=%cI", "HEAD")
    assert (found.git_dirty, found.repository_url) == (False, None)
    mine.write({"new": "untracked"})
    assert read_environment().git_dirty is False
    mine.write({"harness/__init__.py": "two"})
    assert read_environment().git_dirty is True
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))  # as within a hook of it
    assert read_environment().git_commit == found.git_commit


def test_a_program_that_is_not_tracked_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Repository.at(tmp_path / "repository", {"harness/__init__.py": "one"})
    mine.write({".venv/harness/__init__.py": "one"})
    monkeypatch.setattr(PROGRAM, mine.path / ".venv" / "harness")
    monkeypatch.chdir(mine.path)
    found = read_environment()
    assert (found.git_commit, found.git_dirty) == (None, None)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
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

"""The command ab, on small repositories with a change planted in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factories.commanding import PROGRAM, call
from factories.fake_device import LocalFleet
from factories.git_repository import LAYER_NORM, Repository

from harness.run import fleet as fleet_module

ROOT = Path(__file__).parents[2]
TARGET = "kernels/ln.py:layer_norm"
EXACT = ("--measure", "errors,memory")
SLOW = "for _ in range(9):\n        wide.square().mean(axes, keepdim=True)\n    y = (wide"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with one implementation, in which the command is run."""
    made = Repository.at(tmp_path / "mine", {"kernels/ln.py": LAYER_NORM})
    monkeypatch.chdir(made.path)
    return made


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No case leaves this process, and no modules of one test are left to the next."""
    monkeypatch.setattr(fleet_module, "Fleet", LocalFleet)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders


def compared(*more: str, target: str = TARGET, base: str = "HEAD", code: int = 0) -> dict[str, Any]:
    """Compare with ``base``; return the comparison."""
    sweep = ("-i", target, "--shape", "8x64")
    found = call("ab", "--base", base, *sweep, *more, "--json")
    assert found.exit_code == code, found.output
    comparison: dict[str, Any] = json.loads(found.stdout)
    return comparison


def refused(code: int, *arguments: str) -> str:
    """Run what is refused; return the line that says why."""
    found = call("ab", *arguments)
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    return found.stderr.splitlines()[-1].removeprefix("layernorm-bench: ")


# --- the gate ------------------------------------------------------------------------------------


def test_an_unchanged_working_copy_passes(repository: Repository) -> None:
    axes = ("--dtype", "float32,bfloat16", "--direction", "forward,backward")
    found = compared(*EXACT, *axes)
    assert (found["failed"], found["counts"]) == (False, {"unchanged": 4})
    assert found["baseline"] == f"HEAD ({repository.git('rev-parse', 'HEAD')[:12]})"
    assert len(found["notes"]) == 1
    assert {change["case"]["implementation"] for change in found["changes"]} == {TARGET}


PLANTED = {
    "an extra copy": ("wide = x.float()", "wide = x.clone().float()", "memory"),
    "N-1": (".square().mean(axes, keepdim=True)", ".var(axes, keepdim=True)", "status"),
    "an error": ("y = (wide", "raise ValueError('no')\n    y = (wide", "status"),
    "an error, committed": ("y = (wide", "raise ValueError('no')\n    y = (wide", "status"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_regression_fails(repository: Repository, planted: str) -> None:
    old, new, metric = PLANTED[planted]
    repository.git("tag", "before")
    repository.change("kernels/ln.py", old, new)
    if "committed" in planted:
        repository.commit()
    (change,) = compared(*EXACT, base="before", code=1)["changes"]
    assert change["kind"] == "regressed"
    assert metric in change["metric"]


def test_three_times_the_time_is_slower_in_five_processes(repository: Repository) -> None:
    repository.change("kernels/ln.py", "y = (wide", SLOW)
    sweep = ("-i", TARGET, "--shape", "8x64", "--measure", "latency")
    found = call("ab", "--base", "HEAD", *sweep)
    assert found.exit_code == 1, found.output
    assert "1 slower" in found.stdout
    assert "process 5 of at most 5" in found.stderr.splitlines()[-1]


def test_a_path_is_relative_to_the_current_folder(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.path / "kernels")
    for target in ("ln.py:layer_norm", f"{repository.path}/kernels/ln.py:layer_norm"):
        assert compared(*EXACT, target=target)["counts"] == {"unchanged": 1}


def test_a_new_function_beside_a_compared_one_passes(repository: Repository) -> None:
    repository.write({"kernels/new.py": LAYER_NORM})
    found = compared(*EXACT, "-i", "kernels/new.py:layer_norm")
    assert found["counts"] == {"new": 1, "unchanged": 1}


def test_cold_latencies_are_not_compared(repository: Repository) -> None:
    assert any("cold" in note for note in compared("--measure", "errors,cold")["notes"])


# --- refusals ------------------------------------------------------------------------------------


def test_functions_of_two_repositories_are_refused(repository: Repository, tmp_path: Path) -> None:
    other = Repository.at(tmp_path / "other", {"ln.py": LAYER_NORM})
    line = refused(2, "--base", "HEAD", "-i", TARGET, "-i", f"{other.path}/ln.py:layer_norm")
    assert str(repository.path) in line
    assert str(other.path) in line


@pytest.mark.parametrize("side", ["base", "head"])
def test_a_file_that_cannot_be_imported_is_refused(repository: Repository, side: str) -> None:
    repository.change("kernels/ln.py", "import torch", "import torch, gone_for_good")
    if side == "base":
        repository.commit()
        repository.change("kernels/ln.py", "import torch, gone_for_good", "import torch")
    line = refused(2, "--base", "HEAD", "-i", TARGET)
    assert line.startswith("-i: " if side == "head" else "HEAD (")
    assert "kernels/ln.py" in line
    assert "No module named 'gone_for_good'" in line


def test_nothing_in_common_is_not_comparable(repository: Repository) -> None:
    repository.write({"kernels/new.py": LAYER_NORM})
    line = refused(4, "--base", "HEAD", "-i", "kernels/new.py:layer_norm", "--shape", "8x64")
    assert "kernels/new.py:layer_norm" in line


def test_nothing_measured_is_exit_3(repository: Repository) -> None:
    repository.change("kernels/ln.py", "y = (wide", "raise ValueError('no')\n    y = (wide")
    repository.commit()
    assert "ValueError: no" in refused(3, "--base", "HEAD", "-i", TARGET, "--shape", "8x64")


# --- in processes of its own ---------------------------------------------------------------------


def spawn(*arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start the command; ``more`` are variables of its environment."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "ab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **more},
        # a shell that runs the tests in the background has them ignore the interrupt
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_implementations_of_the_package_are_compared_with_their_earlier_selves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = {
        f"implementations/{path.relative_to(ROOT / 'implementations')}": path.read_text()
        for path in (ROOT / "implementations").rglob("*.py")
    }
    repository = Repository.at(tmp_path / "house", copied)
    listing = "implementations/__init__.py"
    repository.change(listing, "\n    two_pass,\n", "\n")
    repository.commit()
    repository.change(listing, "\n    one_pass,\n", "\n    one_pass,\n    two_pass,\n")
    repository.change(listing, "\n    welford,\n", "\n")
    repository.change("implementations/one_pass.py", ".mean(", ".sum(")
    arguments = ("--base", "HEAD", "-i", "all", "--shape", "4x8", "--measure", "errors")
    monkeypatch.chdir(repository.path)  # of what can be imported, what lies here comes first
    done = spawn(*arguments, "--json")
    output, errors = done.communicate(timeout=300)
    assert done.returncode == 1, errors
    changes = json.loads(output)["changes"]
    kinds = {change["case"]["implementation"]: change["kind"] for change in changes}
    assert kinds.pop("two_pass") == "new"
    assert "welford" not in kinds
    assert kinds.pop("one_pass") == "regressed"
    assert kinds.pop("native") == "unchanged"


def test_when_interrupted_it_leaves_nothing_behind(repository: Repository, tmp_path: Path) -> None:
    folder, imported = tmp_path / "temporary", tmp_path / "imported"
    folder.mkdir()
    waiting = (
        f"import pathlib, time, torch\npathlib.Path({str(imported)!r}).touch()\ntime.sleep(600)"
    )
    repository.change("kernels/ln.py", "import torch", waiting)
    running = spawn("--base", "HEAD", "-i", TARGET, TMPDIR=str(folder))
    deadline = time.monotonic() + 300
    while not imported.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130, errors
    (line,) = errors.splitlines()
    assert line.startswith("layernorm-bench: interrupted")
    assert list(folder.iterdir()) == []
    assert repository.git("worktree", "list").count("\n") == 0

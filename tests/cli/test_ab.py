"""The command ab, on small repositories with a change planted in them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factories.commanding import answer, call, started, wait_until
from factories.git_repository import LAYER_NORM, Repository

ROOT = Path(__file__).parents[2]
TARGET = "kernels/ln.py:layer_norm"
NEW = "kernels/new.py:layer_norm"
RAISES = ("y = (wide", "raise ValueError('no')\n    y = (wide")
SLOW = ("y = (wide", "for _ in range(9):\n        wide.square().mean(axes)\n    y = (wide")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A repository with one implementation, in which the command is run.

    No modules of one test are left to the next.
    """
    made = Repository.at(tmp_path / "mine", {"kernels/ln.py": LAYER_NORM})
    made.git("tag", "before")
    monkeypatch.chdir(made.path)
    finders = list(sys.meta_path)
    yield made
    sys.meta_path[:] = finders


def compared(*more: str, target: str = TARGET, code: int = 0) -> Any:
    """Compare with the first commit; return the comparison."""
    options = ("--shape", "8x64", "--measure", "errors,memory")
    return answer("ab", "--base", "before", "-i", target, *options, *more, code=code)


def refused(code: int, *targets: str) -> str:
    """Compare with the last commit what is refused; return the line that says why."""
    given = [word for target in targets for word in ("-i", target)]
    found = call("ab", "--base", "HEAD", *given, "--shape", "8x64", code=code)
    assert found.stdout == ""
    return found.stderr.splitlines()[-1].removeprefix("layernorm-bench: ")


# --- the gate ------------------------------------------------------------------------------------


def test_an_unchanged_working_copy_passes(repository: Repository) -> None:
    found = compared("--dtype", "float32,bfloat16", "--direction", "forward,backward")
    assert (found["failed"], found["counts"]) == (False, {"unchanged": 4})
    assert found["baseline"] == f"before ({repository.git('rev-parse', 'HEAD')[:12]})"


@pytest.mark.parametrize(
    ("change", "metric", "is_committed"),
    [
        (("wide = x.float()", "wide = x.clone().float()"), "memory", False),
        (RAISES, "status", True),
    ],
    ids=["an extra copy", "an error, committed"],
)
def test_a_planted_regression_fails(
    repository: Repository, change: tuple[str, str], metric: str, is_committed: bool
) -> None:
    repository.change("kernels/ln.py", *change)
    if is_committed:
        repository.commit()
    (found,) = compared(code=1)["changes"]
    assert found["kind"] == "regressed"
    assert metric in found["metric"]


def test_three_times_the_time_is_slower_in_five_processes(repository: Repository) -> None:
    repository.change("kernels/ln.py", *SLOW)
    options = ("-i", TARGET, "--shape", "8x64", "--measure", "latency")
    assert "1 slower" in call("ab", "--base", "HEAD", *options, code=1).stdout


def test_a_path_is_relative_to_the_current_folder_and_a_new_function_passes(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write({"kernels/new.py": LAYER_NORM})
    assert compared("-i", NEW)["counts"] == {"new": 1, "unchanged": 1}
    monkeypatch.chdir(repository.path / "kernels")
    for target in ("ln.py:layer_norm", f"{repository.path}/{TARGET}"):
        assert compared(target=target)["counts"] == {"unchanged": 1}


# --- refusals ------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_imported_is_refused(repository: Repository) -> None:
    repository.change("kernels/ln.py", "import torch", "import torch, gone_for_good")
    assert refused(2, TARGET).startswith("-i: ")
    repository.commit()
    repository.change("kernels/ln.py", "import torch, gone_for_good", "import torch")
    line = refused(2, TARGET)
    assert line.startswith("HEAD (")
    assert "No module named 'gone_for_good'" in line


def test_nothing_in_common_or_nothing_measured_is_refused(repository: Repository) -> None:
    repository.write({"kernels/new.py": LAYER_NORM})
    assert NEW in refused(4, NEW)
    repository.change("kernels/ln.py", *RAISES)
    repository.commit()
    assert "ValueError: no" in refused(3, TARGET)


# --- in processes of its own ---------------------------------------------------------------------


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
    repository.change("implementations/one_pass.py", ".mean(", ".sum(")
    monkeypatch.chdir(repository.path)  # of what can be imported, what lies here comes first
    options = ("-i", "all", "--shape", "4x8", "--measure", "errors", "--json")
    done = started("ab", "--base", "HEAD", *options)
    output, errors = done.communicate(timeout=300)
    assert done.returncode == 1, errors
    changes = json.loads(output)["changes"]
    kinds = {change["case"]["implementation"]: change["kind"] for change in changes}
    expected = {"two_pass": "new", "one_pass": "regressed", "native": "unchanged"}
    assert {name: kinds[name] for name in expected} == expected


def test_when_interrupted_it_leaves_nothing_behind(repository: Repository, tmp_path: Path) -> None:
    folder, imported = tmp_path / "temporary", tmp_path / "imported"
    folder.mkdir()
    waiting = (
        f"import pathlib, time, torch\npathlib.Path({str(imported)!r}).touch()\ntime.sleep(600)"
    )
    repository.change("kernels/ln.py", "import torch", waiting)
    running = started("ab", "--base", "HEAD", "-i", TARGET, TMPDIR=str(folder))
    wait_until(imported.exists, 300)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130, errors
    assert list(folder.iterdir()) == []
    assert repository.git("worktree", "list").count("\n") == 0

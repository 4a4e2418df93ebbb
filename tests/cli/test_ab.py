"""The command ab, on small repositories with a change planted in them: what it prints, its code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_device import LocalFleet
from git_repository import GUEST, Repository

from harness.cli import main
from harness.run import fleet as fleet_module

PROGRAM = "import sys; from harness.cli import main; sys.exit(main())"
ROOT = Path(__file__).parents[2]
TARGET = "kernels/ln.py:layer_norm"
EXACT = ("--measure", "errors,memory")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with one implementation, in which the command is run."""
    made = Repository.at(tmp_path / "mine", {"kernels/ln.py": GUEST})
    monkeypatch.chdir(made.path)
    return made


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No case leaves this process, and no modules of one test are left to the next."""
    monkeypatch.setattr(fleet_module, "Fleet", LocalFleet)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("ab", *arguments))


def gate(*more: str, target: str = TARGET) -> Result:
    return call("--base", "HEAD", "-i", target, "--shape", "8x64", *more)


def refused(code: int, *arguments: str) -> str:
    """Run what is refused; return the line that says why."""
    found = call(*arguments)
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    line = found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr
    return line.removeprefix("layernorm-bench: ").removeprefix("Error: ")


# --- the gate ------------------------------------------------------------------------------------


def test_what_is_unchanged_passes(repository: Repository) -> None:
    found = gate(*EXACT, "--dtype", "float32,bfloat16", "--direction", "forward,backward")
    assert found.exit_code == 0, found.output
    first, note = found.stdout.splitlines()
    commit = repository.git("rev-parse", "HEAD")[:12]
    assert first == f"the working copy against HEAD ({commit}): 4 unchanged"
    assert note.startswith("note: the working copy equals the base")


PLANTED = {
    "an extra copy": ("wide = x.float()", "wide = x.clone().float()", "bytes"),
    "N-1": (".square().mean(axes, keepdim=True)", ".var(axes, keepdim=True)", "wrong now"),
    "narrow statistics": ("wide = x.float()", "wide = x.bfloat16().float()", "wrong now"),
    "a mean in bfloat16": (
        "wide.mean(axes, keepdim=True)",
        "wide.bfloat16().mean(axes, keepdim=True)",
        "wrong now",
    ),
    "an error": ("y = (wide", "raise ValueError('no')\n    y = (wide", "error now: ValueError: no"),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_planted_regression_fails_with_its_reason(
    repository: Repository, planted: str, is_committed: bool
) -> None:
    old, new, reason = PLANTED[planted]
    repository.git("tag", "before")
    repository.change("kernels/ln.py", old, new)
    if is_committed:
        repository.commit()
    found = call("--base", "before", "-i", TARGET, "--shape", "8x64", *EXACT)
    assert found.exit_code == 1, found.output
    assert "1 regressed" in found.stdout
    assert reason in found.stdout


def test_what_takes_three_times_as_long_is_slower(repository: Repository) -> None:
    again = "for _ in range(9):\n        wide.square().mean(axes, keepdim=True)\n    y = (wide"
    repository.change("kernels/ln.py", "y = (wide", again)
    found = gate("--measure", "latency")
    assert found.exit_code == 1, found.output
    assert "1 slower" in found.stdout
    assert "of its time in 5 processes)" in found.stdout
    assert found.stderr.splitlines()[-1] == "timing 1 suspect again, process 5 of 5"


def test_what_is_three_times_as_fast_passes(repository: Repository) -> None:
    slow = "for _ in range(9):\n        wide.square().mean(axes, keepdim=True)\n    y = (wide"
    repository.change("kernels/ln.py", "y = (wide", slow)
    repository.commit()
    repository.change("kernels/ln.py", slow, "y = (wide")
    found = gate("--measure", "latency")
    assert found.exit_code == 0, found.output
    assert "1 faster" in found.stdout


def test_a_path_is_looked_up_from_where_the_command_is_run(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.path / "kernels")
    assert "1 unchanged" in gate(*EXACT, target="ln.py:layer_norm").stdout
    assert (
        "1 unchanged" in gate(*EXACT, target=f"{repository.path}/kernels/ln.py:layer_norm").stdout
    )


def test_a_function_that_is_new_beside_one_that_is_not_passes(repository: Repository) -> None:
    repository.write({"kernels/new.py": GUEST})
    found = gate(*EXACT, "-i", "kernels/new.py:layer_norm")
    assert found.exit_code == 0, found.output
    assert "1 new, 1 unchanged" in found.stdout
    assert "; now ok" in found.stdout


def test_a_function_that_is_gone_is_said_to_be(repository: Repository) -> None:
    repository.write({"kernels/old.py": GUEST})
    repository.commit()
    (repository.path / "kernels/old.py").unlink()
    found = gate(*EXACT, "-i", "kernels/old.py:layer_norm")
    assert found.exit_code == 0, found.output
    assert "1 gone, 1 unchanged" in found.stdout


def test_json_holds_what_is_printed(repository: Repository) -> None:
    found = json.loads(gate(*EXACT, "--json").stdout)
    assert found["failed"] is False
    assert found["counts"] == {"unchanged": 1}
    assert found["changes"][0]["case"]["implementation"] == TARGET


def test_a_report_for_a_machine_is_written_too(repository: Repository) -> None:
    assert gate(*EXACT, "--junit", "out.xml", "--summary", "out.md").exit_code == 0
    assert TARGET in Path("out.xml").read_text()
    assert Path("out.md").read_text()


def test_cold_latencies_are_said_not_to_be_compared(repository: Repository) -> None:
    assert "note: cold latencies are not compared" in gate("--measure", "errors,cold").stdout


# --- what is refused -----------------------------------------------------------------------------


def test_a_revision_that_is_unknown_is_refused(repository: Repository) -> None:
    line = refused(2, "--base", "gone", "-i", TARGET)
    assert line.startswith(f"--base gone: {repository.path} has no such commit")


def test_a_file_in_no_repository_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ln.py").write_text(GUEST)
    monkeypatch.chdir(tmp_path)
    line = refused(2, "--base", "HEAD", "-i", "ln.py:layer_norm")
    assert line.startswith(f"ln.py:layer_norm: {tmp_path}/ln.py is in no git repository")


def test_without_git_that_is_said(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository.path))
    assert refused(2, "--base", "HEAD", "-i", TARGET).startswith("git is not installed")


def test_a_report_is_not_written_over_the_sweep(repository: Repository) -> None:
    Path("mine.toml").write_text("kept")
    line = refused(2, "--base", "HEAD", "--sweep", "mine.toml", "--junit", "./mine.toml")
    assert line.startswith("mine.toml: is read by this command, and would be lost")
    assert Path("mine.toml").read_text() == "kept"


def test_functions_of_two_repositories_are_refused(repository: Repository, tmp_path: Path) -> None:
    other = Repository.at(tmp_path / "other", {"ln.py": GUEST})
    theirs = f"{other.path}/ln.py:layer_norm"
    line = refused(2, "--base", "HEAD", "-i", TARGET, "-i", theirs)
    assert f"in the repository {other.path}" in line
    assert "compare them one after the other" in line


@pytest.mark.parametrize("whose", ["base", "head"])
def test_a_file_that_cannot_be_imported_is_refused(repository: Repository, whose: str) -> None:
    repository.change("kernels/ln.py", "import torch", "import torch, gone_for_good")
    if whose == "base":
        repository.commit()
        repository.change("kernels/ln.py", "import torch, gone_for_good", "import torch")
    line = refused(2, "--base", "HEAD", "-i", TARGET)
    name = "the working copy" if whose == "head" else "HEAD ("
    assert line.startswith(name)
    assert "kernels/ln.py" in line
    assert "cannot import: ModuleNotFoundError: No module named 'gone_for_good'" in line


def test_what_neither_has_is_refused(repository: Repository) -> None:
    line = refused(2, "--base", "HEAD", "-i", "kernels/ln.py:gone")
    assert line.startswith("-i: kernels/ln.py:gone: kernels/ln.py has no 'gone'")


def test_nothing_in_common_is_not_comparable(repository: Repository) -> None:
    repository.write({"kernels/new.py": GUEST})
    line = refused(4, "--base", "HEAD", "-i", "kernels/new.py:layer_norm", "--shape", "8x64")
    assert "have nothing in common: kernels/new.py:layer_norm/forward/8x64" in line
    assert ": not in HEAD (" in line


def test_nothing_measured_is_exit_3(repository: Repository) -> None:
    repository.change("kernels/ln.py", "y = (wide", "raise ValueError('no')\n    y = (wide")
    repository.commit()
    line = refused(3, "--base", "HEAD", "-i", TARGET, "--shape", "8x64")
    assert "no case was measured" in line
    assert "ValueError: no" in line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "Missing option '--base'"),
        (("--base", "HEAD", "--preset", "quik"), "no preset named 'quik'"),
        (
            ("--base", "HEAD", "--preset", "ci", "--sweep", "x.toml"),
            "--preset or --sweep, not both",
        ),
        (("--base", "HEAD", "-i", TARGET, "--dtype", "float23"), "'float23' is not one of"),
        (("--base", "HEAD", "-i", TARGET, "--device", "tpu"), "no device named 'tpu'"),
        (("--base", "HEAD", "-i", "no_such_module:f"), "no_such_module:f: no such module"),
    ],
)
def test_wrong_use_is_refused_in_a_line(
    repository: Repository, arguments: tuple[str, ...], line: str
) -> None:
    assert line in refused(2, *arguments)


# --- in processes of its own ---------------------------------------------------------------------


def spawn(*arguments: str, **more: str) -> subprocess.Popen[str]:
    """Run the command as a person would; ``more`` are variables of its environment."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "ab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **more},
        # whoever runs the tests in the background had the interrupt ignored for all they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_the_packages_own_are_compared_as_they_are_and_were(
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
    kinds = {each["case"]["implementation"]: each["kind"] for each in json.loads(output)["changes"]}
    assert kinds.pop("two_pass") == "new"
    assert kinds.pop("welford") == "gone"
    assert kinds.pop("one_pass") == "regressed"
    assert kinds.pop("native") == "unchanged"


def test_when_interrupted_it_leaves_nothing_behind(repository: Repository, tmp_path: Path) -> None:
    repository.change("kernels/ln.py", "import torch", "import torch, time\ntime.sleep(600)")
    folder = tmp_path / "temporary"
    folder.mkdir()
    running = spawn("--base", "HEAD", "-i", TARGET, TMPDIR=str(folder))
    deadline = time.monotonic() + 300
    while not list(folder.glob("*/base")) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130, errors
    assert errors.splitlines() == [
        "layernorm-bench: interrupted; half a comparison says nothing, so none of it was kept"
    ]
    assert list(folder.iterdir()) == []
    assert repository.git("worktree", "list").count("\n") == 0

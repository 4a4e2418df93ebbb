"""Standard output and standard error: the progress of a run, and streams that cannot be written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest
from factories.commanding import ONE, PROGRAM, call
from factories.compared_runs import STEADY, make_case, make_record, results_of
from factories.python_process import python

from harness.cli.terminal import RunProgress
from harness.store import read, write

EXPORT = ("export", "mine.parquet", "--format", "csv")
CHOOSE = ("choose", "mine.parquet")
RECORD = make_record(make_case("native"), STEADY)


def shell(line: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the streams of a line of bash, in which the command is ``"$@"``."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


# --- streams that cannot be written --------------------------------------------------------------


@pytest.fixture
def _measured() -> None:
    write(results_of(RECORD), Path("mine.parquet"))


@pytest.mark.usefixtures("_measured")
@pytest.mark.parametrize("arguments", [EXPORT, CHOOSE, ("--help",)])
def test_a_closed_pipe_and_a_full_disk_have_codes_of_their_own(arguments: tuple[str, ...]) -> None:
    # the reader is gone before anything is written
    done = shell('exec 3> >(:); wait $!; "$@" >&3', *arguments)
    assert (done.returncode, done.stderr) == (128 + 13, "")  # SIGPIPE
    if Path("/dev/full").exists():
        done = shell('"$@" > /dev/full', *arguments)
        (line,) = done.stderr.splitlines()
        assert line.startswith("layernorm-bench: standard output: cannot be written: No space")
        assert done.returncode == 2


def test_a_run_with_closed_streams_succeeds() -> None:
    done = shell('"$@" >&- 2>&-', "run", *ONE)
    assert done.returncode == 0
    assert len(read(Path("mine.parquet")).records) == 1


@pytest.mark.usefixtures("_measured")
def test_a_character_that_the_terminal_lacks_is_escaped() -> None:
    done = shell('"$@"', *CHOOSE, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout


# --- progress ------------------------------------------------------------------------------------


def test_in_a_pipe_progress_is_a_line_per_case_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [0.0, 200.2]
    monkeypatch.setattr("harness.cli.terminal.monotonic", lambda: times.pop(0) if times else 0.0)
    found = call("run", "-i", "native", "--shape", "2x8,3x8", "--measure", "errors")
    first, second = found.stderr.splitlines()
    begin = r"\[1/2\] ok +native/forward/2x8/float32/normal  [\w. ]+ulp in y"
    assert re.fullmatch(rf"{begin}  \(3 min 20 s left\)", first)
    assert second.startswith("[2/2] ok")


def test_counting_instructions_has_a_line_per_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.session.unavailable", lambda: None)
    counts = [7]
    monkeypatch.setattr(
        "harness.run.session.count_instructions", lambda cases, _: zip(cases, counts, strict=True)
    )
    _, *lines = call("run", *ONE, "--instructions").stderr.splitlines()
    assert lines == ["[0/1] counting instructions", "[1/1] counting instructions"]


def test_an_interruption_while_the_commands_are_imported_is_one_line() -> None:
    lines = ("import sys", "class Interrupting:", " def __bool__(self): raise KeyboardInterrupt")
    # the first import that asks whether there is a type checker is interrupted
    program = "\n".join([*lines, "import typing", "typing.TYPE_CHECKING = Interrupting()", PROGRAM])
    done = python("-c", program, code=130)
    assert done.stderr == "layernorm-bench: interrupted before anything was measured\n"


class Terminal(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_and_no_line_per_case_and_its_cursor_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with suppress(ZeroDivisionError), RunProgress(2, stream, quiet=False) as progress:
        progress.show(RECORD)
        raise ZeroDivisionError
    shown = stream.getvalue()
    assert RECORD.case.id not in shown
    assert "1/2" in shown
    assert "\x1b[?25h" in shown

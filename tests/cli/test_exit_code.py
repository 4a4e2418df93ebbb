"""What happens if standard output or standard error cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from factories.commanding import ONE, PROGRAM
from factories.compared_runs import STEADY, make_case, make_record, results_of

from harness.store import read, write

EXPORT = ("export", "mine.parquet", "--format", "csv")
CHOOSE = ("choose", "mine.parquet")


def shell(line: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the streams of a line of bash, in which the command is ``"$@"``."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def _measured() -> None:
    write(results_of(make_record(make_case("native"), STEADY)), Path("mine.parquet"))


@pytest.mark.usefixtures("_measured")
@pytest.mark.parametrize("arguments", [EXPORT, CHOOSE, ("--help",)])
def test_a_closed_pipe_ends_a_command_with_the_code_of_sigpipe(arguments: tuple[str, ...]) -> None:
    # the reader is gone before anything is written
    done = shell('exec 3> >(:); wait $!; "$@" >&3', *arguments)
    assert done.stderr == ""
    assert done.returncode == 128 + 13  # SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.usefixtures("_measured")
@pytest.mark.parametrize("arguments", [EXPORT, CHOOSE, ("--help",)])
def test_a_full_disk_is_an_error_in_one_line(arguments: tuple[str, ...]) -> None:
    done = shell('"$@" > /dev/full', *arguments)
    (line,) = done.stderr.splitlines()
    assert line.startswith("layernorm-bench: standard output: cannot be written: No space left")
    assert done.returncode == 2


def test_a_run_with_closed_streams_succeeds() -> None:
    done = shell('"$@" >&- 2>&-', "run", *ONE)
    assert done.returncode == 0
    assert len(read(Path("mine.parquet")).records) == 1


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_closed_stream_does_not_affect_the_other(stream: str) -> None:
    done = shell(f'"$@" {stream}>&-', "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("version" in done.stdout) == (stream == "2")


@pytest.mark.usefixtures("_measured")
def test_a_character_that_the_terminal_lacks_is_escaped() -> None:
    done = shell('"$@"', *CHOOSE, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout


def test_a_broken_pipe_within_the_harness_is_not_mistaken_for_a_closed_stream() -> None:
    script = (
        "from harness.cli import main\n"
        "from harness.cli.list import CATALOGUE\n"
        "def broken(): raise BrokenPipeError(32, 'of a worker')\n"
        "CATALOGUE['presets'] = broken\n"
        "main(['list', 'presets'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "BrokenPipeError: [Errno 32] of a worker" in done.stderr

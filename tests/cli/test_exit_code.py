"""Where standard output goes nowhere, or cannot take what is said, that is told as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import ONE, PROGRAM, call

from harness.store import read

EXPORT = ("export", "mine.parquet", "--format", "csv")
CHOOSE = ("choose", "mine.parquet")


def shell(line: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its streams as a line of bash has them, in which it is ``"$@"``."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def measured() -> None:
    """Results of one case in ``mine.parquet``."""
    assert call("run", *ONE[:4], "--out", "mine.parquet", "--json").exit_code == 0


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("arguments", [EXPORT, CHOOSE, ("--help",), ("list", "presets")])
def test_who_reads_no_further_ends_it_as_any_other_command(arguments: tuple[str, ...]) -> None:
    # the reader is gone before anything is written
    done = shell('exec 3> >(:); wait $!; "$@" >&3', *arguments)
    assert done.stderr == ""
    assert done.returncode == 128 + 13  # as the shell has it for SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("arguments", [EXPORT, CHOOSE, ("--help",)])
def test_a_full_disk_is_said_and_an_exit_code(arguments: tuple[str, ...]) -> None:
    done = shell('"$@" > /dev/full', *arguments)
    assert done.stderr == (
        "layernorm-bench: standard output: cannot be written: No space left on device\n"
    )
    assert done.returncode == 2


@pytest.mark.parametrize("line", ['"$@" >&-', '"$@" 2>&-', '"$@" >&- 2>&-'])
def test_a_closed_stream_takes_nothing_from_a_run(line: str) -> None:
    done = shell(line, "run", *ONE)
    assert done.returncode == 0, done.stderr
    assert len(read(Path("mine.parquet")).records) == 1
    assert ("results: mine.parquet" in done.stdout) is (
        ">&- " not in f"{line} ".replace("2>&-", "")
    )
    assert "Traceback" not in done.stderr


def test_what_the_terminal_has_no_letter_for_is_said_in_others() -> None:
    run = (*ONE[:4], "--out", "mine.parquet")
    done = shell('"$@"', "run", *run, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "results: mine.parquet" in done.stdout
    assert "\\xb5s" in done.stdout


def test_an_error_of_another_file_is_not_taken_for_one_of_the_streams() -> None:
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
    assert "Traceback" in done.stderr
    assert "BrokenPipeError: [Errno 32] of a worker" in done.stderr

"""The command line, run in this process or started in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from click.testing import CliRunner, Result

from factories.results_factory import make_environment, make_run
from factories.stored import journalled
from harness.cli import main
from harness.records import Record

# before click 8.2 standard error was mixed into standard output by default
_MIXED = "mix_stderr" in signature(CliRunner).parameters
_RUNNER = CliRunner(**({"mix_stderr": False} if _MIXED else {}))
IS_RECENT = tuple(map(int, version("click").split(".")[:2])) >= (8, 2)
"""Whether click writes help and messages as in the golden files."""
PROGRAM = "import sys; from harness.cli import main; sys.exit(main())"
ONE = ("-i", "native", "--shape", "2x8", "--measure", "errors", "--out", "mine.parquet")


def call(*arguments: str, code: int | None = None) -> Result:
    """Run the command, which exits with ``code`` if one is given."""
    found = _RUNNER.invoke(main, arguments)
    assert code in {None, found.exit_code}, found.output
    return found


def answer(*arguments: str, code: int = 0) -> Any:
    """Run the command; return the JSON on its standard output."""
    found = call(*arguments, "--json", code=code)
    return json.loads(found.stdout, parse_constant=lambda name: f"{name} is no JSON")


def complaint(*arguments: str, code: int = 2) -> str:
    """Run a command that is refused; return the line that says why."""
    found = call(*arguments, code=code)
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    return line.removeprefix("layernorm-bench: ")


def started(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start the command, with these variables beside those of this process."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,  # so that Ctrl-C reaches all of it, and nothing else
        # a shell that runs the tests in the background has them ignore the interrupt
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_until(is_true: Callable[[], object], limit_s: float = 60.0) -> None:
    stop_at = monotonic() + limit_s
    while not is_true():
        assert monotonic() < stop_at
        sleep(0.02)


def write_journal(path: Path, *records: Record, planned: int) -> None:
    """Write the journal of a run that was cut short."""
    journalled(path, make_run(planned=planned, wall_s=None), make_environment(), *records)

"""The command line, run in this process."""

from __future__ import annotations

import json
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from factories.results_factory import make_environment, make_run
from harness.cli import main
from harness.records import Record
from harness.store import Journal

# before click 8.2 standard error was mixed into standard output by default
_MIXED = "mix_stderr" in signature(CliRunner).parameters
_RUNNER = CliRunner(**({"mix_stderr": False} if _MIXED else {}))
IS_RECENT = tuple(map(int, version("click").split(".")[:2])) >= (8, 2)
"""Whether click writes help and messages as in the golden files."""
PROGRAM = "import sys; from harness.cli import main; sys.exit(main())"
ONE = ("-i", "native", "--shape", "2x8", "--measure", "errors", "--out", "mine.parquet")


def call(*arguments: str) -> Result:
    """Run the command."""
    return _RUNNER.invoke(main, arguments)


def answer(*arguments: str, code: int = 0) -> Any:
    """Run the command; return the JSON on its standard output."""
    found = call(*arguments, "--json")
    assert found.exit_code == code, found.output
    return json.loads(found.stdout, parse_constant=lambda name: f"{name} is no JSON")


def complaint(*arguments: str, code: int = 2) -> str:
    """Run a command that is refused; return the line that says why."""
    found = call(*arguments)
    assert (found.exit_code, found.stdout) == (code, ""), found.output
    (line,) = found.stderr.splitlines()
    return line.removeprefix("layernorm-bench: ")


def write_journal(path: Path, *records: Record, planned: int) -> None:
    """Write the journal of a run that was cut short."""
    with Journal(path) as journal:
        for entry in (make_run(planned=planned, wall_s=None), make_environment(), *records):
            journal.add(entry)

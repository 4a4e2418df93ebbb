"""The command, run in this process or as a person would."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature

from click.testing import CliRunner, Result

from harness.cli import main

# before click 8.2 standard error went into standard output unless told otherwise
_MIXED = "mix_stderr" in signature(CliRunner).parameters
_RUNNER = CliRunner(**({"mix_stderr": False} if _MIXED else {}))
PROGRAM = "import sys; from harness.cli import main; sys.exit(main())"


def call(*arguments: str) -> Result:
    """Run the command in this process."""
    return _RUNNER.invoke(main, arguments)


def spawn(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )


def complaint(*arguments: str) -> str:
    """Run what is refused as wrong use; return the line that says why."""
    found = call(*arguments)
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    (line,) = found.stderr.splitlines()
    return line.removeprefix("layernorm-bench: ")


ONE = ("-i", "native", "--shape", "2x8", "--measure", "errors", "--out", "mine.parquet")

"""Results files as arguments of commands: their names, and how they are read."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.store import Results

__all__ = ["PATH", "check_results_name", "read_run", "stored_file", "typed_command"]

PATH = click.Path(path_type=Path)


def check_results_name(option: str, path: Path) -> None:
    """Refuse the name of a results file that does not end in .parquet.

    Raises:
        click.UsageError: names ``option``.
    """
    if path.suffix != ".parquet":
        raise click.UsageError(f"{option} {path}: a results file ends in .parquet")


def read_run(path: Path, *, samples: bool = True) -> Results:
    """Read a results file, or the journal of an unfinished run.

    Args:
        path: the file; if only its journal exists, that is read.
        samples: whether the samples of a results file are needed.

    Raises:
        StoreError: no such file, or it cannot be read.
    """
    from harness.store import read, read_journal

    file = stored_file(path)
    return read_journal(file) if file.suffix == ".jsonl" else read(file, samples=samples)


def stored_file(path: Path) -> Path:
    """Return the file to read: the journal of ``path`` if only that exists, else ``path``."""
    journal = path.with_suffix(".jsonl")
    return journal if journal.exists() and not path.exists() else path


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join(["layernorm-bench", *sys.argv[1:]])

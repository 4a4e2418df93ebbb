"""Results files as arguments of commands: their names, and how they are read."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from harness.store import Results


class NamedPath(click.Path):
    """The name of a file or folder; a name that the system cannot look up is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return path
        except OSError as error:  # too long, or in a folder that may not be searched
            self.fail(f"{path!s:.60}: {error.strerror}", param, ctx)
        return path


PATH = NamedPath(path_type=Path)


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
    if not path.name:  # "/" or ".", which have no suffix
        return path
    journal = path.with_suffix(".jsonl")
    return journal if journal.exists() and not path.exists() else path


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join(["layernorm-bench", *sys.argv[1:]])

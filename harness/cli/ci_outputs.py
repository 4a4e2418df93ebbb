"""CI outputs of a gate: JUnit XML, a job summary and GitHub's annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from harness.cli.run_files import NamedPath
from harness.records.refusal import Refusal

if TYPE_CHECKING:
    from harness.regression.changes import Comparison

__all__ = [
    "CiOutputs",
    "OutputFileError",
    "TextFile",
    "add_summary",
    "ci_output_options",
    "refuse_input",
    "write_bytes",
    "write_text",
]


# no text ends so; a slip of the pen would replace what took hours, or was written by hand
_NOT_TEXT = {
    ".parquet": "a results file",
    ".jsonl": "a journal",
    ".toml": "a sweep or workload",
    ".py": "a program",
}


class TextFile(NamedPath):
    """The name of a text file to write; it is not empty and not that of another kind of file."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail(
                "the file name is empty: is it an environment variable that is not set here, such "
                "as GITHUB_STEP_SUMMARY?",
                param,
                ctx,
            )
        path: Any = super().convert(value, param, ctx)
        if other := _NOT_TEXT.get(path.suffix):
            self.fail(f"{path} is the name of {other}: choose another for text", param, ctx)
        return path


class OutputFileError(Refusal):
    """A file cannot be written."""


def refuse_input(out: Path, *inputs: Path) -> None:
    """Refuse to write over a file that the command reads.

    Raises:
        OutputFileError: ``out`` is one of the inputs, under this name or another.
    """
    for path in inputs:
        if path.exists() and out.exists() and out.samefile(path):
            raise OutputFileError(
                f"{out}: this command reads the file and would overwrite it: choose another"
            )


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file; missing folders are made.

    Raises:
        OutputFileError: the file cannot be written.
    """
    _write(path, text.encode(), "wb")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of a file that is not text; missing folders are made.

    Raises:
        OutputFileError: the file cannot be written.
    """
    _write(path, content, "wb")


def add_summary(path: Path, summary: Callable[[int], str]) -> None:
    """Write a job summary: append it if the file is GitHub's, else replace the file.

    GitHub's file collects the summaries of all commands of a step, and its limit is for their sum.

    Args:
        path: the file.
        summary: makes a summary of at most so many bytes; empty if that is too few.

    Raises:
        OutputFileError: the file cannot be written.
    """
    from harness.exports.job_summary import LIMIT_BYTES

    used = 0
    if _is_github_summary(path):
        try:
            used = path.stat().st_size
        except FileNotFoundError:  # this command is the first to write there
            used = 0
    separator = "\n" if used else ""  # a heading begins its line
    text = summary(LIMIT_BYTES - used - len(separator))
    if not text:
        click.echo(f"{path}: has no room for a summary, with {used} bytes in it already", err=True)
        return
    _write(path, (separator + text).encode(), "ab" if used else "wb")


def ci_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of CI outputs; the command takes them as ``outputs``.

    The command also has an option ``as_json``: annotations then go to standard error.
    """

    @wraps(command)
    def with_outputs(
        junit: Path | None, summary: Path | None, annotations: bool | None, **others: Any
    ) -> None:
        outputs = CiOutputs(
            junit=junit, summary=summary, annotations=annotations, to_stderr=others["as_json"]
        )
        command(outputs=outputs, **others)

    file = TextFile()
    options = (
        click.option("--junit", type=file, help="also write JUnit XML, for GitLab, Jenkins, ..."),
        click.option(
            "--summary",
            type=file,
            help="also write a summary in Markdown; it is appended to $GITHUB_STEP_SUMMARY and "
            "replaces any other file",
        ),
        click.option(
            "--annotations/--no-annotations",
            default=None,
            help="print GitHub's ::error and ::warning lines  "
            "[default: if $GITHUB_ACTIONS is true]",
        ),
    )
    decorated: Callable[..., None] = with_outputs
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


@dataclass(frozen=True, slots=True, kw_only=True)
class CiOutputs:
    """Where a gate reports its result besides the terminal."""

    junit: Path | None
    summary: Path | None
    annotations: bool | None
    """None: print annotations if the command runs in a GitHub job."""
    to_stderr: bool
    """Whether annotations go to standard error; GitHub reads them from both streams."""

    @contextmanager
    def prepared(self, *inputs: Path) -> Iterator[None]:
        """Empty the files on entry; write a refusal to them if the gate is refused.

        No report of an earlier run can then be taken for one of this run, even after a crash.

        Args:
            inputs: files that the gate reads.

        Raises:
            OutputFileError: a file cannot be written, or is an input.
        """
        if self.junit and self.summary and self.junit.resolve() == self.summary.resolve():
            raise OutputFileError(f"{self.junit}: --junit and --summary name the same file")
        for out in (self.junit, self.summary):
            if out:
                refuse_input(out, *inputs)
        if self.junit:
            write_text(self.junit, "")
        if self.summary and not _is_github_summary(self.summary):
            write_text(self.summary, "")
        try:
            yield
        except Refusal as refusal:
            self._write_refusal(str(refusal))
            raise

    def write(self, comparison: Comparison) -> None:
        """Write the result of the gate.

        Raises:
            OutputFileError: a file cannot be written.
        """
        from harness.exports.annotations import annotations_of_comparison
        from harness.exports.job_summary import summary_of_comparison
        from harness.exports.junit import junit_of_comparison

        if self.junit:
            write_text(self.junit, junit_of_comparison(comparison))
        if self.summary:
            rest = f"all are in {self.junit}" if self.junit else "--junit FILE has all of them"
            add_summary(
                self.summary,
                lambda room: summary_of_comparison(comparison, limit_bytes=room, rest=rest),
            )
        self._annotate(annotations_of_comparison(comparison))

    def _write_refusal(self, why: str) -> None:
        from harness.exports.annotations import annotations_of_refusal
        from harness.exports.job_summary import summary_of_refusal
        from harness.exports.junit import junit_of_refusal

        if self.junit:
            write_text(self.junit, junit_of_refusal(why))
        if self.summary:
            text = summary_of_refusal(why)
            add_summary(self.summary, lambda room: text if len(text.encode()) <= room else "")
        self._annotate(annotations_of_refusal(why))

    def _annotate(self, lines: list[str]) -> None:
        is_wanted = self.annotations
        if is_wanted is None:
            is_wanted = os.environ.get("GITHUB_ACTIONS") == "true"
        if is_wanted:
            for line in lines:
                click.echo(line, err=self.to_stderr)


def _is_github_summary(path: Path) -> bool:
    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return name != "" and path.resolve() == Path(name).resolve()


def _write(path: Path, content: bytes, mode: Literal["ab", "wb"]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(content)
    except OSError as error:
        raise OutputFileError(f"{path}: cannot be written: {error.strerror}") from error

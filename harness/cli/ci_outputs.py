"""CI outputs of a gate: JUnit XML, a job summary and GitHub's annotations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from harness.cli.run_files import NamedPath
from harness.records.refusal import Refusal

if TYPE_CHECKING:
    from harness.regression import Comparison
    from harness.report.document import Document

__all__ = [
    "CiOutputs",
    "OutputFileError",
    "TextFile",
    "add_summary",
    "gate_options",
    "print_comparison",
    "refuse_input",
    "write_file",
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


def write_file(path: Path, content: str | bytes, mode: Literal["ab", "wb"] = "wb") -> None:
    """Replace the content of a file, or append to it; missing folders are made.

    Raises:
        OutputFileError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OutputFileError(f"{path}: cannot be written: {error.strerror}") from error


def add_summary(path: Path, document: Document, rest: str = "") -> None:
    """Write a job summary: append it if the file is GitHub's, else replace the file.

    GitHub's file collects the summaries of all commands of a step, and its limit is for their sum.

    Args:
        path: the file.
        document: the summary.
        rest: a clause that says where to find the rows for which there is no room.

    Raises:
        OutputFileError: the file cannot be written.
    """
    from harness.report.document import markdown
    from harness.report.exports.ci import LIMIT_BYTES

    used = path.stat().st_size if _is_github_summary(path) and path.exists() else 0
    separator = "\n" if used else ""  # a heading begins its line
    text = markdown(document, limit_bytes=LIMIT_BYTES - used - len(separator), rest=rest)
    if not text:
        click.echo(f"{path}: has no room for a summary, with {used} bytes in it already", err=True)
        return
    write_file(path, separator + text, "ab" if used else "wb")


def gate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of what a gate prints and writes; the command takes them as ``outputs``."""

    @click.option("--junit", type=TextFile(), help="also write JUnit XML, for GitLab, Jenkins, ...")
    @click.option(
        "--summary",
        type=TextFile(),
        help="also write a summary in Markdown; it is appended to $GITHUB_STEP_SUMMARY and "
        "replaces any other file",
    )
    @click.option(
        "--annotations/--no-annotations",
        default=None,
        help="print GitHub's ::error and ::warning lines  [default: if $GITHUB_ACTIONS is true]",
    )
    @click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
    @wraps(command)
    def with_outputs(**values: Any) -> None:
        outputs = CiOutputs(**{field.name: values.pop(field.name) for field in fields(CiOutputs)})
        command(outputs=outputs, **values)

    return with_outputs


def print_comparison(comparison: Comparison, form: str) -> None:
    """Print a comparison on standard output, as "text", "markdown" or "json"."""
    from harness.report.comparison import (
        MOST_ROWS,
        comparison_as_plain,
        document_of_comparison,
    )
    from harness.report.document import markdown, show
    from harness.report.exports.ci import LIMIT_BYTES, summary_of_comparison

    if form == "json":
        click.echo(json.dumps(comparison_as_plain(comparison)))
    elif form == "markdown":
        click.echo(markdown(summary_of_comparison(comparison), limit_bytes=LIMIT_BYTES))
    else:
        show(document_of_comparison(comparison, most_rows=MOST_ROWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class CiOutputs:
    """Where a gate reports its result."""

    junit: Path | None
    summary: Path | None
    annotations: bool | None
    """None: print annotations if the command runs in a GitHub job."""
    as_json: bool
    """Print JSON; annotations then go to standard error, since GitHub reads both streams."""

    @property
    def is_given(self) -> bool:
        """Whether an option asks for an output."""
        return bool(self.junit or self.summary or self.as_json)

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
            write_file(self.junit, "")
        if self.summary and not _is_github_summary(self.summary):
            write_file(self.summary, "")
        try:
            yield
        except Refusal as refusal:
            from harness.report.exports import ci

            why = str(refusal)
            self._write(
                ci.junit_of_refusal(why), ci.summary_of_refusal(why), ci.annotations_of_refusal(why)
            )
            raise

    def report(self, comparison: Comparison) -> None:
        """Print and write the result of the gate.

        Raises:
            OutputFileError: a file cannot be written.
        """
        from harness.report.exports import ci

        print_comparison(comparison, "json" if self.as_json else "text")
        rest = f"all are in {self.junit}" if self.junit else "--junit FILE has all of them"
        self._write(
            ci.junit_of_comparison(comparison),
            ci.summary_of_comparison(comparison),
            ci.annotations_of_comparison(comparison),
            rest,
        )

    def _write(self, junit: str, summary: Document, annotations: list[str], rest: str = "") -> None:
        if self.junit:
            write_file(self.junit, junit)
        if self.summary:
            add_summary(self.summary, summary, rest)
        is_wanted = self.annotations
        if is_wanted is None:
            is_wanted = os.environ.get("GITHUB_ACTIONS") == "true"
        for line in annotations if is_wanted else ():
            click.echo(line, err=self.as_json)


def _is_github_summary(path: Path) -> bool:
    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return name != "" and path.resolve() == Path(name).resolve()

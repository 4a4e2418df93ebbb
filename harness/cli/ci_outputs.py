"""Where text goes besides the terminal: files that other programs read, and GitHub's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harness.records.refusal import Refusal

__all__ = [
    "GateOutlets",
    "OutFile",
    "OutletError",
    "add_summary",
    "gate_options",
    "keep_inputs",
    "write_text",
]


class OutFile(click.Path):
    """A file to write text to."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail(
                "'' names no file: is it a variable that is not set here, such as "
                "GITHUB_STEP_SUMMARY?",
                param,
                ctx,
            )
        path: Any = super().convert(value, param, ctx)
        if path.suffix == ".parquet":
            self.fail(f"{path} ends as results files do: choose another for text", param, ctx)
        return path


class OutletError(Refusal):
    """A file cannot be written."""


def keep_inputs(out: Path, *inputs: Path) -> None:
    """Let nothing be written over what is still to be read.

    Raises:
        OutletError: ``out`` is one of the inputs, by this name or another.
    """
    for each in inputs:
        if each.exists() and out.exists() and out.samefile(each):
            raise OutletError(f"{out}: is read by this command, and would be lost: choose another")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in the place of what is there; folders are made.

    Raises:
        OutletError: see there.
    """
    _put(path, text, "w")


def add_summary(path: Path, summary: Callable[[int], str]) -> None:
    """Write a job summary: after what is there if the file is GitHub's, else in its place.

    GitHub's file collects what all commands of a step have to say, and its limit is for all.

    Args:
        path: the file.
        summary: makes it, of at most so many bytes; empty if that is too few.

    Raises:
        OutletError: see there.
    """
    from harness.exports.job_summary import LIMIT_BYTES

    used = 0
    if _is_githubs(path):
        try:
            used = path.stat().st_size
        except FileNotFoundError:  # the first to write
            used = 0
    apart = "\n" if used else ""  # a heading begins its line
    text = summary(LIMIT_BYTES - used - len(apart))
    if not text:
        click.echo(f"{path}: has no room for a summary, with {used} bytes in it already", err=True)
        return
    _put(path, apart + text, "a" if used else "w")


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a gate the options of which ``GateOutlets`` is made, by the same names."""
    file = OutFile()
    options = (
        click.option("--junit", type=file, help="write JUnit XML, for GitLab, Jenkins and others"),
        click.option(
            "--summary",
            type=file,
            help="write markdown; $GITHUB_STEP_SUMMARY is added to, another file replaced",
        ),
        click.option(
            "--annotations/--no-annotations",
            default=None,
            help="print GitHub's ::error and ::warning lines  [default: if GITHUB_ACTIONS is true]",
        ),
    )
    for each in reversed(options):
        command = each(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOutlets:
    """Where else a gate is to tell its verdict."""

    junit: Path | None
    summary: Path | None
    annotations: bool | None
    """None: where GitHub reads along."""
    to_stderr: bool = False
    """Whether standard output is spoken for; GitHub reads both."""

    @contextmanager
    def open(self, *inputs: Path) -> Iterator[None]:
        """Empty what is to be written, and tell a refusal where the verdict would have been.

        So that no report of an earlier run is read as one of this, whatever happens.

        Args:
            inputs: files that the gate is to read.

        Raises:
            OutletError: a file cannot be written, or is an input; before anything is measured
                for it.
        """
        if self.junit and self.summary and self.junit.resolve() == self.summary.resolve():
            raise OutletError(f"{self.junit}: --junit and --summary would write over each other")
        for out in (self.junit, self.summary):
            if out:
                keep_inputs(out, *inputs)
        if self.junit:
            write_text(self.junit, "")
        if self.summary and not _is_githubs(self.summary):
            write_text(self.summary, "")
        try:
            yield
        except Refusal as refusal:
            self._tell_refusal(str(refusal))
            raise

    def tell(self, comparison: Any) -> None:
        """Tell what became of the cases.

        Raises:
            OutletError: a file cannot be written.
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

    def _tell_refusal(self, why: str) -> None:
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
        wanted = self.annotations
        if wanted is None:
            wanted = os.environ.get("GITHUB_ACTIONS") == "true"
        if wanted:
            for line in lines:
                click.echo(line, err=self.to_stderr)


def _is_githubs(path: Path) -> bool:
    own = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return own != "" and path.resolve() == Path(own).resolve()


def _put(path: Path, text: str, mode: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise OutletError(f"{path}: cannot be written: {error.strerror}") from error

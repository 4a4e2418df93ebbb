"""What commands print to the terminal: progress, the table of a run, a comparison."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from time import monotonic
from types import TracebackType
from typing import TextIO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from harness.records import Record, Status
from harness.records.speed import as_speed, speed_interval_text, speed_text
from harness.records.text import bytes_text, seconds_text, ulp_text
from harness.regression.changes import Comparison
from harness.regression.text import comparison_as_plain, comparison_lines
from harness.run.outcome import MOST_ROWS

__all__ = ["RunProgress", "print_comparison", "print_records"]

_HEADINGS = (
    "status", "error of y", "worst error", "latency", "speed", "memory", "instructions",
)  # fmt: skip
# the columns that are left out on a narrow terminal, in this order
_LEAST_WANTED = ("memory", "worst error", "instructions", "speed", "latency", "error of y")


class RunProgress:
    """Progress with the time left: a bar on a terminal, a line per case otherwise."""

    def __init__(self, total: int, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._total, self._stream = total, stream or sys.stderr
        self._done = 0
        self._began = monotonic()
        self._bar: Progress | None = None
        if self._stream.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(file=self._stream, markup=False),
                auto_refresh=False,  # a refreshing thread would disturb the samples
                transient=True,
            )

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("measuring", total=self._total)
            self._bar.refresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, total: int) -> None:
        """Set the number of cases: a run that is continued measures only the missing ones."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def show(self, record: Record) -> None:
        """Show that a case is done, and estimate how long the rest will take."""
        if self._quiet:
            return
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=record.case.implementation)
            self._bar.refresh()
            return
        left_s = (monotonic() - self._began) / self._done * (self._total - self._done)
        width = len(str(self._total))
        self._stream.write(
            f"[{self._done:>{width}}/{self._total}] {record.status:<16} {record.case.id}"
            f"{_figures(record)}{_time_left(left_s) if self._done < self._total else ''}\n"
        )
        self._stream.flush()


def print_records(
    records: Sequence[Record], stream: TextIO | None = None, *, every: bool = False
) -> None:
    """Print a table with a row per case or, if there are many cases, a row per implementation.

    Args:
        records: the cases.
        stream: where to print; by default standard output.
        every: whether each case has a row, however many there are.
    """
    stream = stream or sys.stdout
    if not records:
        return
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    # a pipe has no width: the table is as wide as its longest row, so that nothing is cut
    width = console.width if stream.isatty() else None
    has_case_rows = every or len(records) <= MOST_ROWS
    lines = _table_lines(records, width) if has_case_rows else _implementation_lines(records)
    for line in lines:
        console.print(line, soft_wrap=True)


def print_comparison(comparison: Comparison, *, as_json: bool) -> None:
    """Print the comparison of two runs on standard output, as lines or as JSON."""
    plain = json.dumps(comparison_as_plain(comparison)) if as_json else None
    click.echo(plain or "\n".join(comparison_lines(comparison)))


def _implementation_lines(records: Sequence[Record]) -> Iterator[str]:
    """Yield a table of how many cases of each implementation have which status."""
    counts = Counter((record.case.implementation, record.status) for record in records)
    statuses = [status for status in Status if any(status is key[1] for key in counts)]
    names = list(dict.fromkeys(name for name, _ in counts))
    width = max(map(len, ("implementation", *names)))
    yield f" {'implementation':<{width}}  cases  {'  '.join(statuses)}"
    for name in names:
        numbers = [counts[name, status] for status in statuses]
        cells = (
            f"{number or '-':>{len(status)}}"
            for number, status in zip(numbers, statuses, strict=True)
        )
        yield f" {name:<{width}}  {sum(numbers):>5}  {'  '.join(cells)}"


def _table_lines(records: Sequence[Record], width: int | None) -> Iterator[str | Text]:
    """Yield a table of at most ``width`` characters in which no id is cut.

    Where the figures do not fit beside the ids, they are printed below them. Columns that do not
    fit even there are left out, and the last line names them.
    """
    columns = dict(zip(_HEADINGS, zip(*map(_cells, records), strict=True), strict=True))
    if all(record.instructions is None for record in records):
        del columns["instructions"]
    widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    id_width = max(len(record.case.id) for record in records)
    available = inf if width is None else width
    is_beside = id_width + sum(2 + size for size in widths.values()) + 2 <= available
    left_out = []
    for name in _LEAST_WANTED if not is_beside else ():
        if name in widths and sum(2 + size for size in widths.values()) > available:
            del widths[name]
            left_out.append(name)
    first = f" {'case':<{id_width}}  " if is_beside else "  "
    yield f"{first}{'  '.join(f'{name:<{size}}' for name, size in widths.items())}".rstrip()
    for place, record in enumerate(records):
        style = "" if record.status is Status.OK else "yellow"
        figures = "  ".join(f"{columns[name][place]:<{size}}" for name, size in widths.items())
        name = f" {record.case.id:<{id_width}}  " if is_beside else f"{record.case.id}\n  "
        yield Text(f"{name}{figures}".rstrip(), style)
    if left_out:
        names = ", ".join(left_out)
        yield f"columns left out: {names}; widen the terminal, or see the results file"


def _time_left(left_s: float) -> str:
    return f"  ({seconds_text(float(round(left_s))) if left_s >= 1 else '<1 s'} left)"


def _figures(record: Record) -> str:
    """Return the figures of a case for its line of progress."""
    figures = []
    if record.errors is not None:
        figures.append(f"worst error {ulp_text(record.errors.worst.scaled_max_ulp)}")
    if record.latency is not None:
        figures.append(f"latency {seconds_text(record.latency.per_call_s.value)}")
        ratio = record.latency.reference_ratio
        if ratio is not None:
            figures.append(f"speed {speed_text(as_speed(ratio).value)}")
    return f"  {', '.join(figures)}" if figures else ""


def _cells(record: Record) -> tuple[str, ...]:
    """Return the cells of a row in the order of _HEADINGS; a dash where nothing was measured."""
    y_error = worst = latency = speed = memory = instructions = "-"
    if record.errors is not None:
        y_error = ulp_text(record.errors.outputs[0].scaled_max_ulp)
        furthest = record.errors.worst
        worst = f"{ulp_text(furthest.scaled_max_ulp)} in {furthest.output}"
    if record.latency is not None:
        latency = seconds_text(record.latency.per_call_s.value)
        estimate = record.latency.reference_ratio
        if estimate is not None:
            speed = speed_interval_text(as_speed(estimate))
    if record.memory is not None:
        memory = bytes_text(record.memory.peak_extra_bytes)
    elif record.memory_not_counted:
        memory = "not counted"
    if record.instructions is not None:
        instructions = f"{record.instructions:,}"
    return str(record.status), y_error, worst, latency, speed, memory, instructions

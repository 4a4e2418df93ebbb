"""What commands print to the terminal: progress, the table of a run, a comparison."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.records import Record, Status
from harness.records.metrics import brief, metrics_in
from harness.records.text import seconds_text
from harness.report.document import DASH, Cell, Table, columns, pill, show
from harness.run.text import MOST_ROWS


class RunProgress:
    """Progress with the time left: a bar on a terminal, a line per case otherwise."""

    def __init__(self, total: int, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._total, self._stream = total, stream or sys.stderr
        self._done = 0
        self._began = monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._stream, markup=False),
            auto_refresh=False,  # a refreshing thread would disturb the samples
            transient=True,
            disable=quiet or not self._stream.isatty(),
        )
        self._task = self._bar.add_task("measuring", total=total)

    def __enter__(self) -> RunProgress:
        self._bar.start()
        self._bar.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.live.stop()  # Progress.stop() of rich before 14 prints a line even if disabled

    def expect(self, total: int) -> None:
        """Set the number of cases: a run that is continued measures only the missing ones."""
        self._total = total
        self._bar.update(self._task, total=total)

    def show(self, record: Record) -> None:
        """Show that a case is done, and estimate how long the rest will take."""
        self._done += 1
        self._bar.update(self._task, advance=1, description=record.case.implementation)
        self._bar.refresh()
        if self._quiet or not self._bar.disable:
            return
        left_s = (monotonic() - self._began) / self._done * (self._total - self._done)
        left = f"{seconds_text(float(round(left_s))) if left_s >= 1 else '<1 s'} left"
        parts = (
            f"[{self._done:>{len(str(self._total))}}/{self._total}] {record.status:<16} "
            f"{record.case.id}",
            brief(record),
            f"({left})" if self._done < self._total else "",
        )
        self._stream.write("  ".join(filter(None, parts)) + "\n")
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
    if records:
        has_case_rows = every or len(records) <= MOST_ROWS
        show([(_case_table if has_case_rows else _implementation_table)(records)], stream)


def _case_table(records: Sequence[Record]) -> Table:
    metrics = [
        metric
        for metric in metrics_in("terminal")
        if metric.name != "instructions" or any(record.instructions for record in records)
    ]
    heads = ("case", "status", *(metric.heading("terminal") for metric in metrics))
    rows = (
        (
            Cell(record.case.id),
            Cell("ok") if record.status is Status.OK else pill(record.status),
            *(Cell(metric.text(record, interval=metric.name == "speed")) for metric in metrics),
        )
        for record in records
    )
    return Table(columns=columns(*heads), rows=tuple(rows))


def _implementation_table(records: Sequence[Record]) -> Table:
    """Return how many cases of each implementation have which status."""
    counts = Counter((record.case.implementation, record.status) for record in records)
    statuses = [status for status in Status if any(status is key[1] for key in counts)]
    rows = []
    for name in dict.fromkeys(name for name, _ in counts):
        numbers = [counts[name, status] for status in statuses]
        cells = (Cell(f"{number:,}" if number else DASH) for number in numbers)
        rows.append((Cell(name), Cell(f"{sum(numbers):,}"), *cells))
    return Table(columns=columns("implementation", "cases", *statuses), rows=tuple(rows))

"""The progress of a run: a bar on a terminal, a line per case otherwise."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.records import Record
from harness.records.metrics import brief
from harness.records.text import seconds_text


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

    def count(self, done: int, total: int) -> None:
        """Show of how many cases the instructions are counted."""
        what = "counting instructions"
        self._bar.update(self._task, completed=done, total=total, description=what)
        self._bar.refresh()
        if not self._quiet and self._bar.disable:
            self._stream.write(f"[{done}/{total}] {what}\n")
            self._stream.flush()

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

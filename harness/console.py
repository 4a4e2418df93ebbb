"""What a person sees of a run in the terminal: progress while it lasts, a table at its end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf, isfinite
from time import monotonic
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from harness.records import Record, Status

__all__ = [
    "RunProgress",
    "bytes_text",
    "doubt_lines",
    "outcome_line",
    "print_records",
    "seconds",
    "status_counts",
]

_MOST_ROWS = 40  # ours: a screenful; the page has the rest
_HEADINGS = (
    "status", "error of y", "worst error", "latency", "vs reference", "memory", "instructions",
)  # fmt: skip
_LEAST_WANTED = ("memory", "worst error", "instructions", "vs reference", "latency", "error of y")


class RunProgress:
    """Progress with the time left: a bar on a terminal, a line a case elsewhere."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total, self._stream = total, stream or sys.stderr
        self._done = 0
        self._began = monotonic()
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(file=self._stream, markup=False),
                auto_refresh=False,  # nothing may run beside a sample but between cases
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
        """Count to ``total``: of a run that is continued only the rest is measured."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def show(self, record: Record) -> None:
        """Say that a case is done, and for how long there is more to do."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=record.case.implementation)
            self._bar.refresh()
            return
        left_s = (monotonic() - self._began) / self._done * (self._total - self._done)
        width = len(str(self._total))
        self._stream.write(
            f"[{self._done:>{width}}/{self._total}] {record.status:<16} {record.case.id}"
            f"{_figures(record)}  ({seconds(left_s)} left)\n"
        )
        self._stream.flush()


def print_records(records: Sequence[Record], stream: TextIO | None = None) -> None:
    """Print a table of the cases, or of how many ended how if they are many."""
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if len(records) > _MOST_ROWS:
        console.print(status_counts(records), soft_wrap=True)
        for line in doubt_lines(records):
            console.print(line, soft_wrap=True)
        return
    if not records:
        return
    # a pipe has no width: as wide as the longest row, so that nothing is cut
    for row in _table_lines(records, console.width if stream.isatty() else None):
        console.print(row, soft_wrap=True)
    for each in records:
        if each.reason:
            console.print(f"{each.case.id}: {each.reason}", soft_wrap=True)
    for line in doubt_lines(records):
        console.print(line, soft_wrap=True)


def _table_lines(records: Sequence[Record], width: int | None) -> Iterator[str | Text]:
    """Lay the table out in so many characters; an id stays whole: cut, it names no case.

    Where there is no room beside the ids the figures stand below them; what does not fit even
    there is left out, which a last line says.
    """
    columns = dict(zip(_HEADINGS, zip(*map(_cells, records), strict=True), strict=True))
    if all(each.instructions is None for each in records):
        del columns["instructions"]
    widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    ids = max((len(each.case.id) for each in records), default=0)
    room = inf if width is None else width
    is_beside = ids + sum(2 + each for each in widths.values()) + 2 <= room
    left_out = []
    for name in _LEAST_WANTED if not is_beside else ():
        if name in widths and sum(2 + each for each in widths.values()) > room:
            del widths[name]
            left_out.append(name)
    first = f" {'case':<{ids}}  " if is_beside else "  "
    yield f"{first}{'  '.join(f'{name:<{size}}' for name, size in widths.items())}".rstrip()
    for place, each in enumerate(records):
        style = "" if each.status is Status.OK else "yellow"
        figures = "  ".join(f"{columns[name][place]:<{size}}" for name, size in widths.items())
        name = f" {each.case.id:<{ids}}  " if is_beside else f"{each.case.id}\n  "
        yield Text(f"{name}{figures}".rstrip(), style)
    if left_out:
        yield f"no room for {', '.join(left_out)}: widen the terminal, or see the results file"


def doubt_lines(records: Sequence[Record]) -> list[str]:
    """One line a kind of doubt: how many cases, and the advice for the first of them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for record in records:
        for doubt in record.warnings:
            found.setdefault(doubt.kind, []).append((record.case.id, doubt.advice))
    return [
        f"doubt: {kind.replace('_', ' ')} ({_cases(len(dict(rows)))}), "
        f"such as {rows[0][0]}: {rows[0][1]}"
        for kind, rows in found.items()
    ]


def status_counts(records: Sequence[Record]) -> str:
    """How many cases ended in each way, the commonest first."""
    counts = Counter(each.status for each in records)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def outcome_line(wall_s: float, overhead_ratio: float | None, records: Sequence[Record]) -> str:
    """Where the time went, and how many measurements are in doubt."""
    doubts = sum(bool(each.warnings) for each in records)
    parts = [f"{_cases(len(records))} in {seconds(wall_s)}"]
    if overhead_ratio is not None:
        parts.append(f"{overhead_ratio:.1%} of it the harness's own")
    if doubts:
        parts.append(f"{_cases(doubts)} with a doubt")
    return "; ".join(parts)


def seconds(value: float) -> str:
    """A duration with the unit that suits it, to three digits."""
    if not isfinite(value):
        return f"{value:g} s"
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if float(f"{value * factor:.3g}") < 1000:
            return f"{value * factor:.3g} {unit}"
    if float(f"{value:.3g}") < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def bytes_text(value: int) -> str:
    """An amount of memory with the unit that suits it, to four digits."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value} B"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"


def _ulp(error: float) -> str:
    return f"{error:.3g} ulp" if isfinite(error) else "not finite"


def _figures(record: Record) -> str:
    """The figures of a case, for its line of progress."""
    _, _, _, latency, ratio, _, _ = _cells(record)
    worst = "" if record.errors is None else f"  {_ulp(record.errors.worst.scaled_max_ulp)}"
    return worst + (f"  {latency} ({ratio})" if record.latency else "")


def _cells(record: Record) -> tuple[str, ...]:
    """What the table says of a case, as _HEADINGS has it; a dash for what was not measured."""
    dash = "-"
    y_error = worst = latency = ratio = memory = dash
    if record.errors is not None:
        y_error = _ulp(record.errors.outputs[0].scaled_max_ulp)
        furthest = record.errors.worst
        worst = f"{_ulp(furthest.scaled_max_ulp)} in {furthest.output}"
    if record.latency is not None:
        latency = seconds(record.latency.per_call_s.value)
        estimate = record.latency.reference_ratio
        if estimate is not None:
            ratio = f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
    if record.memory is not None:
        memory = bytes_text(record.memory.peak_extra_bytes)
    return str(record.status), y_error, worst, latency, ratio, memory, _count(record.instructions)

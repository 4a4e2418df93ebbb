"""The output of ``choose`` on a terminal: a table of choices, then how the others compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table

from harness.records import Estimate
from harness.records.text import bytes_text, seconds_text, ulp_text
from harness.selection.choose import Choice, Choices
from harness.selection.headline import headline_of
from harness.selection.pace import speed_in
from harness.selection.ranking import Candidate
from harness.selection.text import (
    answer_text,
    beyond_text,
    caveats,
    missing_lines,
    price_in_workload_text,
    price_text,
    saving_text,
    workload_answer_text,
)
from harness.selection.workload_choice import WorkloadChoice

__all__ = ["print_choices", "print_workload_choices"]

_MOST_PRICED = 30  # trade-off: about two screens; --format json has every scenario
_WRAPPED = {"for", "because"}  # columns of several words
_LEAST_WRAPPED = 24  # trade-off: characters of such a column below which it has a word per line
_DASH = "-"


def print_choices(choices: Choices, stream: TextIO) -> None:
    """Print the choice for each scenario, then what each other candidate would cost or gain."""
    console = _console(stream)
    for line in headline_of(choices):
        console.print(line, soft_wrap=not stream.isatty())
    environments = {choice.scenario.environment for choice in choices.choices}
    rows = [_row(choice, with_environment=len(environments) > 1) for choice in choices.choices]
    if rows and _least_width(rows) <= console.width:
        console.print(_table(rows))
    else:
        for row in rows:
            _print_in_lines(console, row)
    for choice in choices.choices[:_MOST_PRICED]:
        _print_prices(console, choice)
    left = len(choices.choices) - _MOST_PRICED
    if left > 0:
        console.print(f"prices of {left} more: use the filters or --format json", soft_wrap=True)
    if choices.untimed:
        names = ", ".join(scenario.text for scenario in choices.untimed[:3])
        rest = f" and {len(choices.untimed) - 3} more" if len(choices.untimed) > 3 else ""
        console.print(f"measured for errors only: {names}{rest}", soft_wrap=True)


def _row(choice: Choice, *, with_environment: bool) -> dict[str, str]:
    """Return the choice for one scenario, by heading."""
    best = choice.best
    time, error, memory = _numbers(best)
    return {
        **({"environment": choice.scenario.environment} if with_environment else {}),
        "for": choice.scenario.text,
        "run": _label(best),
        "speed": speed_in(choice, best),
        "time": time,
        "native takes": _DASH if choice.native_s is None else seconds_text(choice.native_s.value),
        "error": error,
        "memory": memory,
        "because": answer_text(choice),
    }


def _label(best: Candidate | None) -> str:
    return "none" if best is None else best.label


def _table(rows: Sequence[dict[str, str]]) -> Table:
    columns = (Column(name, no_wrap=name not in _WRAPPED) for name in rows[0])
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row.values(), style=_style(row))
    return table


def _least_width(rows: Sequence[dict[str, str]]) -> int:
    """Return the width at which the table has room for every word."""
    least = 0
    for name in rows[0]:
        longest = max(len(row[name]) for row in rows)
        least += 2 + (min(longest, _LEAST_WRAPPED) if name in _WRAPPED else longest)
    return least


def _print_in_lines(console: Console, row: dict[str, str]) -> None:
    """Print a row that is too wide for a table, each part in a line of its own."""
    names = ("speed", "time", "native takes", "error", "memory")
    numbers = ", ".join(f"{name} {row[name]}" for name in names)
    environment = [f"environment {row['environment']}"] if "environment" in row else []
    console.print(f"{row['for']}: {row['run']}", style=_style(row))
    for line in (*environment, numbers, row["because"]):
        console.print(Padding(line, (0, 0, 0, 2)), style=_style(row))


def _style(row: dict[str, str]) -> str:
    return "yellow" if row["run"] == "none" else ""


def print_workload_choices(workload_choices: Sequence[WorkloadChoice], stream: TextIO) -> None:
    """Print the choice for a workload on each device, and what a choice per shape would save."""
    console = _console(stream)
    for choice in workload_choices:
        for line in _workload_lines(choice):
            console.print(line, soft_wrap=True)


def _workload_lines(choice: WorkloadChoice) -> list[str]:
    where = f"{choice.device}, environment {choice.environment}"
    lines = [f"for all calls on {where}: {_label(choice.best)}: {workload_answer_text(choice)}"]
    if choice.best is not None:
        lines.append(f"  takes {_interval(choice.best.cost)} in all")
    lines += [
        f"  {candidate.label}: {price_in_workload_text(candidate, choice)}"
        for candidate in choice.candidates
        if candidate is not choice.best
    ]
    lines.append(f"a choice per shape {saving_text(choice)}{_per_shape(choice)}")
    lines += [
        f"  {each.call.count} x {each.call.text}: {_label(each.choice.best)}"
        for each in choice.calls
    ]
    return [*lines, *missing_lines(choice)]


def _console(stream: TextIO) -> Console:
    # a pipe has no width: this one holds the longest row, so that nothing is cut
    width = None if stream.isatty() else 220
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def _print_prices(console: Console, choice: Choice) -> None:
    best = choice.best
    lines = [f"  {_label(best)} {caveat}" for caveat in caveats(choice)]
    lines += [
        f"  {candidate.label}: {price_text(candidate, choice)}"
        for candidate in choice.candidates
        if candidate is not best
    ]
    lines += [f"  {text}" for text in beyond_text(choice)]
    for line in [f"{choice.scenario.text}:", *lines] if lines else []:
        console.print(line, soft_wrap=True)


def _numbers(best: Candidate | None) -> tuple[str, str, str]:
    """Return time, error and memory of the best candidate, on the inputs that were timed."""
    if best is None or not best.timed:
        return _DASH, _DASH, _DASH
    record = best.timed[0]
    time = _DASH if record.latency is None else _interval(record.latency.per_call_s)
    error = _DASH if record.worst_ulp is None else ulp_text(record.worst_ulp)
    memory = "not counted" if record.memory_not_counted else _DASH
    if best.peak_bytes is not None:
        memory = bytes_text(best.peak_bytes)
    return time, error, memory


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return _DASH
    low, high = seconds_text(estimate.low), seconds_text(estimate.high)
    return f"{seconds_text(estimate.value)} [{low}, {high}]"


def _per_shape(choice: WorkloadChoice) -> str:
    """Return the time of a choice per shape, and what it saves."""
    if choice.per_shape_s is None:
        return ""
    total = f"; {_interval(choice.per_shape_s)} in all"
    if choice.saving is None or not choice.saving.is_certain:
        return total
    return f", {seconds_text(choice.saving.saved_s.value)}{total}"

"""What a person sees of a choice: a table of answers, under it the price of each alternative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table

from harness.records import Estimate
from harness.records.text import bytes_text, seconds_text
from harness.selection.choose import Choice, Choices
from harness.selection.eligibility import error_ulp
from harness.selection.ranking import Candidate
from harness.selection.text import answer_words, caveats, price, ulp
from harness.selection.whole import Whole
from harness.selection.words_of_whole import (
    gain_words,
    missing_lines,
    price_in_whole,
    whole_reason,
)

__all__ = ["print_choices", "print_wholes"]

_MOST_PRICED = 30  # ours: two screenfuls; --format json has all
_WRAPPED = {"for", "because"}  # columns of several words
_LEAST_WRAPPED = 24  # ours: characters of such a column below which it is a ladder of words


def print_choices(choices: Choices, stream: TextIO) -> None:
    """Print the answer to each scenario, then what the alternatives cost."""
    console = _console(stream)
    places = {each.scenario.environment for each in choices.choices}
    rows = [_row(each, with_place=len(places) > 1) for each in choices.choices]
    if rows and _least_width(rows) <= console.width:
        console.print(_table(rows))
    else:
        for row in rows:
            _print_below_each_other(console, row)
    for each in choices.choices[:_MOST_PRICED]:
        _print_prices(console, each)
    if len(choices.choices) > _MOST_PRICED:
        left = len(choices.choices) - _MOST_PRICED
        console.print(f"prices of {left} more: narrow it down, or --format json", soft_wrap=True)
    if choices.untimed:
        names = ", ".join(each.words for each in choices.untimed[:3])
        rest = f" and {len(choices.untimed) - 3} more" if len(choices.untimed) > 3 else ""
        console.print(f"measured for errors alone: {names}{rest}", soft_wrap=True)


def _row(choice: Choice, *, with_place: bool) -> dict[str, str]:
    """The answer to one scenario, by heading."""
    best = choice.best
    time, error, memory = _figures(best)
    return {
        **({"environment": choice.scenario.environment} if with_place else {}),
        "for": choice.scenario.words,
        "run": "none" if best is None else best.label,
        "time": time,
        "error": error,
        "memory": memory,
        "because": answer_words(choice),
    }


def _table(rows: Sequence[dict[str, str]]) -> Table:
    columns = (Column(name, no_wrap=name not in _WRAPPED) for name in rows[0])
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row.values(), style=_style(row))
    return table


def _least_width(rows: Sequence[dict[str, str]]) -> int:
    """Characters that the table needs if no word of it is to be cut."""
    least = 0
    for name in rows[0]:
        longest = max(len(row[name]) for row in rows)
        least += 2 + (min(longest, _LEAST_WRAPPED) if name in _WRAPPED else longest)
    return least


def _print_below_each_other(console: Console, row: dict[str, str]) -> None:
    """Print an answer that has no room in one line."""
    head = f"{row['for']}: {row['run']}"
    place = [f"environment {row['environment']}"] if "environment" in row else []
    figures = [f"{name} {row[name]}" for name in ("time", "error", "memory")]
    console.print(head, style=_style(row))
    for each in (*place, ", ".join(figures), row["because"]):
        console.print(Padding(each, (0, 0, 0, 2)), style=_style(row))


def _style(row: dict[str, str]) -> str:
    return "yellow" if row["run"] == "none" else ""


def print_wholes(wholes: Sequence[Whole], stream: TextIO) -> None:
    """Print the choice for a workload on each device, and what one for each shape would add."""
    console = _console(stream)
    for whole in wholes:
        best = whole.best
        name = "none" if best is None else best.label
        where = f"{whole.device}, environment {whole.environment}"
        console.print(f"for all on {where}: {name}: {whole_reason(whole)}", soft_wrap=True)
        if best is not None:
            console.print(f"  takes {_interval(best.cost)} in all", soft_wrap=True)
        for each in whole.candidates:
            if each is not best:
                console.print(f"  {each.label} {price_in_whole(each, whole)}", soft_wrap=True)
        console.print(f"a choice for each shape {gain_words(whole)}{_saved(whole)}", soft_wrap=True)
        for load in whole.loads:
            own = load.choice.best
            chosen = "none" if own is None else own.label
            console.print(f"  {load.call.count} x {load.call.words}: {chosen}", soft_wrap=True)
        for line in missing_lines(whole):
            console.print(line, soft_wrap=True)


def _console(stream: TextIO) -> Console:
    # a pipe has no width: as wide as the longest row, so that nothing is cut
    width = None if stream.isatty() else 220
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def _print_prices(console: Console, choice: Choice) -> None:
    others = [each for each in choice.candidates if each is not choice.best]
    told = list(caveats(choice))
    if not others and not told:
        return
    console.print(f"{choice.scenario.words}:", soft_wrap=True)
    if choice.best is not None:
        for line in told:
            console.print(f"  {choice.best.label}: {line}", soft_wrap=True)
    for each in others:
        console.print(f"  {each.label} {price(each, choice)}", soft_wrap=True)


def _figures(best: Candidate | None) -> tuple[str, str, str]:
    """Time, error and memory of the chosen one, on the inputs that were timed."""
    dash = "-"
    if best is None or not best.timed:
        return dash, dash, dash
    record = best.timed[0]
    time = dash if record.latency is None else _interval(record.latency.per_call_s)
    memory = dash if best.peak_bytes is None else bytes_text(best.peak_bytes)
    return time, ulp(error_ulp(record)), memory


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{seconds_text(estimate.value)} [{seconds_text(estimate.low)}, {seconds_text(estimate.high)}]"


def _saved(whole: Whole) -> str:
    """The time of a choice for each shape, and what it saves."""
    if whole.dispatch_s is None:
        return ""
    total = f"; {_interval(whole.dispatch_s)} in all"
    if whole.gain is None or not whole.gain.is_certain:
        return total
    return f", {seconds_text(whole.gain.saved_s.value)}{total}"

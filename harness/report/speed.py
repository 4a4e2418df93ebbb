"""Which implementation to run, how fast each one is, and what a call costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isnan, log2
from typing import Any

import numpy as np
import pandas as pd

from harness.records import Estimate, Mode, Status
from harness.records.text import (
    bytes_text,
    count,
    first_of,
    grouped,
    in_words,
    listed,
    percent_text,
    seconds_text,
    speed_text,
)
from harness.report.choice import fault_text, pace_text, run_text, scenario_row, unbounded_text
from harness.report.document import (
    DASH,
    SYMBOLS,
    SYMBOLS_TEXT,
    Block,
    Cell,
    FigureBlock,
    Panel,
    Table,
    Text,
    columns,
    first_open,
    name_of,
    number,
)
from harness.report.figures import LIMIT_LOG2, latency_figure, speed_map
from harness.report.frame import PageData, groups, leading, tables_by_device, worst
from harness.selection import NATIVE, REFERENCE_NAME, Answer, Candidate, Choice, Slice, cost_of

__all__ = [
    "latency_against_size",
    "memory",
    "speed_relative_to_native",
    "which_implementation_to_run",
]

_MOST_FASTER = 3  # trade-off: a longer list hides the answer of its row
_MOST_SCENARIOS = 100  # trade-off: 50 kB of the page; `choose` prints every scenario
_MOST_OPEN = 12  # trade-off: a longer table is folded, and has no line for the other candidates
_SPEED = (
    f"Speed is relative to {REFERENCE_NAME}, run eagerly and timed in turn: 2.00x takes half the "
    "time."
)
_REFERENCE = Estimate(value=1.0, low=1.0, high=1.0)  # the cost of native, if costs are ratios to it
Row = tuple[Cell, ...]


def which_implementation_to_run(data: PageData) -> Iterator[Block]:
    """Return the answer for each device, dtype and direction, then for each shape."""
    answers = data.answers
    if not any(answer.choices for answer in answers):
        yield Text(
            f"No time relative to {REFERENCE_NAME} was measured, so no implementation can be "
            "chosen. The sections below show the errors."
        )
        return
    several = len(data.environments) > 1
    parts = answers[-1].overall
    overall = _answer_table(
        answers,
        [[_overall_row(part, one, several=several) for one in answers] for part in parts],
        name="choice",
        title="The fastest eligible implementation for each device, dtype and direction",
        caption=f"{_SPEED} It is the geometric mean over all shapes. “Fastest or tied in”: no "
        "other eligible candidate is faster beyond the intervals. The last column has the "
        "number of shapes in which a disqualified candidate takes less time.",
        columns=columns(
            "Device", "dtype", "Direction", "Run", "Speed#", f"{REFERENCE_NAME} takes#",
            "Fastest or tied in#", "Faster, but disqualified",
        ),
    )  # fmt: skip
    if overall.rows:
        yield overall
    scenarios = list(zip(*(answer.choices for answer in answers), strict=True))
    is_short = len(scenarios) <= _MOST_OPEN
    rows = [
        [scenario_row(one, several=several, is_priced=is_short) for one in choices]
        for choices in scenarios[:_MOST_SCENARIOS]
    ]
    left = len(scenarios) - len(rows)
    more = f" {left:,} more are printed by `layernorm-bench choose`." if left else ""
    yield _answer_table(
        answers,
        rows,
        name="choice-per-shape",
        title="The same for each shape",
        caption=f"{_SPEED} Each row is decided by its own times, so that it can differ from the "
        f"table above.{more}",
        columns=columns("For", "Run", "Speed#", "Time#", "Error#", "Memory#", "Because"),
        is_folded=not is_short,
    )


def _answer_table(answers: Sequence[Answer], rows: Iterable[Sequence[Row]], **others: Any) -> Table:
    """Return a table of the different rows, each with the requirements that it answers.

    Args:
        answers: one for each requirement.
        rows: for each line of the table, the row under each requirement.
        others: of the table.
    """
    shown: list[tuple[Row, tuple[int, ...]]] = []
    for own in rows:
        needs = grouped((row, index) for index, row in enumerate(own))
        # a row that answers all of them has none
        shown += [(row, tuple(found) if len(needs) > 1 else ()) for row, found in needs.items()]
    return Table(
        rows=tuple(row for row, _ in shown),
        row_needs=tuple(needs for _, needs in shown),
        default_need=next(index for index, answer in enumerate(answers) if answer.is_default),
        **others,
    )


def _overall_row(part: Slice, answer: Answer, *, several: bool) -> Row:
    choice = answer.overall[part]
    best, native = choice.ranking.best, choice.candidate(NATIVE)
    own = [one for one in answer.choices if Slice.of(one.scenario) == part]
    times = [one.latency.per_call_s.value for one in native.timed if one.latency] if native else []
    span = dict.fromkeys(map(seconds_text, (min(times), max(times)))) if times else (DASH,)
    faster = [
        f"{candidate.label} in {faster_in} of {len(own)}: {fault_text(candidate.disqualification)}"
        for candidate in choice.candidates
        if candidate.disqualification is not None
        and (faster_in := _faster_in(candidate, best, own))
    ]
    left = len(faster) - _MOST_FASTER
    more = [f"and {left:,} more"] if left > 0 else []
    run = Cell("none is eligible")
    if best is not None:
        ties = ", ".join(candidate.label for candidate, _ in choice.ranking.tied)
        notes = [ties and f"its interval overlaps those of {ties}", unbounded_text(best)]
        name = run_text(best).removeprefix("run ")
        run = Cell(name, is_strong=True, note="\n".join(filter(None, notes)))
    return (
        Cell(f"{part.device}, environment {part.environment}" if several else part.device),
        Cell(part.dtype),
        Cell(str(part.direction)),
        run,
        number(pace_text(best, _REFERENCE)),
        number(" to ".join(span)),
        number(f"{choice.fastest_in} of {len(best.timed)}" if best else DASH),
        Cell("\n".join([*faster[:_MOST_FASTER], *more]) or "none", is_long=True),
    )


def _faster_in(candidate: Candidate, best: Candidate | None, choices: Iterable[Choice]) -> int:
    """Return in how many scenarios a candidate takes less time than the best; of none, in all."""
    return sum(
        cost_of(one.candidate(candidate.name)) < cost_of(best and one.candidate(best.name))
        for one in choices
    )


# --- latency against size ------------------------------------------------------------------------


def latency_against_size(data: PageData) -> Iterator[Block]:
    """Show the time of a call by the size of its input."""
    timed = data.cases[(data.cases["latency_s"] > 0) & (data.cases["elements"] > 0)]
    figures = first_open(
        _latency_block(data, device, direction, group)
        for (direction, device), group in groups(timed, "direction", "device")
    )
    if not figures:
        yield Text("No latency was measured.")
        return
    right = timed[timed["status"] == Status.OK]
    keys = ["device", "dtype", "direction", "distribution", "setting", "shape"]
    at = right.groupby(keys, observed=True)["latency_s"].idxmin()
    fastest = right.loc[at, "label"].astype(str).value_counts()
    names = first_of(f"{label} in {number:,}" for label, number in fastest.items())
    sets = count(len(at), "combination")
    text = f"Of {sets} of shape, dtype and direction, the fastest right one is {names}. "
    yield Text(f"{text}{_certainty('time', timed['latency_s'], timed['latency_high_s'])}")
    yield from figures


def _certainty(what: str, values: pd.Series, highs: pd.Series) -> str:
    """Return how wide the intervals of this quantity of the timed cases are."""
    width = highs / values - 1
    half, most = (percent_text(share) for share in width.quantile([0.5, 0.9]))
    return (
        f"Of {count(len(width), 'timed case')} {(width >= 0.01).sum():,} have an interval of the "
        f"{what} wider than ±1 %; half of the intervals are within ±{half}, nine tenths within "
        f"±{most}."
    )


def _latency_block(data: PageData, device: str, direction: str, rows: pd.DataFrame) -> FigureBlock:
    drawn = {
        dtype: leading(own, ["distribution", "setting"]) for (dtype,), own in groups(rows, "dtype")
    }
    others = len(rows) - sum(map(len, drawn.values()))
    implementations = tuple(data.cases["implementation"].unique())  # in the order of colours
    return FigureBlock(
        title=f"Latency against size: {device}, {direction}",
        caption=_latency_caption(data, rows, others),
        panels=tuple(
            panel
            for dtype, own in drawn.items()
            for panel in _latency_panels(own, (device, direction, dtype), implementations)
        ),
    )


def _latency_panels(
    rows: pd.DataFrame, where: tuple[str, ...], implementations: tuple[str, ...]
) -> Iterator[Panel]:
    """Yield a panel of the warm times, and one of the cold times if there are any."""
    columns = {
        "": ["latency_s", "latency_low_s", "latency_high_s", "copy_ratio"],
        "cold": ["cold_s", "cold_low_s", "cold_high_s", "cold_copy_ratio"],
    }
    for state, own in columns.items():
        drawn = zip(["time_s", "low_s", "high_s", "copy_ratio"], own, strict=True)
        times = rows.assign(**{name: rows[column] for name, column in drawn})
        times = times[times["time_s"] > 0]
        if not len(times):
            continue
        # the slowest of cases of equal size: a line has one value at each size
        times = times.sort_values("time_s", ascending=False, kind="stable")
        times = times.drop_duplicates(["implementation", "mode", "elements"]).sort_index()
        words = ", ".join(filter(None, [*where, f"{state} calls" if state else ""]))
        title = words.removeprefix(f"{where[0]}, {where[1]}, ")
        draw = partial(latency_figure, title=title, rows=times, implementations=implementations)
        yield Panel(name_of("latency", *where, state), f"Latency against size: {words}", draw)


def _latency_caption(data: PageData, group: pd.DataFrame, others: int) -> str:
    """Return how these times were measured."""
    ways = dict.fromkeys(
        f"{latency.clock} clock, {latency.cache} caches, {latency.allocation} allocation, "
        f"{count(latency.processes, 'process', 'processes')}"
        for row in group.index
        if (latency := data.records[row].latency)
    )
    thin = " Thin: compiled." if (group["mode"] == Mode.COMPILED).any() else ""
    left_out = f" {count(others, 'case')} with other inputs are in the table." if others else ""
    return (
        f"Median over epochs of the epoch's 10 % quantile: {in_words('; or '.join(ways))}. The "
        "dotted line is a copy of the same bytes. Each implementation is timed in turn with a copy "
        "of its own, and the line is their median, so a point may lie below it. The share of its "
        "copy's speed that is reached at the largest size is written beside each name. The band, "
        f"where it is wider than its line, is the 95 % interval.{thin} Of two shapes of equal size "
        f"the slower is shown.{left_out}"
    )


# --- tables of implementations by shapes ---------------------------------------------------------


def speed_relative_to_native(data: PageData) -> Iterator[Block]:
    """Show implementations by shapes: above 1 is faster than native."""
    timed = data.cases[data.cases["ratio"].notna()]
    if not len(timed):
        yield Text(f"No time relative to {REFERENCE_NAME} was measured.")
        return
    cold = "Cold: of calls whose inputs are not in the cache. " if timed["cold_s"].any() else ""
    caption = (
        "Timed in turn with native, run eagerly. 2.00x is twice as fast, 0.50x half as fast: blue "
        f"is faster, orange slower. {SYMBOLS_TEXT} A dash: not timed. Second "
        "line: the speed as a share of that of a copy of the same bytes, timed in turn, too; at "
        f"100 % a call is limited by memory bandwidth only. {cold}A cell of several cases shows "
        "geometric means."
    )
    numbers = ["ratio", "copy_ratio", "cold_s", "cold_copy_ratio"]
    by = ["device", "direction", "dtype", "label", "shape", "elements"]
    cells = timed[numbers].apply(np.log)
    means = cells.groupby([timed[name] for name in by], observed=True, sort=False).mean()
    statuses = worst(timed, by, "error_ulp").set_index(by)["status"]
    speeds = means.apply(np.exp).assign(status=statuses).reset_index()
    speeds["speed"] = 1 / speeds["ratio"]
    speeds["text"] = [
        f"{speed_text(speed)} {SYMBOLS.get(status, '')}".rstrip()
        for speed, status in zip(speeds["speed"], speeds["status"], strict=True)
    ]

    def cell(row: Any) -> Cell:
        notes = [
            "" if isnan(row.copy_ratio) else f"{row.copy_ratio:.0%}",
            "" if isnan(row.cold_s) else f"cold {seconds_text(row.cold_s)}",
            "" if isnan(row.cold_copy_ratio) else f"{row.cold_copy_ratio:.0%}",
        ]
        return Cell(
            row.text,
            is_number=True,
            heat=round(max(-1.0, min(1.0, log2(row.speed) / LIMIT_LOG2)), 2),
            note=", ".join(filter(None, notes)),
        )

    title = f"Speed relative to {REFERENCE_NAME}"
    text = _certainty("speed", timed["ratio"], timed["ratio_high"])
    others = timed.assign(speed=1 / timed["ratio"])[timed["label"] != REFERENCE_NAME]
    if len(others):
        fastest = others.groupby("label", observed=True)["speed"].agg(geomean).idxmax()
        counts = (
            f"{_faster_cases(own)} {direction} cases"
            for (direction,), own in groups(others[others["label"] == fastest], "direction")
        )
        ahead = f"{fastest}, the fastest on average, is faster than {REFERENCE_NAME} in "
        yield Text(f"{ahead}{listed(counts)}. {text}")
        more = ("Faster than native in#", _faster_cases)
        yield _summary(others, "speed", "speed-summary", f"{title}: all shapes", more)
    else:
        yield Text(text)
    tables = tables_by_device(speeds, "speed", title, caption, cell, draw=speed_map)
    yield from (replace(table, is_folded=True) for table in tables)


def _faster_cases(own: pd.DataFrame) -> str:
    return f"{(own['speed'] > 1).sum():,} of {len(own):,}"


def geomean(values: pd.Series) -> float:
    """Return the geometric mean of positive numbers."""
    return float(np.exp(np.log(values).mean()))


def _summary(
    rows: pd.DataFrame,
    column: str,
    name: str,
    title: str,
    more: tuple[str, Callable[[pd.DataFrame], str]],
) -> Table:
    """Return the least, the mean and the most of a ratio for each implementation, and ``more``."""
    heads = ("Implementation", "dtype", "Direction", "Least#", "Geometric mean#", "Most#")
    ends, (head, write) = (pd.Series.min, geomean, pd.Series.max), more
    table_rows = tuple(
        (
            *map(Cell, (label, dtype, f"{device} {direction}")),
            *(number(speed_text(end(own[column]))) for end in ends),
            number(write(own)),
        )
        for (device, direction, dtype, label), own in groups(
            rows, "device", "direction", "dtype", "label"
        )
    )
    return Table(name=name, title=title, columns=columns(*heads, head), rows=table_rows)


def memory(data: PageData) -> Iterator[Block]:
    """Show the peak memory of a call, the memory saved for the backward, and operators."""
    cases = data.cases
    is_known = cases["peak_bytes"].notna() | (cases["memory_not_counted"] != "")
    caption = (
        "Peak memory beyond the inputs, as a multiple of the size of the results, which any "
        "implementation must allocate. Second line: the memory saved for the backward beyond "
        "inputs and y, in all and per row, and how many operators an eager call runs, not counting "
        "those that PyTorch's own operators call."
    )
    most = cases[is_known].sort_values("peak_bytes", ascending=False, kind="stable")
    known = most.drop_duplicates(["device", "direction", "dtype", "label", "shape"])
    tables = tables_by_device(known, "memory", "Peak memory of a call", caption, _memory_cell)
    if not tables:
        yield Text("No memory was measured.")
        return
    counted = cases[cases["peak_ratio"] > 0]
    means = counted.groupby("label", observed=True)["peak_ratio"].agg(geomean).sort_values()
    names = first_of((f"{label} {speed_text(mean)}" for label, mean in means.items()), 4)
    yield Text(f"Relative to the size of its results a call takes, on average: {names}.")
    title = "Peak memory of a call over the size of its results: all shapes"
    more = ("Most kept for a backward, per row#", _most_saved)
    yield _summary(counted, "peak_ratio", "memory-summary", title, more)
    yield from (replace(table, is_folded=True) for table in tables)


def _most_saved(own: pd.DataFrame) -> str:
    most = (own["saved_bytes"] / own["rows"]).max()
    return DASH if isnan(most) else bytes_text(most)


def _memory_cell(row: Any) -> Cell:
    if isnan(row.peak_bytes):
        return number("not counted", title=row.memory_not_counted)
    notes = []
    if not isnan(row.saved_bytes):
        per_row = f" ({bytes_text(row.saved_bytes / row.rows)} per row)" if row.rows else ""
        notes.append(f"saves {bytes_text(row.saved_bytes)}{per_row}")
    if not isnan(row.operators) and row.mode != Mode.COMPILED:  # which cannot be counted
        notes.append(count(int(row.operators), "operator"))
    peak = bytes_text(row.peak_bytes)
    # a case without elements has no results
    text = speed_text(row.peak_ratio) if row.peak_ratio > 0 else peak
    return number(text, note=", ".join(notes), title=peak)

"""Which implementation to run, and how fast each one is.

A row of an answer belongs to one or several of the requirements that the reader can switch between;
rows that are equal under several requirements are written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log2
from typing import Any

import numpy as np
import pandas as pd

from harness.numerics.bound_terms import SIGNIFICAND_BITS
from harness.records import Clock, Direction, Estimate, Latency, Status
from harness.records.text import as_speed, count, seconds_text, shape_text, speed_text
from harness.report.choice import fault_text, requirement_text
from harness.report.document import (
    DASH,
    Block,
    Cell,
    Column,
    FigureBlock,
    LeftOut,
    LegendEntry,
    Panel,
    Table,
    Text,
    columns,
    name_of,
    number,
)
from harness.report.figures import LIMIT_LOG2, latency_figure, pareto_figure, speed_map, speed_word
from harness.report.figures.theme import DASHES, ON_PAGE, series_variable
from harness.report.frame import PageData, combinations, groups, leading
from harness.selection import (
    NATIVE,
    REFERENCE_NAME,
    Answer,
    Candidate,
    Choice,
    Decider,
    OverallChoice,
    Ranking,
    cost_of,
    largest_required,
)

__all__ = [
    "accuracy_against_speed",
    "latency_against_size",
    "speed_relative_to_native",
    "which_implementation_to_run",
]

_MOST_FASTER = 3  # trade-off: a longer list hides the answer of its row
_MOST_SCENARIOS = 100  # trade-off: 50 kB of the page; `choose` prints every scenario
_MOST_OPEN = 12  # trade-off: a longer table is folded, so that the figures below are seen
_SPEED = (
    f"Speed is relative to {REFERENCE_NAME}, run eagerly and timed in turn: 2.00x takes half the "
    "time."
)
Row = tuple[Cell, ...]


def which_implementation_to_run(data: PageData) -> tuple[Block, ...]:
    """Return the answer for each device, dtype and direction, then for each shape."""
    answers = data.answers
    if not any(answer.choices for answer in answers):
        return (
            Text(
                f"No time relative to {REFERENCE_NAME} was measured, so no implementation can be "
                "chosen. The sections below show the errors."
            ),
        )
    device_of = {
        (record.environment, record.case.device): str(device)
        for record, device in zip(data.records, data.cases["device"], strict=True)
    }
    wheres = sorted(answers[-1].overall, key=lambda where: _order(device_of, where))
    overall = _answer_table(
        answers,
        [[_overall_row(answers, one, where, device_of) for one in answers] for where in wheres],
        name="choice",
        title="The fastest eligible implementation for each device, dtype and direction",
        caption=f"{_SPEED} It is the geometric mean over all shapes. “Fastest or tied in”: no "
        "other eligible candidate is faster beyond the intervals.",
        columns=columns(
            "Device", "dtype", "Direction", "Run", "Speed#", f"{REFERENCE_NAME} takes#",
            "Fastest or tied in#", "The others",
        ),
    )  # fmt: skip
    scenarios = list(zip(*(answer.choices for answer in answers), strict=True))
    cut = (
        f" These are the first {_MOST_SCENARIOS} of {len(scenarios):,} scenarios; `layernorm-bench "
        "choose` prints all."
        if len(scenarios) > _MOST_SCENARIOS
        else ""
    )
    each_shape = _answer_table(
        answers,
        [[_scenario_row(one, device_of) for one in own] for own in scenarios[:_MOST_SCENARIOS]],
        name="choice-per-shape",
        title="The same for each shape",
        caption=f"{_SPEED} Each row is decided by its own times, so that it can differ from the "
        f"table above.{cut}",
        columns=columns(
            "Shape", "dtype", "Direction", "Run", "Speed#", f"{REFERENCE_NAME} takes#", "Device",
            "The others",
        ),
        is_folded=len(scenarios) > _MOST_OPEN,
    )  # fmt: skip
    return (*([overall] if wheres else []), each_shape)


def _answer_table(answers: Sequence[Answer], rows: Iterable[Sequence[Row]], **others: Any) -> Table:
    """Return a table of the different rows, each with the requirements that it answers.

    Args:
        answers: one for each requirement.
        rows: for each line of the table, the row under each requirement.
        others: of the table.
    """
    shown: list[tuple[Row, tuple[int, ...]]] = []
    for own in rows:
        needs: dict[Row, list[int]] = {}
        for index, row in enumerate(own):
            needs.setdefault(row, []).append(index)
        # a row that answers all of them has none
        shown += [(row, tuple(found) if len(needs) > 1 else ()) for row, found in needs.items()]
    return Table(
        rows=tuple(row for row, _ in shown),
        row_needs=tuple(needs for _, needs in shown),
        default_need=next(index for index, answer in enumerate(answers) if answer.is_default),
        **others,
    )


def _order(device_of: dict[tuple[str, str], str], where: Any) -> tuple[object, ...]:
    dtypes = list(SIGNIFICAND_BITS)
    dtype = dtypes.index(where.dtype) if where.dtype in dtypes else len(dtypes)
    return device_of[where.environment, where.device], dtype, list(Direction).index(where.direction)


def _overall_row(
    answers: Sequence[Answer], answer: Answer, where: Any, device_of: dict[tuple[str, str], str]
) -> Row:
    choice, best = answer.overall[where], answer.overall[where].ranking.best
    native = choice.candidate(NATIVE)
    times = [one.latency.per_call_s.value for one in native.timed if one.latency] if native else []
    span = (
        " to ".join(dict.fromkeys(map(seconds_text, (min(times), max(times))))) if times else DASH
    )
    cost = best.widened_cost if best else None
    run, speed, others = _answer(
        choice, answers[-1].overall[where], cost and as_speed(cost), native_s=1.0
    )
    return (
        Cell(device_of[where.environment, where.device]),
        Cell(where.dtype),
        Cell(str(where.direction)),
        run,
        speed,
        number(span),
        number(f"{choice.fastest_in} of {len(best.timed)}" if best else DASH),
        others,
    )


def _scenario_row(choice: Choice, device_of: dict[tuple[str, str], str]) -> Row:
    scenario, case, native_s = choice.scenario, choice.scenario.case, choice.native_s
    run, speed, others = _answer(
        choice,
        choice.any_condition or choice,
        choice.speed(choice.best) if choice.best else None,
        native_s=native_s.value if native_s else 1.0,
    )
    return (
        Cell(" ".join([shape_text(case.shape), *scenario.settings])),
        Cell(case.dtype),
        Cell(str(case.direction)),
        run,
        speed,
        number(seconds_text(native_s.value) if native_s else DASH),
        Cell(device_of[scenario.environment, case.device]),
        others,
    )


def _answer(
    choice: Choice | OverallChoice,
    unlimited: Choice | OverallChoice,
    speed: Estimate | None,
    native_s: float,
) -> tuple[Cell, Cell, Cell]:
    """Return what to run, its speed, and a line for each of the others worth naming.

    Args:
        choice: under one requirement.
        unlimited: for inputs of any condition number.
        speed: of the choice.
        native_s: time of native, in the unit of the candidates' costs.
    """
    best = choice.ranking.best
    reach = {
        candidate.name: fault_text(candidate.disqualification)
        for candidate in unlimited.candidates
        if candidate.disqualification is not None
    }
    others = Cell("\n".join(_others(choice, reach, native_s)) or "there is no other", is_long=True)
    if best is None:
        return Cell("none is eligible"), number(DASH), others
    notes = list(_qualifications(best, choice.ranking))
    if limit := reach.get(best.name):
        of_any = unlimited.ranking.best
        notes += [limit, *([f"for all inputs: {of_any.label}"] if of_any else [])]
    keep = "keep " if best.name == NATIVE else ""
    run = Cell(f"{keep}{best.label}", is_strong=True, note="\n".join(notes))
    if keep:
        return run, number(speed_text(1.0)), others
    if speed is None:
        return run, number(DASH), others
    note = f"{speed_text(speed.low)} to {speed_text(speed.high)}"
    return run, number(speed_text(speed.value), note=note), others


def _others(
    choice: Choice | OverallChoice, reach: dict[Any, str], native_s: float
) -> Iterator[str]:
    """Yield a line for native, for the next eligible one, and for those that are faster."""
    best = choice.ranking.best
    rivals = [one for one in choice.ranking.eligible if one is not best and one.name != NATIVE]
    faster = [
        candidate
        for candidate in choice.candidates
        if candidate.disqualification is not None
        and candidate.name != NATIVE
        and (best is None or cost_of(candidate) < cost_of(best))
    ]
    native = [one for one in choice.candidates if one.name == NATIVE and one is not best]
    for candidate in (*native, *rivals[:1], *faster[:_MOST_FASTER]):
        name = candidate.label
        if candidate.name == NATIVE:
            name += f" {speed_text(1.0)}"
        elif candidate.cost is not None:
            name += f" {speed_text(native_s / candidate.cost.value)}"
        if candidate.disqualification is None:
            yield ", ".join(filter(None, [name, reach.get(candidate.name)]))
        else:
            but = "faster, but " if best is not None and cost_of(candidate) < cost_of(best) else ""
            yield f"{name}: {but}{fault_text(candidate.disqualification)}"
    if (left := len(faster) - _MOST_FASTER) > 0:
        yield f"and {left:,} more are faster and disqualified"


def _qualifications(best: Candidate, ranking: Ranking) -> Iterator[str]:
    wide = [candidate.label for candidate, by in ranking.tied if by is Decider.ESTIMATE]
    ties = [candidate.label for candidate, by in ranking.tied if by is not Decider.ESTIMATE]
    if ties:
        yield f"tie with {', '.join(ties)}"
    if wide:
        yield f"by its estimate: intervals are too wide to tell it from {', '.join(wide)}"
    unbounded = sum(record.status is Status.OUT_OF_GUARANTEE for record in best.evidence)
    if unbounded:
        yield f"out of guarantee, as all are, in {count(unbounded, 'case')}"


# --- latency against size ------------------------------------------------------------------------

_MOST_DRAWN = 8
"""Drawings of a section, of its first group at least. A trade-off: each takes 20 kB and 60 ms."""
_MOST_ENTRIES = 60  # of a legend: twelve colours and five dashes make as many different lines
_CLOCKS = {
    Clock.THREAD_CPU.value: "the calling thread's CPU time",
    Clock.PROCESS_CPU.value: "the CPU time of all threads",
    Clock.WALL.value: "the wall clock",
    Clock.CUDA_EVENT.value: "CUDA events",
}


def latency_against_size(data: PageData) -> tuple[Block, ...]:
    """Show the time of a call by the size of its input."""
    timed = data.cases[(data.cases["latency_s"] > 0) & (data.cases["elements"] > 0)]
    if not len(timed):
        return (Text("No latency was measured."),)
    figures = []
    for (direction, device), group in groups(timed, "direction", "device"):
        panels: list[Panel] = []
        others = 0
        for (dtype,), rows in groups(group, "dtype"):
            drawn, rest = leading(rows, ["distribution", "setting"])
            others += rest
            where = {"device": str(device), "direction": str(direction), "dtype": str(dtype)}
            panels += _latency_panels(drawn, where, data.implementations)
        entries = _legend(group, data.implementations)
        if group["copy_ratio"].notna().any():
            entries += (LegendEntry("a copy of the same bytes", "var(--muted)", mark="┈"),)
        figure = FigureBlock(
            title=f"Latency against size: {device}, {direction}",
            caption=_latency_caption(data, group, others),
            panels=tuple(panels),
            legend=entries,
        )
        figures.append((device, figure))
    return _within_limit(figures)


def _within_limit(figures: Iterable[tuple[Any, FigureBlock]]) -> tuple[Block, ...]:
    """Return figures, the first of each key open, and links to the drawings that are left out."""
    kept: list[FigureBlock] = []
    keys: set[Any] = set()
    left: list[Panel] = []
    for key, figure in figures:
        if kept and sum(len(one.panels) for one in kept) + len(figure.panels) > _MOST_DRAWN:
            left += figure.panels
            continue
        kept.append(replace(figure, is_folded=key in keys))
        keys.add(key)
    return (*kept, *([LeftOut(tuple(left))] if left else []))


def _latency_panels(
    rows: pd.DataFrame, where: dict[str, str], implementations: tuple[str, ...]
) -> Iterator[Panel]:
    """Yield a panel of the warm times, and one of the cold times if there are any."""
    has_cold = rows["cold_s"].notna().any()
    drawn = ["time_s", "low_s", "high_s", "copy_ratio"]
    warm = ["latency_s", "latency_low_s", "latency_high_s", "copy_ratio"]
    cold = ["cold_s", "cold_low_s", "cold_high_s", "cold_copy_ratio"]
    for state, own in (("warm", warm), ("cold", cold)):
        times = rows.assign(**dict(zip(drawn, (rows[column] for column in own), strict=True)))
        times = times[times["time_s"] > 0]
        if not len(times):
            continue
        # the slowest of cases of equal size: a line has one value at each size
        times = times.sort_values("time_s", ascending=False, kind="stable")
        times = times.drop_duplicates(["implementation", "mode", "elements"]).sort_index()
        title = f"{where['dtype']}, {state} calls" if has_cold else where["dtype"]
        name = name_of("latency", *where.values(), "cold" if state == "cold" else "")
        draw = partial(latency_figure, title=title, rows=times, implementations=implementations)
        title = f"Latency against size: {where['device']}, {where['direction']}, {title}"
        yield Panel(name, title, draw, _view(where, x="elements", y=own[0]))


def _view(where: dict[str, str], *, x: str, y: str) -> tuple[tuple[str, str], ...]:
    """Return the view of all cases that draws two columns of a device, direction and dtype."""
    return tuple((where | {"x": x, "y": y, "colour": "implementation"}).items())


def _legend(rows: pd.DataFrame, implementations: tuple[str, ...]) -> tuple[LegendEntry, ...]:
    """Return the legend of a figure that shows ``rows``: one entry per implementation."""
    shown = set(rows["implementation"])
    entries = [
        LegendEntry(
            name,
            series_variable(index),
            series=f"series-{index % len(ON_PAGE.series)}",
            dashes=DASHES[index % len(DASHES)],
        )
        for index, name in enumerate(implementations)
        if name in shown
    ]
    if len(entries) > _MOST_ENTRIES:
        rest = LegendEntry(f"and {len(entries) - _MOST_ENTRIES:,} more", "var(--muted)", mark="…")
        entries = [*entries[:_MOST_ENTRIES], rest]
    if "compiled" in set(rows["mode"]):
        entries.append(LegendEntry("compiled", "var(--muted)", is_thin=True))
    return tuple(entries)


def _latency_caption(data: PageData, group: pd.DataFrame, others: int) -> str:
    """Return how these times were measured."""
    found = [data.records[row].latency for row in group.index]
    measured = [latency for latency in found if latency is not None]
    interval = (
        "within one process; another process may be outside it."
        if all(latency.processes == 1 for latency in measured)
        else "across the processes that were sampled."
    )
    rest = f" {count(others, 'case')} with other inputs or settings are only in the table."
    return (
        f"Median over epochs of the epoch's 10 % quantile, by {_listed(measured, 'clock')}; caches "
        f"{_listed(measured, 'cache')}, allocation {_listed(measured, 'allocation')}. The dotted "
        "line is a copy of the same bytes, the ceiling: no LayerNorm can be below it. The share of "
        "the copy's speed that is reached at the largest size is written beside each name. The "
        f"band, where it is wider than its line, is the 95 % interval {interval}"
        f"{rest if others else ''} Of two shapes of equal size the slower is shown."
    )


def _listed(latencies: list[Latency], field: str) -> str:
    values = dict.fromkeys(str(getattr(latency, field)) for latency in latencies)
    return " or ".join(_CLOCKS.get(value, value) for value in values)


# --- speed relative to native --------------------------------------------------------------------

_MAP_CAPTION = (
    "Timed in turn with native, run eagerly. 2.00 is twice as fast, 0.50 half as fast: blue is "
    "faster, orange slower. ✕: a result was not within its bound. A dash: not in the sweep, or not "
    "timed for a reason that is under “Not measured” or “Warnings”. A cell of several cases shows "
    "their geometric mean."
)


def speed_relative_to_native(data: PageData) -> tuple[Block, ...]:
    """Show a map of implementations and shapes for each dtype: above 1 is faster than native."""
    tables: list[Table] = []
    for (device, direction, dtype), rows in groups(data.cases, "device", "direction", "dtype"):
        if not rows["ratio"].notna().any():
            continue
        speeds, failed = _speed_tables(rows)
        title = f"{device}, {direction}, {dtype}"
        name = name_of("speed", str(device), str(direction), str(dtype))
        draw = partial(speed_map, title=title, speeds=speeds, failed=failed)
        table = Table(
            name=name,
            title=f"Speed relative to {REFERENCE_NAME}: {title}",
            caption=_MAP_CAPTION,
            columns=(Column("Implementation"), *columns(*(f"{shape}#" for shape in speeds))),
            rows=tuple(
                (Cell(str(label)), *map(_speed_cell, speeds.loc[label], failed.loc[label]))
                for label in speeds.index
            ),
            is_folded=bool(tables),
            drawings=(Panel(name, f"Speed relative to {REFERENCE_NAME}: {title}", draw),),
        )
        tables.append(table)
    return tuple(tables) or (Text(f"No time relative to {REFERENCE_NAME} was measured."),)


def _speed_cell(speed: Any, is_bad: Any) -> Cell:
    if np.isnan(speed):
        return number(DASH)
    heat = max(-1.0, min(1.0, log2(speed) / LIMIT_LOG2))
    return Cell(speed_word(speed, bool(is_bad)), is_number=True, heat=round(heat, 2))


def _speed_tables(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return implementations by shapes: how fast, and whether a result was not ok.

    An implementation that should have been timed and was not has a row of dashes; one that was
    measured for its errors only has no row.
    """
    timed = rows[rows["ratio"].notna()]
    measured = [status.value for status in Status if status.is_measured]
    shown = rows["ratio"].notna() | ~rows["status"].isin(measured) | (rows["warnings"] != "")
    labels = [str(label) for (label,) in combinations(rows[shown], "label")]
    by_cell = timed.assign(
        label=timed["label"].astype(str),
        log_speed=-np.log(timed["ratio"]),
        is_bad=timed["status"] != Status.OK,
    ).groupby(["label", "shape"], sort=False)
    shapes = list(timed.sort_values("elements", kind="stable")["shape"].unique())
    speeds = np.exp(by_cell["log_speed"].mean()).unstack("shape")
    failed = by_cell["is_bad"].max().unstack("shape", fill_value=False)
    return (
        speeds.reindex(index=labels, columns=shapes),
        failed.reindex(index=labels, columns=shapes, fill_value=False),
    )


# --- accuracy against speed ----------------------------------------------------------------------


def accuracy_against_speed(data: PageData) -> tuple[Block, ...]:
    """Show the error and the speed of every candidate, and which no other beats in both."""
    cases = data.cases
    caption = (
        "Right is faster, down is more accurate. Bold names: no other candidate is both faster and "
        "more accurate. Speed: geometric mean over the shapes in which most candidates were timed. "
        f"Error: the largest of any output, for {requirement_text(data.max_condition)}. ✕: a "
        "result was outside its bound. At the top: not finite."
    )
    figures = []
    for (direction, device), group in groups(cases, "direction", "device"):
        if direction == Direction.FORWARD_BACKWARD:
            continue  # its errors are those of the backward, and its time the sum
        panels = []
        for (dtype,), rows in groups(group, "dtype"):
            checked = rows[rows["condition"] <= largest_required(data.max_condition)]
            points = _points(rows[rows["ratio"].notna()], checked)
            if len(points) < 2:
                continue
            title = f"{dtype}, {direction}"
            where = {"device": str(device), "direction": str(direction), "dtype": str(dtype)}
            panels.append(
                Panel(
                    name_of("accuracy against speed", *where.values()),
                    f"Accuracy against speed: {device}, {title}",
                    partial(pareto_figure, title=title, rows=points),
                    _view(where, x="speed", y="error_ulp"),
                )
            )
        if panels:
            title = f"Accuracy against speed: {device}, {direction}"
            figures.append(("", FigureBlock(title=title, caption=caption, panels=tuple(panels))))
    return _within_limit(figures) or (Text("No two candidates were timed and checked."),)


def _points(timed: pd.DataFrame, checked: pd.DataFrame) -> pd.DataFrame:
    """Return speed and error of each candidate that was timed in as many cases as any other."""
    logarithms = -np.log(timed["ratio"])
    speeds = logarithms.groupby(timed["label"].astype(str), sort=False).agg(["mean", "size"])
    speeds = speeds[speeds["size"] == speeds["size"].max()]
    own = checked.assign(is_wrong=checked["status"] == Status.WRONG)[["error_ulp", "is_wrong"]]
    errors = own.groupby(checked["label"].astype(str), sort=False).max()
    points = speeds.join(errors, how="inner").dropna(subset="error_ulp")
    points = points.assign(speed=np.exp(points["mean"]), is_wrong=points["is_wrong"].astype(bool))
    shown: pd.DataFrame = points.rename_axis("label").reset_index()
    return shown

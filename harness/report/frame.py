"""The contents of results files as a frame: one row per case.

All numbers are from the records, or are quotients of two of them. None in a record is NaN in the
frame and a dash on the page. Each machine, software and revision has a letter, and is shown by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, isinf
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from harness.numerics import SIGNIFICAND_BITS
from harness.records import BAD_FIRST, Case, Direction, Environment, Mode, OutputErrors, Record, Run
from harness.records.metrics import metrics_in
from harness.records.text import in_words
from harness.regression import Comparison, History
from harness.report.document import DASH, Cell, Panel, Table, columns, first_open, name_of, number
from harness.selection import (
    DEFAULT_MAX_CONDITION,
    REFERENCE_NAME,
    Answer,
    answers_of,
    has_valid_time,
    label_of,
)
from harness.store import Results

__all__ = [
    "PageData",
    "gather",
    "groups",
    "is_exactly_zero",
    "leading",
    "tables_by_device",
    "worst",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """Everything that the page shows."""

    cases: pd.DataFrame
    """One row per record, in the order in which implementations are shown."""
    records: tuple[Record, ...]
    """The records themselves, in the order of the rows; their environments are letters."""
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    """By their letter on the page."""
    planned: int
    """Cases of the sweeps."""
    missing: int
    """Cases of the sweeps without a record."""
    repeated: int
    """Records that a later file replaces."""
    answers: tuple[Answer, ...]
    """What to run, for each condition number that may be required."""
    files: Sequence[str] = ()
    """The results files, as the page names them."""
    history: History | None = None
    """The folder that the runs are the latest of; None for single runs."""
    comparison: Comparison | None = None
    """Of the run with a baseline, if one was given."""


def gather(
    results: Sequence[Results], max_condition: float = DEFAULT_MAX_CONDITION, **others: Any
) -> PageData:
    """Combine several results.

    If two files hold a case of one environment and one revision, the later file counts. Cases of
    different ones are all kept; ``device`` tells them apart, and they are never drawn together.

    Args:
        results: what results files hold.
        max_condition: largest condition number that a choice has to serve.
        others: fields of the data that records do not hold: files, history, comparison.
    """
    letters: dict[object, str] = {}  # by environment and revision
    environments: dict[str, Environment] = {}
    kept: dict[tuple[str, str], Record] = {}
    missing = 0
    for result in results:
        own: dict[str, str] = {}  # the letters of the file's environments
        names = [*result.environments, *(record.environment for record in result.records)]
        for name in dict.fromkeys(names):
            environment = result.environments.get(name)  # a file may lack that of a record
            revision = environment and (environment.git_commit, environment.git_dirty)
            number = len(letters)
            letter = f"{ascii_uppercase[number % 26]}{number // 26 or ''}"
            own[name] = letters.setdefault((name, revision), letter)
            if environment:
                environments[own[name]] = environment
        for record in result.records:
            letter = own[record.environment]
            kept[record.case.id, letter] = replace(record, environment=letter)
        # a resumed run plans the whole sweep again
        missing += max([0, *(run.planned - len(result.records) for run in result.runs)])
    # the reference first, and eager before compiled; else in the order of the run
    names = [REFERENCE_NAME, *(record.case.implementation for record in kept.values())]
    rank = {name: position for position, name in enumerate(dict.fromkeys(names))}
    records = sorted(
        kept.values(),
        key=lambda record: (rank[record.case.implementation], record.case.mode is not Mode.EAGER),
    )
    return PageData(
        cases=_frame_of(records),
        records=tuple(records),
        runs=tuple(run for result in results for run in result.runs),
        environments=environments,
        planned=len(kept) + missing,
        missing=missing,
        repeated=sum(len(result.records) for result in results) - len(kept),
        answers=answers_of(records, max_condition),
        **others,
    )


# --- the frame -----------------------------------------------------------------------------------


def _frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """Return the axes, the statuses and all metrics of records.

    Texts are Python's, since Arrow's are slow in groups of a few rows. The axes are categories, in
    the order in which the page shows them.
    """
    several = len({record.environment for record in records}) > 1
    rows = [_row(record, several=several) for record in records]
    numbers = (name for name, first in rows[0].items() if not isinstance(first, str))
    cases = pd.DataFrame(rows, dtype=object).astype(dict.fromkeys(numbers, float))
    is_reference = (cases["implementation"] == REFERENCE_NAME) & (cases["mode"] == Mode.EAGER)
    is_bare = is_reference & cases["latency_s"].notna() & cases["ratio"].isna()
    cases["ratio"] = cases["ratio"].mask(is_bare, 1.0)  # the ratio to itself, if timed alone
    orders = {
        "device": sorted(set(cases["device"])),
        "label": [],
        "mode": [mode.value for mode in Mode],
        "dtype": list(SIGNIFICAND_BITS),
        "direction": [direction.value for direction in Direction],
    }
    for name, first in orders.items():
        order = list(dict.fromkeys([*first, *cases[name]]))
        cases[name] = pd.Categorical(cases[name], categories=order, ordered=True)
    return cases


_AXES = ("implementation", "mode", "dtype", "direction", "distribution")  # of a case, as text


def _row(record: Record, *, several: bool) -> dict[str, Any]:
    """Return a row; its device has a letter if the records are of ``several`` environments."""
    case, errors = record.case, record.errors
    errors = errors if errors and errors.outputs else None
    row: dict[str, Any] = {name: str(getattr(case, name)) for name in _AXES} | {
        "device": f"{case.device}, environment {record.environment}" if several else case.device,
        "label": label_of((case.implementation, case.mode)),
        "shape": "×".join(map(str, case.shape)) or "scalar",
        "setting": _setting(case),
        "status": str(record.status),
        "reason": record.why,
        "warnings": ", ".join(dict.fromkeys(in_words(found.kind) for found in record.warnings)),
        "memory_not_counted": (not record.memory and record.memory_not_counted) or "",
        "error_output": errors.worst.output if errors else "",
        "algorithm": errors.algorithm if errors else "",
        "reduction": errors.reduction if errors else "",
        "statistics": errors.accumulate_dtype if errors else "",
        "elements": case.rows * case.hidden,
        "rows": case.rows,
        "hidden": case.hidden,
    }
    shown = replace(
        record,
        errors=errors,
        latency=record.latency if has_valid_time(record) else None,
        cold=record.cold if record.cold and record.cold.is_valid else None,
    )
    for metric in metrics_in("frame", "page"):
        row |= zip(metric.columns, metric.numbers(shown), strict=True)
    # beside an error in ulp that has no meaning
    row["error_abs"] = errors.worst.max_abs if errors and is_exactly_zero(errors.worst) else None
    return row


def _setting(case: Case) -> str:
    """Return the settings that have no column of their own."""
    columns = {str(case.mode), case.device, f"seed={case.seed}"}
    return " ".join(setting for setting in case.settings() if setting not in columns)


# --- parts of a frame: the rows of one figure, or of one row of a table ---------------------------

_SEVERITY = {status.value: -rank for rank, status in enumerate(BAD_FIRST)}


def is_exactly_zero(output: OutputErrors) -> bool:
    """Whether a row (for dweight, dbias: the whole) should be 0 and is not: ulp has no meaning."""
    return isinf(output.normwise_ratio) and isfinite(output.max_abs)


def groups(rows: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the rows for each combination of ``columns`` that occurs, in the order of display."""
    yield from rows.groupby(list(columns), observed=True)


def tables_by_device(
    rows: pd.DataFrame,
    name: str,
    title: str,
    caption: str,
    cell: Callable[[Any], Cell],
    *,
    across: str = "shape",
    order: Sequence[str] = (),
    draw: Callable[..., Any] | None = None,
) -> tuple[Table, ...]:
    """Return a table per device and direction, with a row per implementation and dtype.

    Args:
        rows: one for each cell.
        name: by which a table is exported, with the device and the direction.
        title: of the tables, as ``name``.
        caption: of each table.
        cell: makes a cell of a row.
        across: the column that makes a column.
        order: its values, in the order of display; empty for shapes, the smallest first.
        draw: makes a drawing of its rows and shapes, for export.
    """
    missing: Any = number(DASH)

    def table(device: str, direction: str, group: pd.DataFrame) -> Table:
        heads = list(order or group.sort_values("elements", kind="stable")[across].unique())
        words = f"{title}: {device}, {direction}"
        own = name_of(name, device, direction)
        made: Any = [cell(row) for row in group.itertuples()]
        cells = group.assign(cell=made).set_index(["dtype", "label", across])["cell"]
        filled = cells.unstack(fill_value=missing).reindex(columns=heads, fill_value=missing)
        drawing = draw and Panel(own, words, partial(draw, title=words, rows=group, shapes=heads))
        return Table(
            name=own,
            title=words,
            caption=caption,
            columns=columns("Implementation", "dtype", *(f"{in_words(head)}#" for head in heads)),
            rows=tuple(
                (Cell(str(label)), Cell(str(dtype)), *row)
                for (dtype, label), *row in filled.sort_index().itertuples()
            ),
            panels=(drawing,) if drawing else (),
        )

    return first_open(
        table(device, direction, group)
        for (device, direction), group in groups(rows, "device", "direction")
    )


def worst(rows: pd.DataFrame, by: list[str], error: str) -> pd.DataFrame:
    """Return the row of each combination of ``by`` that needs most attention, the worst first."""
    severity = rows["status"].map(_SEVERITY)
    ranked = rows.assign(severity=severity).sort_values(
        ["severity", error], ascending=False, kind="stable", na_position="last"
    )
    return ranked.drop_duplicates(by).drop(columns="severity")


def leading(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the rows of the most frequent combination of ``by``.

    A figure shows one axis; its cases must not differ in another one.
    """
    sizes = rows.groupby(by, sort=False)[by[0]].transform("size")
    first = rows[sizes == sizes.max()].iloc[0]
    return rows[np.logical_and.reduce([rows[name] == first[name] for name in by])]

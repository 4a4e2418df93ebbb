"""The contents of results files as frames: one row per case, and one row per output.

All numbers are from the records, or are quotients of two of them. None in a record is NaN in the
frame and a dash on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import pandas as pd

from harness.numerics.bound_terms import SIGNIFICAND_BITS
from harness.records import (
    Case,
    Direction,
    Environment,
    Mode,
    OutputErrors,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.records.text import in_words
from harness.regression.changes import Comparison
from harness.regression.history.runs import History
from harness.report.places import apart_by_revision, letters_of, place_of
from harness.selection.answers import Answer, answers_of
from harness.selection.ranking import label_of
from harness.selection.requirement import DEFAULT_MAX_CONDITION
from harness.selection.times import REFERENCE_NAME, has_valid_time, reference_ratio_of
from harness.store import Results

__all__ = ["Findings", "gather", "mostly_not_converged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the page shows."""

    cases: pd.DataFrame
    """One row per record, in the order in which implementations are shown."""
    outputs: pd.DataFrame
    """One row per output of each record that has errors; ``case`` is its row in ``cases``."""
    records: tuple[Record, ...]
    """The records themselves, in the order of the rows."""
    results: tuple[Results, ...]
    """As they were read: one for each file."""
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    """By their letter on the page."""
    planned: int
    """Cases of the sweeps."""
    missing: int
    """Cases of the sweeps without a record."""
    answers: tuple[Answer, ...]
    """What to run, for each condition number that may be required."""
    files: tuple[str, ...] = ()
    """The results files, as the page names them."""
    history: History | None = None
    """The folder that the runs are the latest of; None for single runs."""

    comparison: Comparison | None = None
    """Of the run with a baseline, if one was given."""

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names in the order of colours and rows: the reference is first."""
        return tuple(self.cases["implementation"].unique())

    @property
    def max_condition(self) -> float:
        """The largest condition number that a choice has to serve, until the reader changes it."""
        return next(each.requirements.max_condition for each in self.answers if each.is_default)


def gather(
    results: Sequence[Results],
    files: Sequence[str] = (),
    max_condition: float = DEFAULT_MAX_CONDITION,
) -> Findings:
    """Combine several results, which are from ``files``.

    If two files hold a case of one environment and one revision, the later file counts. Cases of
    different ones are all kept; ``place`` tells them apart, and they are never drawn together.

    Args:
        results: what results files hold.
        max_condition: largest condition number that a choice has to serve.
    """
    kept: dict[tuple[str, str], Record] = {}
    missing = 0
    environments: dict[str, Environment] = {}
    for result in apart_by_revision(results):
        kept.update({(record.case.id, record.environment): record for record in result.records})
        environments |= result.environments
        # a resumed run plans the whole sweep again
        planned = max((run.planned for run in result.runs), default=0)
        missing += max(0, planned - len(result.records))
    letters = letters_of([*environments, *(name for _, name in kept)])
    records = _in_order(list(kept.values()))
    is_one_place = len({name for _, name in kept}) == 1
    every = list(environments.values())
    places = {
        (device, name): place_of(
            device, "" if is_one_place else letters[name], environments.get(name), every
        )
        for device, name in {(each.case.device, each.environment) for each in records}
    }
    unmarked = {WarningKind.NOT_CONVERGED} if mostly_not_converged(records) else set()
    rows = [_row(each, places[each.case.device, each.environment], unmarked) for each in records]
    outputs = [
        {"case": index, **_output_row(output)}
        for index, record in enumerate(records)
        if record.errors is not None
        for output in record.errors.outputs
    ]
    cases = _with_orders(_frame(rows))
    return Findings(
        cases=cases,
        outputs=_frame(outputs, ["case", "output", "error_ulp", "status"]),
        records=tuple(records),
        results=tuple(results),
        runs=tuple(run for each in results for run in each.runs),
        environments={
            letter: environments[name] for name, letter in letters.items() if name in environments
        },
        planned=len(kept) + missing,
        missing=missing,
        answers=answers_of(records, max_condition),
        files=tuple(files),
    )


def _frame(rows: list[dict[str, Any]], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return rows as a frame whose texts are Python's: Arrow's are slow in groups of a few rows."""
    return pd.DataFrame({
        name: pd.Series([row[name] for row in rows], dtype=object if _is_text(rows, name) else None)
        for name in (rows[0] if rows else columns)
    })


def _is_text(rows: list[dict[str, Any]], name: str) -> bool:
    return isinstance(rows[0][name], str) if rows else True


def _in_order(records: list[Record]) -> list[Record]:
    """Sort the reference first, and eager before compiled; else keep the order of the run."""
    names = dict.fromkeys([REFERENCE_NAME, *(each.case.implementation for each in records)])
    rank = {name: position for position, name in enumerate(names)}
    return sorted(
        records, key=lambda each: (rank[each.case.implementation], each.case.mode is not Mode.EAGER)
    )


def _with_orders(cases: pd.DataFrame) -> pd.DataFrame:
    """Make the axes categories, in the order in which the page shows them."""
    orders = {
        "place": sorted(set(cases["place"])),
        "label": [],
        "mode": [each.value for each in Mode],
        "dtype": list(SIGNIFICAND_BITS),
        "direction": [each.value for each in Direction],
    }
    for name, first in orders.items():
        order = list(dict.fromkeys([*first, *cases[name]]))
        cases[name] = pd.Categorical(cases[name], categories=order, ordered=True)
    return cases


def mostly_not_converged(records: Sequence[Record]) -> bool:
    """Return whether most timed cases have that warning: a mark on each would tell none apart."""
    timed = [each for each in records if each.latency or each.cold]
    wide = [each for each in timed if WarningKind.NOT_CONVERGED in _kinds(each)]
    return 2 * len(wide) > len(timed)


def _kinds(record: Record) -> tuple[WarningKind, ...]:
    return tuple(dict.fromkeys(each.kind for each in record.warnings))


def _row(record: Record, place: str, unmarked: set[WarningKind]) -> dict[str, Any]:
    case = record.case
    warnings = [each for each in _kinds(record) if each not in unmarked]
    return {
        "place": place,
        "implementation": case.implementation,
        "mode": str(case.mode),
        "label": label_of((case.implementation, case.mode)),
        "dtype": case.dtype,
        "direction": str(case.direction),
        "distribution": case.distribution,
        "shape": "×".join(map(str, case.shape)) or "scalar",
        "elements": case.rows * case.hidden,
        "rows": case.rows,
        "hidden": case.hidden,
        "seed": case.seed,
        "setting": _setting(case),
        "status": str(record.status),
        "reason": record.reason,
        "warnings": ", ".join(map(in_words, warnings)),
        **_error_columns(record),
        **_latency_columns(record),
        **_cold_columns(record),
        **_memory_columns(record),
        "operators": nan if record.operators is None else record.operators,
        "instructions": nan if record.instructions is None else record.instructions,
    }


def _setting(case: Case) -> str:
    """Return the settings that have no column of their own."""
    columns = {str(case.mode), case.device, f"seed={case.seed}"}
    return " ".join(each for each in case.settings() if each not in columns)


def _error_columns(record: Record) -> dict[str, Any]:
    errors = record.errors
    if errors is None or not errors.outputs:
        numbers = dict.fromkeys(("error_ulp", "y_ulp", "bound_ratio", "condition"), nan)
        words = dict.fromkeys(("error_output", "algorithm", "reduction", "statistics"), "")
        return {**words, **numbers}
    worst = errors.worst
    bounds = [each.bound_ratio for each in errors.outputs if each.bound_ratio is not None]
    y_ulp = [each.worst_ulp for each in errors.outputs if each.output == "y"]
    return {
        "error_output": worst.output,
        "error_ulp": worst.worst_ulp,
        "y_ulp": y_ulp[0] if y_ulp else nan,
        "bound_ratio": max(bounds, default=nan),
        "condition": errors.condition_max_ratio,
        "algorithm": errors.algorithm,
        "reduction": errors.reduction,
        "statistics": errors.accumulate_dtype,
    }


def _output_row(output: OutputErrors) -> dict[str, Any]:
    """Return an output with its own status; the status of a case is the worst of its outputs."""
    ratio = output.bound_ratio
    if ratio is not None and not ratio <= 1:
        status = Status.WRONG
    elif ratio is None or output.vacuous_elements:
        status = Status.OUT_OF_GUARANTEE
    else:
        status = Status.OK
    return {"output": output.output, "error_ulp": output.worst_ulp, "status": str(status)}


def _latency_columns(record: Record) -> dict[str, float]:
    names = ("latency_s", "latency_low_s", "latency_high_s", "ratio", "ratio_low", "ratio_high")
    latency = record.latency
    if latency is None or not has_valid_time(record):
        return dict.fromkeys((*names, "copy_ratio"), nan)
    ratio, time = reference_ratio_of(record), latency.per_call_s
    ratios = (nan, nan, nan) if ratio is None else (ratio.value, ratio.low, ratio.high)
    copy = nan if latency.ceiling_ratio is None else latency.ceiling_ratio
    values = (time.value, time.low, time.high, *ratios, copy)
    return dict(zip((*names, "copy_ratio"), values, strict=True))


def _cold_columns(record: Record) -> dict[str, float]:
    cold = record.cold
    if cold is None or not cold.is_valid:
        return dict.fromkeys(("cold_s", "cold_low_s", "cold_high_s", "cold_copy_ratio"), nan)
    copy = nan if cold.ceiling_ratio is None else cold.ceiling_ratio
    time = cold.per_call_s
    return {
        "cold_s": time.value,
        "cold_low_s": time.low,
        "cold_high_s": time.high,
        "cold_copy_ratio": copy,
    }


def _memory_columns(record: Record) -> dict[str, float | str]:
    memory = record.memory
    if memory is None:
        unknown = dict.fromkeys(("peak_bytes", "peak_ratio", "saved_bytes"), nan)
        return unknown | {"memory_not_counted": record.memory_not_counted or ""}
    least = memory.minimum_bytes
    return {
        "peak_bytes": memory.peak_extra_bytes,
        "peak_ratio": memory.peak_extra_bytes / least if least else nan,
        "saved_bytes": nan if memory.saved_bytes is None else memory.saved_bytes,
        "memory_not_counted": "",
    }

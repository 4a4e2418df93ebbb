"""The contents of results files as frames: one row per case, and one row per output.

All numbers are from the records, or are quotients of two of them. None in a record is NaN in the
frame and a dash on the page. Each machine, software and revision has a letter, and is shown by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from harness.numerics.bound_terms import SIGNIFICAND_BITS
from harness.records import (
    Case,
    Direction,
    Environment,
    Errors,
    Mode,
    OutputErrors,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.records.metrics import metrics_in
from harness.records.text import in_words
from harness.regression import Comparison
from harness.regression.history import History
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
    "combinations",
    "gather",
    "groups",
    "leading",
    "mostly_not_converged",
    "worst",
    "worst_status",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
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
        return next(
            answer.requirements.max_condition for answer in self.answers if answer.is_default
        )


def gather(
    results: Sequence[Results],
    files: Sequence[str] = (),
    max_condition: float = DEFAULT_MAX_CONDITION,
    history: History | None = None,
    comparison: Comparison | None = None,
) -> PageData:
    """Combine several results, which are from ``files``.

    If two files hold a case of one environment and one revision, the later file counts. Cases of
    different ones are all kept; ``device`` tells them apart, and they are never drawn together.

    Args:
        results: what results files hold.
        files: their names, as the page gives them.
        max_condition: largest condition number that a choice has to serve.
        history: the folder that the results are the latest of.
        comparison: with a baseline.
    """
    kept: dict[tuple[str, str], Record] = {}
    missing = 0
    environments: dict[str, Environment] = {}
    for result in _apart_by_revision(results):
        kept.update({(record.case.id, record.environment): record for record in result.records})
        environments |= result.environments
        # a resumed run plans the whole sweep again
        planned = max((run.planned for run in result.runs), default=0)
        missing += max(0, planned - len(result.records))
    letters = {
        name: f"{ascii_uppercase[index % 26]}{index // 26 or ''}"
        for index, name in enumerate(dict.fromkeys([*environments, *(name for _, name in kept)]))
    }
    # the reference first, and eager before compiled; else in the order of the run
    names = dict.fromkeys([REFERENCE_NAME, *(name.case.implementation for name in kept.values())])
    rank = {name: position for position, name in enumerate(names)}
    records = sorted(
        kept.values(),
        key=lambda record: (rank[record.case.implementation], record.case.mode is not Mode.EAGER),
    )
    titles = {
        (device, name): _title_of(device, letters[name], environments.get(name), environments)
        if len({name for _, name in kept}) > 1
        else device
        for device, name in {(record.case.device, record.environment) for record in records}
    }
    return PageData(
        cases=_frame_of_cases(
            records, [titles[record.case.device, record.environment] for record in records]
        ),
        outputs=_frame_of_outputs(records),
        records=tuple(records),
        results=tuple(results),
        runs=tuple(run for result in results for run in result.runs),
        environments={
            letter: environments[name] for name, letter in letters.items() if name in environments
        },
        planned=len(kept) + missing,
        missing=missing,
        answers=answers_of(records, max_condition),
        files=tuple(files),
        history=history,
        comparison=comparison,
    )


# --- environments --------------------------------------------------------------------------------


def _apart_by_revision(results: Sequence[Results]) -> Iterator[Results]:
    """Yield results in which runs of several revisions on one machine have environments apart."""
    revisions: dict[str, set[str]] = {}
    for result in results:
        for name, environment in result.environments.items():
            revisions.setdefault(name, set()).add(_revision(environment))
    for result in results:
        new = {
            name: f"{name} at {_revision(environment)}"
            for name, environment in result.environments.items()
            if len(revisions[name]) > 1
        }
        records = tuple(
            replace(record, environment=new.get(record.environment, record.environment))
            for record in (result.records if new else ())
        )
        apart = {new.get(name, name): found for name, found in result.environments.items()}
        yield replace(result, records=records, environments=apart) if new else result


def _revision(environment: Environment, digits: int | None = None) -> str:
    changed = " changed" if environment.git_dirty else ""
    return f"{(environment.git_commit or 'no commit')[:digits]}{changed}"


def _title_of(
    device: str, letter: str, own: Environment | None, environments: dict[str, Environment]
) -> str:
    """Return a device, the letter of its environment and what no other environment shares."""
    parts: tuple[Callable[[Environment], str], ...] = (
        lambda one: ", ".join(gpu.name for gpu in one.gpus) if device == "cuda" else one.cpu,
        lambda one: " ".join(next(iter(one.packages), ())),
        lambda one: f"commit {_revision(one, 8)}" if one.git_commit else "no commit",
    )
    words = [
        part(own)
        for part in parts
        if own and len({part(other) for other in environments.values()}) > 1
    ]
    return ", ".join([f"{device}, environment {letter}", *filter(None, words)])


# --- frames --------------------------------------------------------------------------------------


def _of_errors(read: Callable[[Errors], str]) -> Callable[[Record], str]:
    return lambda record: read(record.errors) if record.errors and record.errors.outputs else ""


_WORDS: dict[str, Callable[[Record], str]] = {
    "implementation": lambda record: record.case.implementation,
    "mode": lambda record: str(record.case.mode),
    "label": lambda record: label_of((record.case.implementation, record.case.mode)),
    "dtype": lambda record: record.case.dtype,
    "direction": lambda record: str(record.case.direction),
    "distribution": lambda record: record.case.distribution,
    "shape": lambda record: "×".join(map(str, record.case.shape)) or "scalar",
    "setting": lambda record: _setting(record.case),
    "status": lambda record: str(record.status),
    "reason": lambda record: record.reason,
    "memory_not_counted": lambda record: (not record.memory and record.memory_not_counted) or "",
    "error_output": _of_errors(lambda errors: errors.worst.output),
    "algorithm": _of_errors(lambda errors: errors.algorithm),
    "reduction": _of_errors(lambda errors: errors.reduction),
    "statistics": _of_errors(lambda errors: errors.accumulate_dtype),
}
_SIZES: dict[str, Callable[[Case], int]] = {
    "elements": lambda case: case.rows * case.hidden,
    "rows": lambda case: case.rows,
    "hidden": lambda case: case.hidden,
    "seed": lambda case: case.seed,
}


def _frame_of_cases(records: Sequence[Record], devices: list[str]) -> pd.DataFrame:
    """Return texts as Python's, since Arrow's are slow in groups of a few rows, and all metrics.

    The axes are categories, in the order in which the page shows them.
    """
    words = {"device": devices, **{name: list(map(get, records)) for name, get in _WORDS.items()}}
    unmarked = {WarningKind.NOT_CONVERGED} if mostly_not_converged(records) else set()
    words["warnings"] = [
        ", ".join(in_words(kind) for kind in _kinds(record) if kind not in unmarked)
        for record in records
    ]
    columns: dict[str, Any] = {
        name: pd.Series(column, dtype=object) for name, column in words.items()
    }
    for name, size in _SIZES.items():
        columns[name] = pd.Series([size(record.case) for record in records])
    for metric in metrics_in("frame", "page"):
        missing = (None,) * len(metric.columns)
        rows = [
            metric.numbers(record) if _is_usable(record, metric.part) else missing
            for record in records
        ]
        for name, column in zip(metric.columns, zip(*rows, strict=True), strict=True):
            columns[name] = pd.Series(column, dtype=float)
    cases = pd.DataFrame(columns)
    is_reference = (cases["implementation"] == REFERENCE_NAME) & (cases["mode"] == Mode.EAGER)
    is_bare = is_reference & cases["latency_s"].notna() & cases["ratio"].isna()
    cases["ratio"] = cases["ratio"].mask(is_bare, 1.0)
    orders = {
        "device": sorted(set(devices)),
        "label": [],
        "mode": [mode.value for mode in Mode],
        "dtype": list(SIGNIFICAND_BITS),
        "direction": [direction.value for direction in Direction],
    }
    for name, first in orders.items():
        order = list(dict.fromkeys([*first, *cases[name]]))
        cases[name] = pd.Categorical(cases[name], categories=order, ordered=True)
    return cases


def _is_usable(record: Record, part: str) -> bool:
    """Return whether the numbers of a part of a record can be shown: invalid times are not."""
    if part == "latency":
        return has_valid_time(record)
    if part == "errors":
        return bool(record.errors and record.errors.outputs)
    return part != "cold" or record.cold is None or record.cold.is_valid


def _setting(case: Case) -> str:
    """Return the settings that have no column of their own."""
    columns = {str(case.mode), case.device, f"seed={case.seed}"}
    return " ".join(setting for setting in case.settings() if setting not in columns)


def mostly_not_converged(records: Sequence[Record]) -> bool:
    """Return whether most timed cases have that warning: a mark on each would tell none apart."""
    timed = [record for record in records if record.latency or record.cold]
    wide = [record for record in timed if WarningKind.NOT_CONVERGED in _kinds(record)]
    return 2 * len(wide) > len(timed)


def _kinds(record: Record) -> tuple[WarningKind, ...]:
    return tuple(dict.fromkeys(warning.kind for warning in record.warnings))


def _frame_of_outputs(records: Sequence[Record]) -> pd.DataFrame:
    rows = [
        (index, output.output, output.worst_ulp, str(_status_of(output)))
        for index, record in enumerate(records)
        if record.errors is not None
        for output in record.errors.outputs
    ]
    frame = pd.DataFrame(rows, columns=["case", "output", "error_ulp", "status"], dtype=object)
    return frame.astype({"case": int, "error_ulp": float})


def _status_of(output: OutputErrors) -> Status:
    """Return the status of an output; the status of a case is the worst of its outputs."""
    ratio = output.bound_ratio
    if ratio is not None and not ratio <= 1:
        return Status.WRONG
    is_open = ratio is None or output.vacuous_elements
    return Status.OUT_OF_GUARANTEE if is_open else Status.OK


# --- parts of a frame: the rows of one figure, or of one row of a table ---------------------------

_SEVERITY = {
    status.value: rank
    for rank, status in enumerate((
        Status.OK, Status.UNSUPPORTED, Status.OUT_OF_MEMORY, Status.OUT_OF_GUARANTEE,
        Status.TIMEOUT, Status.CRASHED, Status.ERROR, Status.WRONG,
    ))
}  # fmt: skip
"""The order in which statuses need attention, the least first."""


def groups(rows: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the rows for each combination of ``columns`` that occurs, in the order of display."""
    if len(rows):
        yield from rows.groupby(list(columns), observed=True)


def combinations(rows: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return the combinations of ``columns`` that occur, in the order of display."""
    return [name for name, _ in groups(rows[list(columns)], *columns)]


def worst_status(statuses: pd.Series) -> str:
    """Return the status that needs the most attention."""
    return max(map(str, statuses), key=_SEVERITY.__getitem__)


def worst(rows: pd.DataFrame, by: list[str], error: str) -> pd.DataFrame:
    """Return, for each combination of ``by``, the row that needs the most attention."""
    severity = rows["status"].map(_SEVERITY)
    ranked = rows.assign(severity=severity).sort_values(
        ["severity", error], ascending=False, kind="stable", na_position="last"
    )
    return ranked.drop_duplicates(by).drop(columns="severity").sort_index()


def leading(rows: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, int]:
    """Return the rows of the most frequent combination of ``by``, and the number of other rows.

    A figure shows one axis; its cases must not differ in another one.
    """
    sizes = rows.groupby(by, sort=False)[by[0]].transform("size")
    first = rows[sizes == sizes.max()].iloc[0]
    chosen = rows[np.logical_and.reduce([rows[name] == first[name] for name in by])]
    return chosen, len(rows) - len(chosen)

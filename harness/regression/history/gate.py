"""A baseline from the last comparable runs of a history, for ``check --against-history``.

Each run counts as one process of the baseline. Its spread is therefore that between runs, which
includes what differs from day to day, and a suspect must exceed the slowest of these runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.records import Record
from harness.records.text import count
from harness.regression.baseline import merged_processes
from harness.regression.compare import NotMeasuredError
from harness.regression.history.runs import History
from harness.regression.history.series import TrendMetric, is_comparable
from harness.store import Results

__all__ = ["FEW_RUNS", "baseline_of_history", "history_name"]

FEW_RUNS = "until the history has so many comparable runs, `ab` or a baseline can judge it"


def baseline_of_history(history: History, head: Results, last: int) -> Results:
    """Return for each case the last comparable runs of a history, merged into one record.

    Exact metrics are those of the last of these runs.

    Args:
        history: read with the samples; the run ``head`` is not in it.
        head: the run to be judged. If runs of its environment exist, only these are used.
        last: how many runs are used of each case.

    Raises:
        NotMeasuredError: the history has no finished run.
    """
    here = {record.environment for record in head.records}
    finished = [run.results for run in history.runs if not run.why_unfinished]
    if not finished:
        raise NotMeasuredError(f"{history.folder}: every run in it was cut short")
    newest_first = list(reversed(finished))
    # of each case the runs of this environment, if there are any
    found: dict[str, list[Record]] = {}
    for is_here in (True, False):
        known = set(found)
        for results in newest_first:
            for record in results.records:
                if record.case.id not in known and (record.environment in here) is is_here:
                    found.setdefault(record.case.id, []).append(record)
    # a case that the history has not had in the last runs was given up
    recent = {record.case.id for results in newest_first[:last] for record in results.records}
    return Results(
        records=tuple(
            merged_processes(list(_comparable(records))[:last])
            for case, records in found.items()
            if case in recent
        ),
        runs=finished[-1].runs,
        environments={
            name: environment
            for results in finished
            for name, environment in results.environments.items()
        },
    )


def history_name(history: History, last: int) -> str:
    """Return "the last 10 runs of results/history"."""
    used = min(last, len(history.runs))
    return f"the last {count(used, 'run')} of {history.folder}"


def _comparable(newest_first: list[Record]) -> Iterator[Record]:
    """Yield the newest record, then each earlier one whose time may be compared with it."""
    newest = newest_first[0]
    yield newest
    for record in newest_first[1:]:
        if is_comparable(record, newest, TrendMetric.TIME):
            yield record

"""A baseline from the last comparable runs of a history, for ``check --against-history``.

Each run counts as one process of the baseline. Its spread is therefore that between runs, which
includes what differs from day to day, and a suspect must exceed the slowest of these runs.
"""

from __future__ import annotations

from harness.records import Record
from harness.records.text import count
from harness.regression.baseline import merged_processes
from harness.regression.compare import NotMeasuredError
from harness.regression.history.runs import History
from harness.regression.history.trend import TREND_METRICS, is_comparable
from harness.store import Results

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
    found: dict[str, list[Record]] = {}
    for results in newest_first:
        for record in results.records:
            found.setdefault(record.case.id, []).append(record)
    # a case that the history has not had in the last runs was given up
    recent = {record.case.id for results in newest_first[:last] for record in results.records}
    return Results(
        records=tuple(
            merged_processes(_comparable(records, here)[:last])
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


def _comparable(newest_first: list[Record], here: set[str]) -> list[Record]:
    """Return the newest record, of these environments if any is, and those comparable with it."""
    own = [record for record in newest_first if record.environment in here]
    newest, *older = own or newest_first
    time = TREND_METRICS["time"]
    return [newest, *(record for record in older if is_comparable(record, newest, time))]

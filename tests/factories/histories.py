"""Histories: one run per commit, with every value given by the test. NOTHING WAS MEASURED."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from factories.compared_runs import HERE, make_record, results_of
from harness.records import Case, Environment, Record
from harness.regression import History, HistoryRun
from harness.store import Results, write

URL = "https://example.org/owner/name"
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_WAVE = (0.0, 0.004, -0.003, 0.002, -0.004, 0.003)  # noise that a test can repeat


def wavy(*levels: tuple[float, int]) -> list[float]:
    """Return so many values at each level, with noise of about 0.4 %."""
    flat = [level for level, number in levels for _ in range(number)]
    return [level * (1 + _WAVE[i % len(_WAVE)]) for i, level in enumerate(flat)]


def commit_of(number: int) -> str:
    return f"{number:08x}" * 5


def results_of_commit(
    number: int,
    *records: Record,
    environment: Environment = HERE,
    start_days: float | None = None,
    **run: Any,
) -> Results:
    """Return the run of a commit: made on day ``number``, and measured an hour later."""
    committed = _FIRST + timedelta(days=number)
    delay = timedelta(hours=1) if start_days is None else timedelta(days=start_days - number)
    here = replace(
        environment,
        git_commit=commit_of(number),
        git_commit_utc=committed.isoformat(),
        git_dirty=False,
        repository_url=URL,
    )
    return results_of(
        *(replace(record, environment=here.fingerprint) for record in records),
        environments=(here,),
        name=f"run{number:03}",
        started_utc=(committed + delay).isoformat(),
        environment=here.fingerprint,
        git_commit=here.git_commit,
        **run,
    )


def history_of(*runs: Results) -> History:
    """Return a history of these runs, in this order."""
    found = []
    for results in runs:
        (run,) = results.runs
        started, path = datetime.fromisoformat(run.started_utc), Path(f"{run.name}.parquet")
        found.append(HistoryRun(path=path, results=results, started=started, committed=started))
    return History(folder=Path("results/history"), runs=tuple(found), notes=())


def runs_of(
    case: Case, ratios: Sequence[float], *, environment: Environment = HERE, first: int = 0
) -> list[Results]:
    """Return one run per ratio to the reference, of consecutive commits."""
    return [
        results_of_commit(number, make_record(case, (ratio,)), environment=environment)
        for number, ratio in enumerate(ratios, first)
    ]


def stored_history(folder: Path, *runs: Results) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for results in runs:
        write(results, folder / f"{results.runs[0].name}.parquet")
    return folder

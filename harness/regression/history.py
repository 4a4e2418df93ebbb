"""The runs of a folder: trends with change points, and a baseline made of the last runs.

Change points are found by PELT (Killick, Fearnhead, Eckley 2012) as ruptures implements it. The
cost is the sum of squares around the mean of each segment, and the penalty is that of a modified
Bayesian information criterion. A change is reported once three more runs have not refuted it.
Chosen by experiments/history. E-divisive with a t-test (apache-otava) fixes the version of numpy,
which is part of an environment's fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from itertools import chain, pairwise
from math import inf, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.records import Case, Environment, Estimate, Latency, Mode, Record, Run
from harness.records.metrics import Metric, metrics_in
from harness.records.refusal import NotMeasuredError, Refusal
from harness.records.text import count, grouped, install_extra
from harness.regression.baseline import merged_processes
from harness.regression.changes import holds_elsewhere
from harness.regression.latency_judge import COMPARED_WITH
from harness.store import Results, StoredRun, StoreError, scan, why_unfinished

__all__ = [
    "FEW_RUNS",
    "LEAST_RUNS",
    "MISSING_DETECTOR",
    "TREND_METRICS",
    "History",
    "HistoryRun",
    "Series",
    "Trend",
    "TrendChange",
    "baseline_of_history",
    "change_points",
    "history_name",
    "is_of",
    "query_history",
    "read_history",
    "series_of",
    "spread_between",
]

_MOST_RECORDS = 1_000_000  # about 4 GB as objects; the trends of so many are not read by anyone
TREND_METRICS = {metric.heading("trend"): metric for metric in metrics_in("trend")}
MISSING_DETECTOR = f"change points need the extra history: {install_extra('history')}"
_LEAST_LOOK = 8  # runs; trade-off: fewer have more false changes
# A change is found again after three more runs. Simulated by experiments/history with normal noise:
# of the false changes of a series that is looked at after every run, a quarter are left.
_LOOKS = 4
_NEAR = 2  # runs: another look may place a change elsewhere
LEAST_RUNS = _LEAST_LOOK + _LOOKS - 1
_LEAST_SEGMENT = 2  # runs: a single run that differs is no change
# In units of the variance and of log(runs). Simulated by experiments/history with normal noise: in
# one look, 0.5 false changes per 100 unchanged series of 20 runs; a penalty of 6 misses more.
_PENALTY = 4.0
# Standard deviation of a logarithm. Trade-off: smaller shifts, such as of code that was placed
# elsewhere, are no change.
_LEAST_SPREAD = 0.002
# what a latency must have, and what makes two of them comparable
_LATENCY_COLUMNS = tuple(
    f"latency.{field.name}"
    for field in fields(Latency)
    if field.default is MISSING or field.name in {"timer", "reference", "is_valid"}
)


# --- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """One results file of a history."""

    path: Path
    results: Results
    """What was read of it; it may lack records that are not needed."""
    started: datetime
    committed: datetime | None
    """When its commit was made; None where the file does not say."""
    why_unfinished: str | None = None
    """How much of it is there, if it was cut short; else None."""

    @property
    def run(self) -> Run:
        """The invocation that finished the file."""
        return self.results.runs[-1]

    @property
    def label(self) -> str:
        """Its short commit, with a plus if files differed from it; else the name of its file."""
        if self.run.git_commit is None:
            return self.path.stem
        return f"{self.run.git_commit[:10]}{'+' if self.run.git_dirty else ''}"

    @property
    def commit_url(self) -> str:
        """Web page of the commit; empty if the repository is not known."""
        environment, commit = _environment_of(self.results), self.run.git_commit
        url = environment.repository_url if environment else None
        return f"{url}/commit/{commit}" if url and commit else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The runs of a folder, the earliest first, and what a reader must know about them."""

    folder: Path
    runs: tuple[HistoryRun, ...]
    notes: tuple[str, ...]

    @property
    def latest(self) -> tuple[HistoryRun, ...]:
        """The last run of each environment."""
        last = {run.run.environment: run for run in self.runs}
        return tuple(run for run in self.runs if last[run.run.environment] is run)


def read_history(
    folder: Path,
    *,
    samples: bool = False,
    without: Path | None = None,
    columns: Sequence[str] | None = None,
    is_wanted: Callable[[Case], bool] | None = None,
    command: str = "",
    last: int | None = None,
    only_latest: bool = False,
) -> History:
    """Read the runs of a folder; files that cannot be read are named in the notes.

    Args:
        folder: its subfolders are not read.
        samples: whether the raw samples are needed.
        without: a results file that is not of the history, though it may be in the folder.
        columns: fields of a record that are needed, beside case, environment and status; None for
            all of all cases.
        is_wanted: whether the records of a case are needed, if few are.
        command: text in the command of the runs that are needed, such as "preset ci".
        last: number of runs that are needed, the last ones; None for all.
        only_latest: whether only the last run of each environment is needed.

    Raises:
        Refusal: there is no such folder, or too many records are needed.
        NotMeasuredError: no file in it can be used.
    """
    if not folder.is_dir():
        raise Refusal(f"{folder}: no such folder; a history is a folder of results files")
    wanted: dict[str, Any] = {"columns": columns, "samples": samples}
    wanted |= {"is_wanted": is_wanted} if is_wanted else {}
    # of few cases, all runs are read as they are opened
    is_one_pass = bool(is_wanted) and last is None and not only_latest
    paths = sorted(folder.glob("*.parquet"))
    if without is not None and without.exists():
        paths = [path for path in paths if not path.samefile(without)]

    def is_needed(stored: StoredRun) -> bool:
        return is_one_pass and bool(stored.runs) and command in stored.runs[-1].command

    found, errors = scan(paths, is_needed=is_needed, **wanted)
    notes, runs = [], dict[str, HistoryRun]()
    for stored, records in found:
        try:
            dated = _dated(stored, records)
        except StoreError as error:
            errors.append(error)
            continue
        first = runs.setdefault(stored.digest, dated)
        if first is not dated:
            notes.append(
                f"left out: {stored.path.name} holds the same measurements as {first.path.name}"
            )
    kept = [run for run in runs.values() if command in run.run.command]
    kept.sort(key=lambda run: (run.committed or run.started, run.started, run.path.name))
    if runs and not kept:
        raise Refusal(f"{folder}: no run has {command!r} in its command")
    history = History(folder=folder, runs=tuple(kept[-last:] if last else kept), notes=())
    kept = list(history.latest if only_latest else history.runs)
    if not is_one_pass:
        records_in = {stored.path: stored.records for stored, _ in found}
        number = sum(records_in[run.path] for run in kept)
        if number > _MOST_RECORDS and not is_wanted:
            raise Refusal(
                f"{folder}: {number:,} records of {count(len(kept), 'run')} are too many to "
                "compare at once; choose some with `layernorm-bench history` and --case, --worst "
                "or --last"
            )
        found, unread = scan([run.path for run in kept], **wanted)
        errors += unread
        records_of = {stored.path: records for stored, records in found}
        kept = [
            replace(run, results=replace(run.results, records=records_of[run.path]))
            for run in kept
            if run.path in records_of
        ]
    notes = [f"left out: {error}" for error in sorted(errors, key=str)] + notes
    if not kept:
        why = f" ({notes[0]})" if notes else ""
        raise NotMeasuredError(
            f"{folder}: holds no results file that can be read{why}; keep one file per commit "
            f"there, such as `layernorm-bench run --preset ci --out {folder}/NAME.parquet`"
        )
    journals = [path for path in folder.glob("*.jsonl") if path.stat().st_size]
    if journals:
        notes.append(
            f"left out: {count(len(journals), 'unfinished run')}, such as {journals[0].name}; "
            "continue with --resume"
        )
    return History(folder=folder, runs=tuple(kept), notes=(*notes, *_notes_on(kept)))


def _dated(stored: StoredRun, records: tuple[Record, ...]) -> HistoryRun:
    if not stored.runs or not stored.records:
        raise StoreError(f"{stored.path}: holds no record of a run")
    results = Results(records=records, runs=stored.runs, environments=stored.environments)
    environment = _environment_of(results)
    written = environment.git_commit_utc if environment else None
    try:
        started = _time(stored.runs[0].started_utc)
        committed = _time(written) if written else None
    except ValueError as error:
        raise StoreError(f"{stored.path}: does not say when it was measured: {error}") from None
    return HistoryRun(
        path=stored.path,
        results=results,
        started=started,
        committed=committed,
        why_unfinished=why_unfinished(stored.runs, stored.records),
    )


def _environment_of(results: Results) -> Environment | None:
    first = next(iter(results.environments), "")  # of a run in several environments
    return results.environments.get(results.runs[-1].environment or first)


def _time(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _notes_on(runs: Sequence[HistoryRun]) -> Iterator[str]:
    """Yield notes on runs, each with an example and the number of others."""
    noted = {
        "without the time of its commit, so it is in order by its start": [
            run for run in runs if not run.committed
        ],
        "with uncommitted changes (marked +), which no commit range names": [
            run for run in runs if run.run.git_dirty
        ],
        "cut short": [run for run in runs if run.why_unfinished],
    }
    for text, found in noted.items():
        if found:
            more = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
            yield f"{found[0].path.name}{more}: {text}"


# --- trends --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendChange:
    """A change point of a series."""

    index: int
    """Of the first point after the change."""
    before: float
    """Median of the segment before the change."""
    after: float
    """Median of the segment after the change."""
    is_worse: bool
    last: HistoryRun
    """The last run before the change."""
    first: HistoryRun
    """The first run after the change."""

    @property
    def commits(self) -> str:
        """The range of commits that may be the cause, as git writes it: without the first."""
        return f"{self.last.label}..{self.first.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Comparable values of one case, in the order of the runs."""

    case: Case
    environment: str
    """Fingerprint of the environment in which the last value was measured."""
    runs: tuple[HistoryRun, ...]
    """Those that have a value."""
    values: tuple[Estimate, ...]
    """One per run."""
    changes: tuple[TrendChange, ...]
    spread: float | None
    """Standard deviation between runs, as a logarithm; None for exact metrics and few runs."""

    @property
    def segments(self) -> tuple[tuple[int, int, float], ...]:
        """Index of the first point of each segment, index after its last point, and median."""
        return _segments(self.values, [change.index for change in self.changes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """All series of one metric in a history."""

    metric: Metric
    series: tuple[Series, ...]
    """The series with the largest changes first."""
    is_searched: bool
    """Whether change points were searched for; the detector may not be installed."""


# --- a part of a history -------------------------------------------------------------------------


def query_history(
    folder: Path,
    metric: Metric,
    *,
    pattern: str | None = None,
    command: str = "",
    last: int | None = None,
    worst: int | None = None,
) -> tuple[History, Trend]:
    """Read some cases of some runs, for one metric. The rest is not read.

    With ``worst``, the latest run of each environment is read first, for the cases to choose.

    Args:
        folder: of results files.
        metric: one of TREND_METRICS.
        pattern: cases whose id matches this; None for all.
        command: runs whose command has this text.
        last: number of runs, the last ones; None for all.
        worst: number of cases, the worst of the last runs; None for all.

    Raises:
        Refusal: there is no such folder, no such run, or too many records are asked for.
        NotMeasuredError: no file in it can be used.
    """
    columns = _LATENCY_COLUMNS if metric.part == "latency" else (metric.part,)
    read = partial(read_history, folder, columns=columns, command=command, last=last)
    is_wanted, rank = is_of(pattern), dict[Case, int]()
    if worst is not None:
        latest = read(is_wanted=is_wanted, only_latest=True)
        series = sorted(
            series_of(latest, metric).series,
            key=lambda series: series.values[-1].value,
            reverse=metric.better == "lower",
        )
        rank = {case: index for index, case in enumerate([one.case for one in series][:worst])}
        is_wanted = rank.__contains__
    history = read(is_wanted=is_wanted)
    trend = series_of(history, metric)
    if worst is not None:
        ordered = sorted(trend.series, key=lambda series: rank[series.case])
        trend = replace(trend, series=tuple(ordered))
    return history, trend


def is_of(pattern: str | None) -> Callable[[Case], bool] | None:
    """Return a predicate: whether the id of a case matches a pattern, or contains a plain text.

    Args:
        pattern: as a shell writes it, with ``*``, ``?`` or ``[``; else a plain text.
    """
    if pattern is None:
        return None
    wild = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return lambda case: fnmatchcase(case.id, wild)


# --- series --------------------------------------------------------------------------------------


def series_of(history: History, metric: Metric) -> Trend:
    """Return the series of a metric: one for each case and each set of comparable runs.

    Runs of a case that are not comparable, such as runs on two machines, are in separate series.
    """
    alike = grouped(
        ((record.case, *_compared_with(record, metric)), (run, record, value))
        for run in history.runs
        for record in run.results.records
        if (value := _value_of(record, metric)) is not None
    )
    found = [_series(rows, metric) for rows in alike.values()]
    found.sort(key=_largest, reverse=True)  # stable: equal changes keep the order of the runs
    return Trend(metric=metric, series=tuple(found), is_searched=metric.exact or has_detector())


def _series(alike: Sequence[tuple[HistoryRun, Record, Estimate]], metric: Metric) -> Series:
    runs, records, estimates = zip(*alike, strict=True)
    values = [estimate.value for estimate in estimates]
    record, spread = records[-1], None
    indices: tuple[int, ...] = ()
    if metric.exact and record.case.device == "cpu":  # a GPU sums in any order
        indices = tuple(i for i, (old, new) in enumerate(pairwise(values), 1) if old != new)
    elif all(0 < value < inf for value in values):
        logarithms = [log(value) for value in values]
        spread = spread_between(logarithms) if len(values) >= LEAST_RUNS else None
        indices = change_points(logarithms) if has_detector() else ()
    levels = [level for _, _, level in _segments(estimates, indices)]
    changes = (
        TrendChange(
            index=index,
            before=before,
            after=after,
            is_worse=(after < before) == (metric.better == "higher"),
            last=runs[index - 1],
            first=runs[index],
        )
        for index, (before, after) in zip(indices, pairwise(levels), strict=True)
    )
    return Series(
        case=record.case,
        environment=record.environment,
        runs=runs,
        values=estimates,
        changes=tuple(changes),
        spread=spread,
    )


def _segments(
    values: Sequence[Estimate], indices: Sequence[int]
) -> tuple[tuple[int, int, float], ...]:
    return tuple(
        (first, end, median(value.value for value in values[first:end]))
        for first, end in pairwise([0, *indices, len(values)])
    )


def _value_of(record: Record, metric: Metric) -> Estimate | None:
    """Return the value of a metric; None if it was not measured, or is not valid."""
    value = metric.get(record) if record.status.is_measured else None
    if value is None:
        return None
    if not isinstance(value, Estimate):
        is_number = value < inf  # not NaN
        return Estimate(value=value, low=value, high=value, confidence=1.0) if is_number else None
    latency = record.latency
    if latency is None or not latency.is_valid or latency.reference_ratio is None:
        return None
    if metric.unit == "speed":
        # the reference has no speed relative to itself
        is_itself = latency.reference == record.case.implementation
        if (is_itself and record.case.mode is Mode.EAGER) or not value.high < inf:
            return None
    return value if 0 < value.value < inf else None


def _compared_with(record: Record, metric: Metric) -> tuple[object, ...]:
    """Return what is equal in all records of a case in one series; as in ``check``."""
    if metric.part != "latency":
        is_anywhere = holds_elsewhere(record.case, metric.part)
        return () if is_anywhere else (record.environment,)
    names = ("timer", "is_valid", *COMPARED_WITH)
    latency = tuple(getattr(record.latency, name, None) for name in names)
    # the times of a wrong and of a right result are not comparable
    return record.environment, record.status, *latency


def _largest(series: Series) -> float:
    """Return the size of the largest change of a series, for sorting."""
    sizes = (
        abs(log(change.after / change.before)) if change.before and change.after else inf
        for change in series.changes
    )
    return max(sizes, default=0.0)


# --- change points -------------------------------------------------------------------------------


def has_detector() -> bool:
    """Whether change points can be searched."""
    return find_spec("ruptures") is not None


def spread_between(logarithms: Sequence[float]) -> float:
    """Return the standard deviation of a series that may have changes, from its differences.

    The root of half the mean squared successive difference (von Neumann 1941), to which a change
    adds only one term.
    """
    steps = np.diff(logarithms)
    return max(float(np.sqrt((steps**2).mean() / 2)) if len(steps) else 0.0, _LEAST_SPREAD)


def change_points(logarithms: Sequence[float]) -> tuple[int, ...]:
    """Return the indices at which new segments begin, and began when there were up to 3 runs less.

    None if there are fewer than LEAST_RUNS.
    """
    if len(logarithms) < LEAST_RUNS:
        return ()
    last, *earlier = (_seen(logarithms[: len(logarithms) - less]) for less in range(_LOOKS))
    return tuple(
        index
        for index in last
        if all(any(abs(index - other) <= _NEAR for other in look) for look in earlier)
    )


def _seen(logarithms: Sequence[float]) -> tuple[int, ...]:
    """Return the indices at which new segments seem to begin."""
    from ruptures import KernelCPD

    signal = np.asarray(logarithms).reshape(-1, 1) / spread_between(logarithms)
    # a linear kernel is the sum of squares; this is PELT in C, a hundred times as fast as Pelt
    search = KernelCPD(kernel="linear", min_size=_LEAST_SEGMENT).fit(signal)
    found = search.predict(pen=_PENALTY * log(len(signal)))
    return tuple(int(index) for index in found[:-1])  # the last is the end of the series


# --- a baseline ----------------------------------------------------------------------------------

FEW_RUNS = "until the history has so many comparable runs, `ab` or a baseline can judge it"


def baseline_of_history(history: History, head: Results, last: int) -> Results:
    """Return for each case the last comparable runs of a history, merged into one record.

    Each run counts as one process of the baseline. Its spread is therefore that between runs, which
    includes what differs from day to day, and a suspect must exceed the slowest of these runs.
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
    found = grouped(
        (record.case.id, record) for results in newest_first for record in results.records
    )
    # a case that the history has not had in the last runs was given up
    recent = {record.case.id for results in newest_first[:last] for record in results.records}
    return Results(
        records=tuple(
            merged_processes(_comparable(records, here)[:last])
            for case, records in found.items()
            if case in recent
        ),
        runs=finished[-1].runs,
        environments=dict(chain.from_iterable(one.environments.items() for one in finished)),
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
    same = _compared_with(newest, time)
    return [newest, *(record for record in older if _compared_with(record, time) == same)]

"""The runs of a folder, in the order of their commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.records import Case, Environment, Record, Run
from harness.records.refusal import Refusal
from harness.records.text import count
from harness.regression.compare import NotMeasuredError
from harness.store import (
    Results,
    StoredRun,
    StoreError,
    read_runs,
    scan_folder,
    scan_runs,
    stored_runs,
    why_unfinished,
)

_MOST_RECORDS = 1_000_000  # about 4 GB as objects; the trends of so many are not read by anyone


class HistoryError(Refusal):
    """A folder cannot be read as a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """One results file of a history."""

    stored: StoredRun
    """Where it is."""
    results: Results
    """What was read of it; it may lack records that are not needed."""
    started: datetime
    committed: datetime | None
    """When its commit was made; None where the file does not say."""

    @property
    def path(self) -> Path:
        return self.stored.path

    @property
    def why_unfinished(self) -> str | None:
        """How much of it is there, if it was cut short; else None."""
        return why_unfinished(self.stored.runs, self.stored.records)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run(self) -> Run:
        """The invocation that finished the file."""
        return self.results.runs[-1]

    @property
    def commit(self) -> str | None:
        return self.run.git_commit

    @property
    def label(self) -> str:
        """Its short commit, with a plus if files differed from it; else the name of its file."""
        if self.commit is None:
            return self.path.stem
        return f"{self.commit[:10]}{'+' if self.run.git_dirty else ''}"

    @property
    def commit_url(self) -> str:
        """Web page of the commit; empty if the repository is not known."""
        environment = _environment_of(self.results)
        url = environment.repository_url if environment else None
        return f"{url}/commit/{self.commit}" if url and self.commit else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The runs of a folder, the earliest first, and what a reader must know about them."""

    folder: Path
    runs: tuple[HistoryRun, ...]
    notes: tuple[str, ...]

    @property
    def latest(self) -> tuple[HistoryRun, ...]:
        """The last run of each environment."""
        return _latest(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is needed of a history. The rest is not read."""

    is_wanted: Callable[[Case], bool]
    """Whether the records of a case are needed."""
    columns: tuple[str, ...]
    """Fields of a record that are needed, beside case, environment and status."""
    is_narrow: bool = True
    """Whether few cases are wanted."""
    command: str = ""
    """Runs are needed whose command has this text, such as "preset ci"."""
    last: int | None = None
    """Number of runs that are needed, the last ones; None for all."""
    only_latest: bool = False
    """Whether only the last run of each environment is needed."""

    @property
    def is_one_pass(self) -> bool:
        """Whether a run is needed or not whatever other runs there are."""
        return self.is_narrow and self.last is None and not self.only_latest

    def is_needed(self, run: StoredRun) -> bool:
        """Whether the command of a run is one of those that are needed."""
        return self.command in run.runs[-1].command if run.runs else False


def read_history(
    folder: Path,
    *,
    samples: bool = False,
    without: Path | None = None,
    selection: Selection | None = None,
) -> History:
    """Read the runs of a folder; files that cannot be read are named in the notes.

    Args:
        folder: its subfolders are not read.
        samples: whether the raw samples are needed.
        without: a results file that is not of the history, though it may be in the folder.
        selection: what is needed; None for everything.

    Raises:
        HistoryError: there is no such folder, or too many records are needed.
        NotMeasuredError: no file in it can be used.
    """
    if not folder.is_dir():
        raise HistoryError(f"{folder}: no such folder; a history is a folder of results files")
    records = None
    if selection is not None and selection.is_one_pass:
        stored, records, errors = scan_folder(
            folder, selection.columns, selection.is_wanted, selection.is_needed
        )
    else:
        stored, errors = stored_runs(folder)
    if without is not None and without.exists():
        stored = [run for run in stored if not run.file.samefile(without)]
    notes: list[str] = []
    runs: dict[str, HistoryRun] = {}
    for run in stored:
        try:
            dated = _dated(run)
        except StoreError as error:
            errors.append(error)
            continue
        first = runs.setdefault(run.digest, dated)
        if first is not dated:
            notes.append(f"left out: {dated.name} holds the same measurements as {first.name}")
    kept = sorted(
        runs.values(), key=lambda run: (run.committed or run.started, run.started, run.name)
    )
    if selection is not None:
        kept = _selected(folder, kept, selection)
    if records is None:
        records, unread = _records_of(folder, kept, samples, selection)
        errors += unread
    kept = [
        replace(run, results=replace(run.results, records=records[run.path]))
        for run in kept
        if run.path in records
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


def _dated(stored: StoredRun) -> HistoryRun:
    if not stored.runs or not stored.records:
        raise StoreError(f"{stored.path}: holds no record of a run")
    results = Results(records=(), runs=stored.runs, environments=stored.environments)
    environment = _environment_of(results)
    written = environment.git_commit_utc if environment else None
    try:
        started = _time(stored.runs[0].started_utc)
        committed = _time(written) if written else None
    except ValueError as error:
        raise StoreError(f"{stored.path}: does not say when it was measured: {error}") from None
    return HistoryRun(stored=stored, results=results, started=started, committed=committed)


def _environment_of(results: Results) -> Environment | None:
    first = next(iter(results.environments), "")  # of a run in several environments
    return results.environments.get(results.runs[-1].environment or first)


def _selected(folder: Path, runs: list[HistoryRun], selection: Selection) -> list[HistoryRun]:
    kept = [run for run in runs if selection.is_needed(run.stored)]
    if runs and not kept:
        raise HistoryError(
            f"{folder}: no run has {selection.command!r} in its command; the last is "
            f"{runs[-1].run.command!r}"
        )
    kept = kept if selection.last is None else kept[-selection.last :]
    return list(_latest(kept)) if selection.only_latest else kept


def _latest(runs: Sequence[HistoryRun]) -> tuple[HistoryRun, ...]:
    last = {run.run.environment: run for run in runs}
    return tuple(run for run in runs if last[run.run.environment] is run)


def _records_of(
    folder: Path, runs: Sequence[HistoryRun], samples: bool, selection: Selection | None
) -> tuple[dict[Path, tuple[Record, ...]], list[StoreError]]:
    """Return the records of each run by its path, and why some files cannot be read."""
    stored = [run.stored for run in runs]
    number = sum(run.records for run in stored)
    if number > _MOST_RECORDS and not (selection is not None and selection.is_narrow):
        raise HistoryError(
            f"{folder}: {number:,} records of {count(len(runs), 'run')} are too many to compare at "
            "once; choose some with `layernorm-bench history` and --case, --worst or --last"
        )
    if selection is None:
        return read_runs(stored, samples=samples)
    return scan_runs(stored, selection.columns, selection.is_wanted)


def _time(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _notes_on(runs: Sequence[HistoryRun]) -> Iterator[str]:
    """Yield notes on runs that are in order, each with an example and the number of others."""
    noted: dict[str, list[str]] = {}
    for before, run in zip([None, *runs], runs, strict=False):
        facts = {
            "without the time of a commit: put in order by the start of the run": not run.committed,
            "started before its commit was made, so a clock was wrong": run.committed is not None
            and run.started < run.committed,
            "started in another order: earlier than the run of an earlier commit; the order of "
            "commits is used": before is not None and run.started < before.started,
            "with uncommitted changes (marked +), which no commit range names": run.run.git_dirty,
            f"cut short, {run.why_unfinished}": run.why_unfinished,
        }
        for text in (text for text, is_so in facts.items() if is_so):
            noted.setdefault(text.partition(",")[0], []).append(f"{run.name}: {text}")
    for examples in noted.values():
        yield f"{examples[0]}{f' (and {len(examples) - 1:,} more)' * (len(examples) > 1)}"

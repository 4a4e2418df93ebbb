"""The runs of a folder, in the order of their commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from harness.records import Environment, Run
from harness.records.refusal import Refusal
from harness.records.text import count
from harness.regression.compare import NotMeasuredError
from harness.store import SCHEMA_VERSION, Results, StoreError, header_of, read

__all__ = ["History", "HistoryError", "HistoryRun", "read_history"]


class HistoryError(Refusal):
    """A folder cannot be read as a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """One results file of a history."""

    path: Path
    results: Results
    schema_version: int
    started: datetime
    committed: datetime | None
    """When its commit was made; None where the file does not say."""

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
        last = {run.run.environment: run for run in self.runs}
        return tuple(run for run in self.runs if last[run.run.environment] is run)


def read_history(folder: Path, *, samples: bool = False, without: Path | None = None) -> History:
    """Read the results files of a folder; those that cannot be read are named in the notes.

    Args:
        folder: its subfolders are not read.
        samples: whether the raw samples are needed.
        without: a results file that is not of the history, though it may be in the folder.

    Raises:
        HistoryError: there is no such folder.
        NotMeasuredError: no file in it can be used.
    """
    if not folder.is_dir():
        raise HistoryError(f"{folder}: no such folder; a history is a folder of results files")
    notes: list[str] = []
    runs: list[HistoryRun] = []
    for path in sorted(folder.glob("*.parquet")):
        if without is not None and without.exists() and path.samefile(without):
            continue
        try:
            runs.append(_read_run(path, samples))
        except StoreError as error:
            notes.append(f"left out: {error}")
    if not runs:
        why = f" ({notes[0]})" if notes else ""
        raise NotMeasuredError(
            f"{folder}: holds no results file that can be read{why}; keep one file per commit "
            f"there, such as `layernorm-bench run --preset ci --out {folder}/NAME.parquet`"
        )
    journals = [each for each in folder.glob("*.jsonl") if each.stat().st_size]
    if journals:
        notes.append(
            f"left out: {count(len(journals), 'unfinished run')}, such as {journals[0].name}; "
            "continue with --resume"
        )
    kept = _without_copies(runs, notes)
    kept.sort(key=lambda each: (each.committed or each.started, each.started, each.name))
    return History(folder=folder, runs=tuple(kept), notes=(*notes, *_notes_on(kept)))


def _read_run(path: Path, samples: bool) -> HistoryRun:
    version = header_of(path).version
    results = read(path, samples=samples)
    if not results.runs or not results.records:
        raise StoreError(f"{path}: holds no record of a run")
    environment = _environment_of(results)
    written = environment.git_commit_utc if environment else None
    try:
        started = _time(results.runs[0].started_utc)
        committed = _time(written) if written else None
    except ValueError as error:
        raise StoreError(f"{path}: does not say when it was measured: {error}") from None
    return HistoryRun(
        path=path, results=results, schema_version=version, started=started, committed=committed
    )


def _environment_of(results: Results) -> Environment | None:
    return results.environments.get(results.runs[-1].environment or results.records[0].environment)


def _time(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _without_copies(runs: Sequence[HistoryRun], notes: list[str]) -> list[HistoryRun]:
    """Leave out files that hold the same measurements as another."""
    kept: dict[tuple[datetime, str], list[HistoryRun]] = {}
    for run in runs:
        alike = kept.setdefault((run.started, run.run.command), [])
        first = next((each for each in alike if each.results.records == run.results.records), None)
        if first is None:
            alike.append(run)
        else:
            notes.append(f"left out: {run.name} holds the same measurements as {first.name}")
    return [run for alike in kept.values() for run in alike]


def _notes_on(runs: Sequence[HistoryRun]) -> Iterator[str]:
    """Yield notes on runs that are in order."""
    undated = [run for run in runs if run.committed is None]
    if undated:
        yield (
            f"{count(len(undated), 'run')} without the time of a commit, such as "
            f"{undated[0].name}: put in order by the start of the run"
        )
    backwards = [(one, two) for one, two in pairwise(runs) if two.started < one.started]
    if backwards:
        one, two = backwards[0]
        yield (
            f"the order of commits is used where runs were started in another order: {two.name} "
            f"is of a later commit than {one.name}, and was started earlier"
            f"{_and_more(len(backwards))}"
        )
    impossible = [run for run in runs if run.committed and run.started < run.committed]
    if impossible:
        yield (
            f"{impossible[0].name} was started before its commit was made, so a clock was wrong"
            f"{_and_more(len(impossible))}"
        )
    if dirty := sum(bool(run.run.git_dirty) for run in runs):
        yield (
            f"{count(dirty, 'run')} had uncommitted changes (marked +), which no commit range names"
        )
    unfinished = [run for run in runs if run.results.why_unfinished]
    if unfinished:
        yield (
            f"{unfinished[0].name} was cut short, {unfinished[0].results.why_unfinished}"
            f"{_and_more(len(unfinished))}"
        )
    older = sorted({run.schema_version for run in runs} - {SCHEMA_VERSION})
    if older:
        number = sum(run.schema_version in older for run in runs)
        yield (
            f"{count(number, 'file')} of an older schema (version "
            f"{', '.join(map(str, older))}); what such files lack is left out"
        )


def _and_more(number: int) -> str:
    return f" (and {number - 1:,} more)" if number > 1 else ""

"""Merge the results files and journals of several runs, such as the shards of a sweep, into one.

Each record is read twice and none is kept, so that millions can be merged: the first reading finds
conflicts, the second writes. What is kept is a checksum per record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from harness.records import Environment, Record, Run
from harness.records.text import count
from harness.store.error import StoreError
from harness.store.journal import entries_of
from harness.store.parquet import header_of, records_of
from harness.store.writer import ResultsWriter

__all__ = ["ConflictError", "Merged", "merge"]

_DIGEST_BYTES = 12  # 2**96 values: among a billion records, two meet with a chance of 1e-11
_MOST_NAMED = 5  # conflicts in a message: enough to see what they have in common


class ConflictError(StoreError):
    """Files that cannot be merged, because they disagree."""


class EmptyError(StoreError):
    """Files without a record."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge has written."""

    records: int
    planned: int
    """Cases that the merged runs had planned."""
    duplicates: int
    """Records that were in several files, and are kept once."""
    environments: int
    unfinished: tuple[Path, ...]
    """Files of runs that were cut short."""
    is_locked: bool
    """Whether the file could be locked while it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    path: Path
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    contents: dict[bytes, bytes]
    """Checksum of each record, by the checksum of its case and environment."""

    @property
    def is_unfinished(self) -> bool:
        ended = any(run.wall_s is not None for run in self.runs[-1:])
        return not ended or len(self.contents) < self.planned

    @property
    def planned(self) -> int:
        """Cases that its run had planned; each invocation that resumes it plans all again."""
        return max((run.planned for run in self.runs), default=0)


def merge(paths: Sequence[Path], run: Run, out: Path) -> Merged:
    """Write the records of several files to one results file, in the order of the files.

    A record that is in several files is written once. A case may have a record in each of several
    environments.

    Args:
        paths: results files, and journals of unfinished runs.
        run: the merge itself; it is stored as the last run, and the cases planned are filled in.
        out: the results file to write. It must not exist.

    Raises:
        EmptyError: no file holds a record.
        ConflictError: two files have different records of a case in one environment, or are of two
            revisions in one environment.
        StoreError: a file cannot be read, or ``out`` exists or cannot be written.
    """
    if out.exists():
        raise StoreError(f"{out} exists; choose another --out")
    sources = [_survey(path) for path in paths]
    if not any(source.contents for source in sources):
        raise EmptyError("the files hold no record: nothing was measured")
    environments = _joined_environments(sources)
    _refuse_conflicts(sources)
    planned = sum(_planned_of(group) for group in _groups(sources))
    runs = _joined_runs(sources)
    with ResultsWriter(
        out, [*runs, _as_run(run, runs, environments, planned)], environments
    ) as new:
        written: set[bytes] = set()
        for source in sources:
            for record in _records(source.path):
                key = _key(record)
                # of a journal, the last record of a case counts; a running shard may add others
                if key not in written and source.contents.get(key) == _checksum(repr(record)):
                    written.add(key)
                    new.add(record)
    return Merged(
        records=len(written),
        planned=planned,
        duplicates=sum(len(source.contents) for source in sources) - len(written),
        environments=len(environments),
        unfinished=tuple(each.path for each in sources if each.is_unfinished),
        is_locked=new.is_locked,
    )


def _survey(path: Path) -> _Source:
    runs: list[Run] = []
    environments: dict[str, Environment] = {}
    contents: dict[bytes, bytes] = {}
    if path.suffix == ".jsonl":
        entries: Iterator[Run | Environment | Record] = entries_of(path)
    else:
        header = header_of(path)
        entries = chain(header.runs, header.environments.values(), records_of(path))
    for entry in entries:
        if isinstance(entry, Run):
            runs.append(entry)
        elif isinstance(entry, Environment):
            environments[entry.fingerprint] = entry
        else:
            contents[_key(entry)] = _checksum(repr(entry))
    return _Source(path=path, runs=tuple(runs), environments=environments, contents=contents)


def _records(path: Path) -> Iterator[Record]:
    if path.suffix != ".jsonl":
        return records_of(path)
    return (entry for entry in entries_of(path) if isinstance(entry, Record))


def _key(record: Record) -> bytes:
    return _checksum(f"{record.environment}/{record.case.id}")


def _checksum(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=_DIGEST_BYTES).digest()


def _joined_environments(sources: Sequence[_Source]) -> dict[str, Environment]:
    joined: dict[str, Environment] = {}
    where: dict[str, Path] = {}
    for source in sources:
        for name, each in source.environments.items():
            before = joined.get(name, each)
            if _revision(before) != _revision(each):
                raise ConflictError(
                    f"{where[name]} is of {_revision(before)} and {source.path} of "
                    f"{_revision(each)}, in one environment ({name}); measure one of them again, "
                    "or give both files to `layernorm-bench report`, which keeps them apart"
                )
            joined[name], where[name] = each, source.path
    return joined


def _revision(environment: Environment) -> str:
    commit = environment.git_commit or "no commit"
    return f"{commit[:12]}{' with changes' if environment.git_dirty else ''}"


def _refuse_conflicts(sources: Sequence[_Source]) -> None:
    """Refuse different records of a case in one environment."""
    first: dict[bytes, _Source] = {}
    conflicts: dict[bytes, tuple[Path, Path]] = {}
    for source in sources:
        for key, content in source.contents.items():
            other = first.setdefault(key, source)
            if other.contents[key] != content:
                conflicts.setdefault(key, (other.path, source.path))
    if not conflicts:
        return
    named = list(conflicts.items())[:_MOST_NAMED]
    names = {
        _key(record): record.case.id
        for path in dict.fromkeys(path for _, (path, _) in named)
        for record in _records(path)
    }
    listed = "; ".join(f"{names[key]} in {one} and {other}" for key, (one, other) in named)
    more = f", and {len(conflicts) - len(named):,} more" if len(conflicts) > len(named) else ""
    raise ConflictError(
        f"{count(len(conflicts), 'case')} measured twice in one environment, with different "
        f"results: {listed}{more}; leave out one file of each pair"
    )


def _joined_runs(sources: Sequence[_Source]) -> list[Run]:
    """Return the runs of all files, each once: its end is in one file, and not in its journal."""
    joined: dict[tuple[str | None, ...], Run] = {}
    for run in chain.from_iterable(source.runs for source in sources):
        known = joined.setdefault(_identity(run), run)
        if known.wall_s is None:
            joined[_identity(run)] = run
    return list(joined.values())


def _identity(run: Run) -> tuple[str | None, ...]:
    return run.name, run.started_utc, run.command, run.environment


def _groups(sources: Sequence[_Source]) -> list[list[_Source]]:
    """Group the files that share a run: copies, and a results file with its former journal."""
    groups: list[list[_Source]] = []
    for source in sources:
        runs = set(map(_identity, source.runs))
        shared = [
            group
            for group in groups
            if any(runs & set(map(_identity, each.runs)) for each in group)
        ]
        groups = [group for group in groups if group not in shared]
        groups.append([*chain.from_iterable(shared), source])
    return groups


def _planned_of(group: Sequence[_Source]) -> int:
    held = set(chain.from_iterable(source.contents for source in group))
    return max(len(held), *(source.planned for source in group))


def _as_run(
    merge_run: Run, runs: Sequence[Run], environments: dict[str, Environment], planned: int
) -> Run:
    """Return the merge as the run that finished the file: what its runs share, and their sums."""
    names = {run.environment for run in runs}
    revisions = {(each.git_commit, each.git_dirty) for each in environments.values()}
    commit, is_dirty = revisions.pop() if len(revisions) == 1 else (None, None)
    return replace(
        merge_run,
        planned=planned,
        environment=names.pop() if len(names) == 1 else None,
        git_commit=commit,
        git_dirty=is_dirty,
        wall_s=sum(run.wall_s or 0.0 for run in runs),
    )

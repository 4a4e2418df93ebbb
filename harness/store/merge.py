"""The shards of a sweep become one run.

Merging reads each record twice and keeps none, so that millions can be merged: the first reading
finds conflicts, the second writes. What is kept is a checksum per record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from harness.records import Environment, Record, Run
from harness.records.refusal import NotMeasuredError, StoreError
from harness.records.text import count
from harness.store.journal import Entry, located_entries
from harness.store.parquet import (
    header_of,
    records_of,
    writing,
)
from harness.store.schema import why_unfinished

_DIGEST_BYTES = 12  # 2**96 values: among a billion records, two meet with a chance of 1e-11


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    path: Path
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    contents: dict[bytes, bytes]
    """Checksum of each record, by the checksum of its case and environment."""


def merge(paths: Sequence[Path], run: Run, out: Path) -> Merged:
    """Write the records of several files to one results file, in the order of the files.

    A record that is in several files is written once. A case may have a record in each of several
    environments.

    Args:
        paths: results files, and journals of unfinished runs.
        run: the merge itself; it is stored as the last run, with what the runs share and their
            sums filled in.
        out: the results file to write. It must not exist.

    Raises:
        NotMeasuredError: no file holds a record.
        StoreError: two files have different records of a case in one environment, or are of two
            revisions in one environment; a file cannot be read; or ``out`` exists or cannot be
            written.
    """
    if out.exists():
        raise StoreError(f"{out} exists; choose another --out")
    sources = [_survey(path) for path in paths]
    if not any(source.contents for source in sources):
        raise NotMeasuredError("the files hold no record: nothing was measured")
    environments = _joined_environments(sources)
    _refuse_conflicts(sources)
    runs = _joined_runs(sources)
    names = {earlier.environment for earlier in runs}
    revisions = {(found.git_commit, found.git_dirty) for found in environments.values()}
    commit, is_dirty = revisions.pop() if len(revisions) == 1 else (None, None)
    run = replace(
        run,
        planned=_planned(sources),
        environment=names.pop() if len(names) == 1 else None,
        git_commit=commit,
        git_dirty=is_dirty,
        wall_s=sum(earlier.wall_s or 0.0 for earlier in runs),
    )
    with writing(out, [*runs, run], environments) as new:
        written: set[bytes] = set()
        for source in sources:
            entries = _entries(source.path)
            for record in (entry for entry in entries if isinstance(entry, Record)):
                key = _key(record)
                # of a journal, the last record of a case counts; a running shard may add others
                if key not in written and source.contents.get(key) == _checksum(repr(record)):
                    written.add(key)
                    new.add(record)
    return Merged(
        records=len(written),
        planned=run.planned,
        duplicates=sum(len(source.contents) for source in sources) - len(written),
        environments=len(environments),
        unfinished=tuple(
            source.path
            for source in sources
            if not source.runs or why_unfinished(source.runs, len(source.contents))
        ),
    )


def _survey(path: Path) -> _Source:
    runs: list[Run] = []
    environments: dict[str, Environment] = {}
    contents: dict[bytes, bytes] = {}
    for entry in _entries(path):
        if isinstance(entry, Run):
            runs.append(entry)
        elif isinstance(entry, Environment):
            environments[entry.fingerprint] = entry
        else:
            contents[_key(entry)] = _checksum(repr(entry))
    return _Source(path=path, runs=tuple(runs), environments=environments, contents=contents)


def _entries(path: Path) -> Iterator[Entry]:
    if path.suffix == ".jsonl":
        return (entry for _, entry in located_entries(path))
    header = header_of(path)
    return chain(header.runs, header.environments.values(), records_of(path))


def _key(record: Record) -> bytes:
    return _checksum(f"{record.environment}/{record.case.id}")


def _checksum(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=_DIGEST_BYTES).digest()


def _joined_environments(sources: Sequence[_Source]) -> dict[str, Environment]:
    joined: dict[str, tuple[Environment, Path]] = {}
    for source in sources:
        for name, environment in source.environments.items():
            before, where = joined.get(name, (environment, source.path))
            if _revision(before) != _revision(environment):
                raise StoreError(
                    f"{where} is of {_revision(before)} and {source.path} of "
                    f"{_revision(environment)}, in one environment ({name}); measure one of them "
                    "again, or give both files to `layernorm-bench report`, which keeps them apart"
                )
            joined[name] = environment, source.path
    return {name: environment for name, (environment, _) in joined.items()}


def _revision(environment: Environment) -> str:
    commit = environment.git_commit or "no commit"
    return f"{commit[:12]}{' with changes' if environment.git_dirty else ''}"


def _refuse_conflicts(sources: Sequence[_Source]) -> None:
    """Refuse different records of a case in one environment."""
    first: dict[bytes, _Source] = {}
    conflicts = Counter[tuple[Path, Path]]()
    for source in sources:
        for key, content in source.contents.items():
            before = first.setdefault(key, source)
            conflicts[before.path, source.path] += before.contents[key] != content
    listed = [
        f"{count(number, 'case')} in {one} and {other}"
        for (one, other), number in conflicts.items()
        if number
    ]
    if listed:
        raise StoreError(
            "measured twice in one environment, with different results: "
            f"{'; '.join(listed)}; leave out one file of each pair"
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


def _planned(sources: Sequence[_Source]) -> int:
    """Return how many cases were planned; files that share a run, such as copies, count once."""
    groups: list[tuple[set[tuple[str | None, ...]], set[bytes], int]] = []
    for source in sources:
        runs, held = {*map(_identity, source.runs)}, {*source.contents}
        # each invocation that resumes a run plans all of its cases again
        planned = max((run.planned for run in source.runs), default=0)
        for group in [group for group in groups if group[0] & runs]:
            groups.remove(group)
            runs, held, planned = runs | group[0], held | group[1], max(planned, group[2])
        groups.append((runs, held, planned))
    return sum(max(len(held), planned) for _, held, planned in groups)

"""The records that a run has on disk: in its journal, and in the results file that it continues.

They stay there while the run lasts, so that its memory does not grow with their samples.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.records import Case, Environment, Record, Run
from harness.store import Journal, header_of, located_entries, records_at, records_of
from harness.sweep import Planned

__all__ = ["KeptRecords"]

_NOT_COPIED = -1  # no offset: the record is in the results file only


class KeptRecords:
    """Where in the journal of a run the record of each case and environment is."""

    def __init__(self, out: Path, journal: Journal, planned: Sequence[Planned]) -> None:
        """Look through the files of a run, and write nothing.

        Both files may hold records, and neither all of them: a finished run was being continued.

        Args:
            out: the results file; it need not exist.
            journal: of the run; it may be empty.
            planned: all cases of the run.

        Raises:
            StoreError: a file cannot be read.
        """
        self._out, self._journal, self._planned = out, journal, planned
        self._places = {each.case: place for place, each in enumerate(planned)}
        self._offsets: dict[tuple[Case, str], int] = {}
        self.runs: tuple[Run, ...] = ()
        """The earlier invocations, in order."""
        self.environments: dict[str, Environment] = {}
        """Their environments, by fingerprint."""
        if out.exists():
            header = header_of(out)
            self.runs, self.environments = header.runs, dict(header.environments)
            self._offsets = {self._key(record): _NOT_COPIED for record in records_of(out)}
        self._to_copy: list[Run | Environment] = [*self.runs, *self.environments.values()]
        self._look_through_journal()

    def _look_through_journal(self) -> None:
        stored = [*map(_identity, self.runs)]
        for offset, entry in located_entries(self._journal.path):
            if isinstance(entry, Record):
                self._offsets[self._key(entry)] = offset
                continue
            if isinstance(entry, Environment):
                self.environments[entry.fingerprint] = entry
            elif _identity(entry) not in stored:
                self.runs = (*self.runs, entry)
            self._to_copy = [each for each in self._to_copy if _identity(each) != _identity(entry)]

    @property
    def measured(self) -> Collection[tuple[Case, str]]:
        """The cases that have a record, each with the environment that it was measured in."""
        return self._offsets.keys()

    def begin(self, run: Run, environments: Iterable[Environment]) -> None:
        """Write the start of a run to the journal, after all that only the results file holds.

        Raises:
            StoreError: a file cannot be read or written.
        """
        for entry in self._to_copy:
            self._journal.add(entry)
        if _NOT_COPIED in self._offsets.values():
            for record in records_of(self._out):
                if self._offsets[self._key(record)] == _NOT_COPIED:
                    self.add(record)
        self._journal.add(run)
        for environment in environments:
            self._journal.add(environment)

    def add(self, record: Record) -> None:
        """Append a record to the journal.

        Raises:
            StoreError: the disk is full, or the journal cannot be written any more.
        """
        self._offsets[self._key(record)] = self._journal.add(record)

    def in_order(self) -> Iterator[Record]:
        """Yield all records in the order of the plan; first those that are not planned any more.

        Raises:
            StoreError: the journal cannot be read.
        """
        keys = sorted(self._offsets, key=lambda key: self._places.get(key[0], -1))
        offsets = (self._offsets[key] for key in keys)
        for key, record in zip(keys, records_at(self._journal.path, offsets), strict=True):
            yield replace(record, case=key[0], environment=key[1])

    def _key(self, record: Record) -> tuple[Case, str]:
        """Return the case and environment of a record, as the same objects each time."""
        place = self._places.get(record.case)
        case = record.case if place is None else self._planned[place].case
        return case, sys.intern(record.environment)


def _identity(entry: Run | Environment) -> Run | str:
    """Return what is equal in a run and its start, which the journal has."""
    if isinstance(entry, Environment):
        return entry.fingerprint
    return replace(entry, wall_s=None, overhead_ratio=None)

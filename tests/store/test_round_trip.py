"""What is written is read back, from parquet and from a journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories.stored import BARE, FULL, RESULTS, RUN, results, same, without_samples
from hypothesis import given, settings

from harness.records import Status
from harness.store import (
    Journal,
    Results,
    StoreError,
    located_entries,
    read,
    read_journal,
    records_at,
    write,
)


@settings(max_examples=15)
@given(results)
def test_results_written_to_parquet_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: Results
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.parquet"
    write(wanted, path)
    assert same(read(path), wanted)
    assert same(read(path, samples=False), without_samples(wanted))


@settings(max_examples=15)
@given(results)
def test_results_written_to_a_journal_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: Results
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.jsonl"
    path.unlink(missing_ok=True)
    with Journal(path) as journal:
        for entry in (*wanted.environments.values(), *wanted.runs, *wanted.records):
            journal.add(entry)
    last = {record.case.id: record for record in wanted.records}
    assert same(read_journal(path), replace(wanted, records=tuple(last.values())))


def test_only_the_samples_can_be_left_out(path: Path) -> None:
    write(RESULTS, path)
    assert same(read(path, samples=False), without_samples(RESULTS))
    assert read(path, samples=False).records[0].latency.arms == ()


def test_later_entries_of_a_journal_win(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        file.add(replace(BARE, status=Status.OK))
    assert [record.status for record in read_journal(journal).records] == [Status.OK]


def test_a_journal_goes_on_where_it_stopped(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(RUN)
        file.add(FULL)
    with Journal(journal) as file:
        file.add(BARE)
    assert same(read_journal(journal).records, (FULL, BARE))


def test_a_record_is_read_where_its_line_begins(journal: Path) -> None:
    with Journal(journal) as file:
        offsets = [file.add(entry) for entry in (RUN, FULL)]
    with journal.open("ab") as torn:
        torn.write(b'{"Record": {"case"')
    with Journal(journal) as file:
        offsets.append(file.add(BARE))
        assert same([*records_at(journal, reversed(offsets[1:]))], [BARE, FULL])
    assert [offset for offset, _ in located_entries(journal)] == offsets
    for wrong, why in ((offsets[0], "no record"), (offsets[1] + 1, "damaged")):
        with pytest.raises(StoreError, match=why):
            list(records_at(journal, [wrong]))


@pytest.mark.parametrize(
    ("run", "is_unfinished"), [({}, False), ({"wall_s": None}, True), ({"planned": 9}, True)]
)
def test_a_run_without_an_end_or_with_cases_left_is_unfinished(
    run: dict[str, Any], is_unfinished: bool
) -> None:
    finished = replace(RUN, wall_s=1.0)
    found = replace(RESULTS, runs=(replace(finished, **run),))
    assert bool(found.why_unfinished) is is_unfinished


def test_an_entry_is_on_disk_before_add_returns(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        assert read_journal(journal).records == (BARE,)  # the journal is still open


def test_a_journal_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "results.jsonl"
    Journal(path).close()
    assert path.is_file()

"""What is written is read back, from parquet and from a journal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from stored import BARE, CASE, FULL, RESULTS, RUN, results, same, without_samples

from harness.records import Record, Status
from harness.store import Journal, Results, read, read_journal, write
from harness.store.plain import from_plain, to_plain


@settings(max_examples=30)
@given(results)
def test_what_is_written_to_parquet_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: Results
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.parquet"
    write(wanted, path)
    assert same(read(path), wanted)
    assert same(read(path, samples=False), without_samples(wanted))


@settings(max_examples=30)
@given(results)
def test_what_is_written_to_a_journal_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: Results
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.jsonl"
    path.unlink(missing_ok=True)
    with Journal(path) as journal:
        for each in (*wanted.environments.values(), *wanted.runs, *wanted.records):
            journal.add(each)
    last = {each.case.id: each for each in wanted.records}
    assert same(read_journal(path), replace(wanted, records=tuple(last.values())))


def test_plain_values_are_json_all_through() -> None:
    assert same(from_plain(Record, json.loads(json.dumps(to_plain(FULL)))), FULL)


def test_records_keep_their_order(path: Path) -> None:
    many = tuple(replace(BARE, case=replace(CASE, seed=seed)) for seed in range(50, 0, -1))
    write(replace(RESULTS, records=many), path)
    assert read(path).records == many


def test_no_records_are_a_results_file_too(path: Path) -> None:
    empty = Results(records=(), runs=(), environments={})
    write(empty, path)
    assert read(path) == empty


def test_samples_can_be_left_out_and_nothing_else_is(path: Path) -> None:
    write(RESULTS, path)
    assert same(read(path, samples=False), without_samples(RESULTS))
    assert read(path, samples=False).records[0].latency.arms == ()


def test_later_entries_of_a_journal_win(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        file.add(replace(BARE, status=Status.OK))
    assert [each.status for each in read_journal(journal).records] == [Status.OK]


def test_a_journal_goes_on_where_it_stopped(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(RUN)
        file.add(FULL)
    with Journal(journal) as file:
        file.add(BARE)
    assert same(read_journal(journal).records, (FULL, BARE))


def test_an_entry_is_on_disk_before_add_returns(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        assert read_journal(journal).records == (BARE,)  # the journal is still open


def test_a_journal_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "results.jsonl"
    Journal(path).close()
    assert path.is_file()

"""A damaged file is refused; a torn last line costs only itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories.stored import BARE, FULL, RESULTS, read_or_refusal, same

from harness.records import Arm
from harness.store import Journal, StoreError, from_plain, read, read_journal, to_plain, write


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello, world\n" * 100, b"\0" * 1000])
def test_a_file_that_is_not_parquet_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_is_named_with_the_next_step(path: Path) -> None:
    with pytest.raises(StoreError, match="no such file; make one with `layernorm-bench run`"):
        read(path)


def test_a_folder_is_not_a_results_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=str(tmp_path)):
        read(tmp_path)


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    write(RESULTS, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError):
            read(path)


FOOTER = "footer"
DATA = "data"


def flipped(whole: bytes, part: str) -> Iterator[bytes]:
    """Copies of a results file with one bit flipped, in every 197th byte of a part of it."""
    footer = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    positions = range(footer) if part == DATA else range(footer, len(whole))
    for position in positions[::197]:  # a prime, so that every bit of a byte has its turn
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        yield bytes(damaged)


@pytest.mark.parametrize("part", [DATA, FOOTER])
def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(path: Path, part: str) -> None:
    write(RESULTS, path)
    damaged = list(flipped(path.read_bytes(), part))
    assert len(damaged) > 20
    silently_changed = 0
    for content in damaged:
        path.write_bytes(content)
        found = read_or_refusal(path)
        if isinstance(found, str):
            assert str(path) in found
        else:
            silently_changed += not same(found, RESULTS)
    assert silently_changed == 0


def test_a_torn_last_line_is_skipped(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        file.add(FULL)
    whole = journal.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole), 97):
        journal.write_bytes(whole[:length])
        assert read_journal(journal).records == (BARE,)


def test_a_journal_reopened_after_a_torn_line_goes_on_on_a_fresh_one(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
    with journal.open("ab") as torn:
        torn.write(b'{"Record": {"case": {"impl')
    with Journal(journal) as file:
        file.add(FULL)
    assert same(read_journal(journal).records, (BARE, FULL))


def test_a_journal_that_is_one_torn_line_begins_again(journal: Path) -> None:
    journal.write_bytes(b'{"Record": {"case"')
    with Journal(journal) as file:
        file.add(BARE)
    assert read_journal(journal).records == (BARE,)


@pytest.mark.parametrize(
    "damage",
    [
        b'{"Record": {"case"',
        b"",
        b"[]",
        b"{}",
        b"3",
        b"null",
        b"\xff\xfe\x00",
        b'{"Record": {}}',
        b'{"Record": null}',
        b'{"Record": 3}',
        b'{"Record": "text"}',
        b'{"Something": {}}',
        b'{"Record": {}, "Run": {}}',
    ],
)
def test_a_damaged_line_in_the_middle_is_refused_with_its_number(
    journal: Path, damage: bytes
) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        file.add(FULL)
    first, second, _ = journal.read_bytes().split(b"\n")
    journal.write_bytes(b"\n".join([first, damage, second, b""]))
    with pytest.raises(StoreError, match=r"results\.jsonl: line 2 is damaged"):
        read_journal(journal)


@pytest.mark.parametrize("field", ["case", "environment", "status"])
def test_a_null_where_there_must_be_a_value_is_damage(journal: Path, field: str) -> None:
    plain = to_plain(BARE) | {field: None}
    journal.write_text(json.dumps({"Record": plain}) + "\n", encoding="utf-8")
    with pytest.raises(StoreError, match="line 1 is damaged"):
        read_journal(journal)


@pytest.mark.parametrize(
    "change",
    [{"name": 3}, {"calls_per_sample": "three"}, {"wall_s": [["list"]]}, {"epochs": {}}],
    ids=str,
)
def test_a_value_of_another_type_is_refused(change: dict[str, object]) -> None:
    assert FULL.latency is not None
    with pytest.raises(ValueError, match="should be"):
        from_plain(Arm, to_plain(FULL.latency.arms[0]) | change)


def test_a_missing_journal_is_named(journal: Path) -> None:
    with pytest.raises(StoreError, match=r"results\.jsonl: cannot be read: No such file"):
        read_journal(journal)

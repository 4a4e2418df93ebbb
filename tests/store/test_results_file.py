"""A results file is written in one step, read back, and refused if it is damaged or foreign."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories.stored import BARE, FULL, RESULTS, RUN, journalled, results, same
from hypothesis import given, settings

from harness.records import Arm, Record, Run
from harness.store import (
    SCHEMA_VERSION,
    Results,
    StoreError,
    from_plain,
    read,
    read_journal,
    record_schema,
    to_plain,
    write,
    writing,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A results file."""
    write(RESULTS, tmp_path / "results.parquet")
    return tmp_path / "results.parquet"


def without_samples(record: Record) -> Record:
    return replace(
        record,
        latency=record.latency and replace(record.latency, arms=()),
        cold=record.cold and replace(record.cold, arms=()),
    )


# --- reading -------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(results)
def test_results_are_read_back_from_both_formats(
    tmp_path_factory: pytest.TempPathFactory, wanted: Results
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.parquet"
    write(wanted, path)
    assert same(read(path), wanted)
    bare = tuple(map(without_samples, wanted.records))
    assert same(read(path, samples=False), replace(wanted, records=bare))
    path = path.with_suffix(".jsonl")
    path.unlink(missing_ok=True)
    journalled(path, *wanted.environments.values(), *wanted.runs, *wanted.records)
    last = {(record.case.id, record.environment): record for record in wanted.records}
    assert same(read_journal(path), replace(wanted, records=tuple(last.values())))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (RUN, None),
        (replace(RUN, planned=3), "2 of its 3 cases are there"),
        (replace(RUN, wall_s=None), "2 of its 2 cases are there"),
    ],
)
def test_a_run_without_an_end_or_with_cases_left_is_unfinished(run: Run, why: str | None) -> None:
    assert replace(RESULTS, runs=(run,)).why_unfinished == why


# --- files that are refused ----------------------------------------------------------------------


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def rewritten(change: Callable[[pa.Table], pa.Table], **texts: str) -> Callable[[Path], object]:
    """Return a function that changes a results file to what another program would have written."""

    def rewrite(path: Path) -> None:
        metadata = pq.read_metadata(path).metadata
        named = {f"layernorm_bench_{name}".encode(): text for name, text in texts.items()}
        changed = change(pq.read_table(path)).replace_schema_metadata(metadata | named)
        pq.write_table(changed, path)

    return rewrite


def unchanged(table: pa.Table) -> pa.Table:
    return table


def splendid(table: pa.Table) -> pa.Table:
    column = table.schema.get_field_index("status")
    return table.set_column(column, "status", pa.array(["splendid", "ok"]))


FOREIGN = pa.table({name: [1] for name in "abcdefgh"})


@pytest.mark.parametrize(
    ("spoil", "fact"),
    [
        *((holding(content), "not a readable results file, or damaged")
          for content in (b"", b"PAR1", b"hello, world\n" * 100, b"\0" * 1000)),
        (lambda path: pq.write_table(FOREIGN, path), "not the records of a run"),
        (rewritten(unchanged, schema=str(SCHEMA_VERSION + 1)), "has schema version "),
        (rewritten(lambda table: table.drop_columns(["status"])),
         "not records of this schema: ValueError('status: "),
        (rewritten(splendid), "not records of this schema: ValueError(\"status: "),
        (rewritten(lambda table: table.slice(1)), "damaged: its contents do not match"),
    ],
)  # fmt: skip
def test_another_file_is_refused_with_what_it_is(
    path: Path, spoil: Callable[[Path], object], fact: str
) -> None:
    spoil(path)
    with pytest.raises(StoreError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {fact}")


@pytest.mark.parametrize("name", ["runs", "environments"])
@pytest.mark.parametrize("text", ["{", "3", '{"a": 3}'])
def test_foreign_metadata_is_refused(path: Path, name: str, text: str) -> None:
    rewritten(unchanged, **{name: text})(path)
    with pytest.raises(StoreError, match=str(path)):
        read(path)


@pytest.mark.parametrize("change", [{"name": 3}, {"wall_s": [["list"]]}, {"epochs": {}}], ids=str)
def test_a_value_of_another_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="should be"):
        from_plain(Arm, to_plain(FULL.latency.arms[0]) | change)


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError):
            read(path)


def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(path: Path) -> None:
    whole, refused = path.read_bytes(), 0
    positions = range(0, len(whole), 397)  # a prime, so that every bit of a byte has its turn
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            found = read(path)
        except StoreError as error:
            assert str(path) in str(error)  # noqa: PT017 - both outcomes are right
            refused += 1
        else:
            assert same(found, RESULTS)
    assert refused > len(positions) // 2 > 20


# --- writing -------------------------------------------------------------------------------------


def test_a_results_file_is_written_by_one_process_at_a_time(path: Path) -> None:
    with writing(path, RESULTS.runs, RESULTS.environments) as first:
        with pytest.raises(StoreError, match="another run is writing it"):
            write(RESULTS, path)
        first.add(BARE)
    assert read(path).records == (BARE,)


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.parquet"
    os.mkfifo(pipe)
    with pytest.raises(StoreError, match="not a regular file"):
        write(RESULTS, pipe)
    assert pipe.is_fifo()


def test_a_reason_that_is_not_valid_text_does_not_lose_the_run(path: Path) -> None:
    # a message may hold the lone surrogates that Python makes of undecodable file names
    write(replace(RESULTS, records=(replace(BARE, reason="no file \udcff.py"),)), path)
    assert read(path).records[0].reason == r"no file \udcff.py"


# --- the schema ----------------------------------------------------------------------------------


def leaves(columns: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[tuple[str, pa.Field]]:
    """Every field of the schema, those inside structs and lists too."""
    for field in columns:
        name = f"{prefix}{field.name}"
        yield name, field
        inner = field.type
        while pa.types.is_list(inner):
            inner = inner.value_type
        if pa.types.is_struct(inner):
            yield from leaves(inner, f"{name}.")


FIELDS = dict(leaves(record_schema()))
UNITS = {"_s": b"second", "_bytes": b"byte", "_ulp": b"ulp", "_ratio": b"1"}
UNITS |= {"_w": b"watt", "_hz": b"hertz", "_c": b"degree Celsius"}


def test_every_field_is_described_with_the_unit_that_its_name_ends_in() -> None:
    for name, field in FIELDS.items():
        assert field.metadata[b"description"], f"{name} has no text under it in harness/records"
        unit = next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), None)
        assert field.metadata.get(b"unit") == unit, name

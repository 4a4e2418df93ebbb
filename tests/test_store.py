"""Results on disk: what is written is read back, and what cannot be read says so in words."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, make_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import records as nouns
from harness.records import (
    Allocation,
    Arm,
    ArmRole,
    Cache,
    Case,
    Clock,
    Cost,
    Direction,
    Doubt,
    DoubtKind,
    Environment,
    Errors,
    Estimate,
    Gpu,
    Latency,
    Memory,
    OutputErrors,
    Record,
    Run,
    Status,
)
from harness.store import (
    SCHEMA_VERSION,
    Journal,
    Results,
    StoreError,
    parquet,
    read,
    read_journal,
    write,
)
from harness.store.plain import from_plain, to_plain
from harness.store.schema import _descriptions, record_schema

# --- records of every kind -----------------------------------------------------------------------

numbers = st.floats()  # NaN and the infinities too: an error may be infinite
counts = st.integers(0, 2**62)
# surrogates are half characters: no valid text, and no UTF-8 can hold them
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def several(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=most).map(tuple)


def strategy_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, from the type alone, so that no field can be forgotten."""
    if type(None) in get_args(annotation):
        (inner,) = (each for each in get_args(annotation) if each is not type(None))
        return some(strategy_of(inner))
    if getattr(annotation, "__origin__", None) is tuple:
        items = get_args(annotation)
        if items[-1] is not Ellipsis:
            return st.tuples(*map(strategy_of, items))
        return several(strategy_of(items[0]))
    if is_dataclass(annotation):
        return st.builds(
            annotation, **{name: strategy_of(hint) for name, hint in hints_of(annotation)}
        )
    if issubclass(annotation, StrEnum):
        return st.sampled_from(annotation)
    return {str: texts, int: counts, float: numbers, bool: st.booleans()}[annotation]


def hints_of(owner: Any) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(owner)
    return ((each.name, hints[each.name]) for each in fields(owner))


results = st.builds(
    lambda records, runs, environments: Results(
        records=records,
        runs=runs,
        environments={each.fingerprint: each for each in environments},
    ),
    several(strategy_of(Record)),
    several(strategy_of(Run), 2),
    several(strategy_of(Environment), 2),
)


def same(one: object, other: object) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(one) == repr(other)


def without_samples(found: Results) -> Results:
    return replace(
        found,
        records=tuple(
            replace(
                each,
                latency=each.latency and replace(each.latency, arms=()),
                cold=each.cold and replace(each.cold, arms=()),
            )
            for each in found.records
        ),
    )


CASE = Case(implementation="native", shape=(8, 64), direction=Direction.BACKWARD)
ESTIMATE = Estimate(value=1.0, low=0.9, high=1.1)
FULL = Record(
    case=CASE,
    environment="0123456789ab",
    status=Status.WRONG,
    reason="y is 3 ulp off",
    errors=Errors(
        outputs=(
            OutputErrors(
                output="y",
                elements=512,
                unexpected_nonfinite=1,
                scaled_max_ulp=math.inf,
                scaled_p99_ulp=math.nan,
                scaled_mean_ulp=None,
                raw_max_ulp=1e300,
                max_abs=1e-300,
                normwise_ratio=0.0,
                bound_ratio=None,
                vacuous_elements=0,
            ),
        ),
        condition_max_ratio=math.inf,
        rho_min_ratio=0.5,
        mean_error_ratio=None,
        rstd_error_ratio=1e-7,
        algorithm="welford",
        reduction="tree",
        accumulate_dtype="float32",
        oracle="double_double",
    ),
    latency=Latency(
        clock=Clock.WALL,
        cache=Cache.WARM,
        allocation=Allocation.STEADY,
        per_call_s=ESTIMATE,
        reference_ratio=None,
        ceiling_ratio=0.7,
        model_bytes=4096,
        converged=True,
        processes=2,
        process_of_epoch=(0, 0, 1),
        minor_faults_ratio=None,
        compile_s=None,
        arms=(
            Arm(
                role=ArmRole.SUBJECT,
                name="native",
                calls_per_sample=3,
                wall_s=tuple(1e-6 * each for each in range(200)),
                cpu_s=None,
                epochs=tuple(range(200)),
            ),
        ),
    ),
    memory=Memory(
        peak_extra_bytes=1, allocated_bytes=2, allocations=3, saved_bytes=None, minimum_bytes=1
    ),
    warnings=(Doubt(kind=DoubtKind.NOISY, advice="close the browser"),),
    cost=Cost(total_s=1.0, guest_s=0.5, oracle_s=0.25, sampling_s=0.125),
)
BARE = Record(case=replace(CASE, seed=1), environment="0123456789ab", status=Status.CRASHED)
RUN = Run(
    name="first", started_utc="2025-01-01T00:00:00Z", command="run", planned=2, version="0.1.0"
)
ENVIRONMENT = Environment(
    cpu="Ünïcode CPU \N{GREEK SMALL LETTER MU}",
    cpu_count=2,
    cpu_capability="AVX2",
    memory_bytes=None,
    platform="Linux",
    python="3.11.7",
    packages=(("torch", "2.13.0"),),
    compiler=None,
    gpus=(Gpu(name="G", uuid="u", memory_bytes=1, power_limit_w=None, compute_capability="9.0"),),
    nvml="580",
    git_commit=None,
    git_dirty=None,
    load_average=0.5,
)
RESULTS = Results(
    records=(FULL, BARE), runs=(RUN,), environments={ENVIRONMENT.fingerprint: ENVIRONMENT}
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.parquet"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


# --- round trips ---------------------------------------------------------------------------------


@given(results)
def test_what_is_written_to_parquet_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: Results
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.parquet"
    write(wanted, path)
    assert same(read(path), wanted)
    assert same(read(path, samples=False), without_samples(wanted))


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


# --- the schema ----------------------------------------------------------------------------------

STORED = [
    each
    for each in vars(nouns).values()
    if is_dataclass(each) and each not in {Environment, Gpu, Run}  # those are JSON in the metadata
]


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


def test_every_field_of_the_schema_is_described() -> None:
    for name, field in leaves(record_schema()):
        assert field.metadata[b"description"], f"{name} has no text under it in harness/records.py"


@pytest.mark.parametrize("owner", STORED, ids=lambda each: each.__name__)
def test_every_field_of_a_stored_record_has_a_text_under_it(owner: type) -> None:
    assert set(_descriptions(owner)) == {each.name for each in fields(owner)}


def test_a_field_without_text_would_be_found_out() -> None:
    assert set(_descriptions(Gpu)) < {each.name for each in fields(Gpu)}


@pytest.mark.parametrize(
    ("suffix", "unit"),
    [
        ("_s", b"second"),
        ("_bytes", b"byte"),
        ("_ulp", b"ulp"),
        ("_ratio", b"1"),
    ],
)
def test_a_quantity_has_the_unit_that_its_name_ends_in(suffix: str, unit: bytes) -> None:
    found = [each for name, each in leaves(record_schema()) if name.endswith(suffix)]
    assert found
    assert all(each.metadata[b"unit"] == unit for each in found)


def test_what_is_no_quantity_has_no_unit() -> None:
    suffixes = ("_s", "_bytes", "_ulp", "_ratio", "_w", "_hz", "_c")
    for name, field in leaves(record_schema()):
        if not name.endswith(suffixes):
            assert b"unit" not in field.metadata, name


def test_only_what_may_be_none_may_be_null() -> None:
    by_name = dict(leaves(record_schema()))
    assert by_name["errors"].nullable
    assert by_name["errors.mean_error_ratio"].nullable
    assert not by_name["case"].nullable
    assert not by_name["case.eps"].nullable
    assert not by_name["warnings"].nullable


def test_descriptions_are_in_the_file_for_whoever_reads_it_without_us(path: Path) -> None:
    write(RESULTS, path)
    schema = pq.read_schema(path)
    assert (
        schema.field("case").type.field("seed").metadata[b"description"] == b"Seed of the inputs."
    )
    latency = schema.field("latency").type
    assert latency.field("compile_s").metadata[b"unit"] == b"second"


# --- versions ------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a results file as another version of us would have written it."""
    changed = change(pq.read_table(path))
    # the checksum would give the change away, and is not what these tests are about
    kept = {
        name: text
        for name, text in changed.schema.metadata.items()
        if name != b"layernorm_bench_sha256"
    }
    pq.write_table(changed.replace_schema_metadata(kept), path)


def with_metadata(**changes: str) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        kept = dict(table.schema.metadata)
        return table.replace_schema_metadata(
            kept | {f"layernorm_bench_{name}".encode(): text for name, text in changes.items()}
        )

    return change


def test_a_newer_schema_is_refused_in_words(path: Path) -> None:
    write(RESULTS, path)
    rewrite(path, with_metadata(schema=str(SCHEMA_VERSION + 1)))
    with pytest.raises(StoreError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert f"schema version {SCHEMA_VERSION + 1}" in str(caught.value)
    assert "update layernorm-bench" in str(caught.value)


def without_timer(table: pa.Table) -> pa.Table:
    """What version 2 wrote: a latency that names no timer."""
    place = table.schema.get_field_index("latency")
    column = table.column(place).combine_chunks()
    kept = [each for each in column.type if each.name != "timer"]
    parts = [column.field(each.name) for each in kept]
    bare = pa.StructArray.from_arrays(parts, fields=kept, mask=column.is_null())
    return table.set_column(place, pa.field("latency", bare.type), bare)


@pytest.mark.parametrize("samples", [True, False])
def test_a_latency_of_before_there_were_timers_is_ours(path: Path, samples: bool) -> None:
    write(RESULTS, path)
    rewrite(path, without_timer)
    rewrite(path, with_metadata(schema="2"))
    found = [each.latency for each in read(path, samples=samples).records]
    assert [each and each.timer for each in found] == ["layernorm-bench", None]


@pytest.mark.parametrize(
    ("field", "default"), [("warnings", ()), ("cost", None), ("reason", ""), ("memory", None)]
)
@pytest.mark.parametrize("samples", [True, False])
def test_a_field_that_an_old_file_lacks_is_read_as_its_default(
    path: Path, field: str, default: object, samples: bool
) -> None:
    write(RESULTS, path)
    rewrite(path, lambda table: table.drop_columns([field]))
    found = read(path, samples=samples).records
    assert [getattr(each, field) for each in found] == [default, default]
    assert found[0].status is Status.WRONG


def test_a_field_that_a_file_must_have_is_missed_in_words(path: Path) -> None:
    write(RESULTS, path)
    rewrite(path, lambda table: table.drop_columns(["status"]))
    with pytest.raises(StoreError, match=r"results\.parquet: not records of this schema.*status"):
        read(path)


def test_a_status_that_we_do_not_know_is_refused_in_words(path: Path) -> None:
    write(RESULTS, path)

    def change(table: pa.Table) -> pa.Table:
        column = table.schema.get_field_index("status")
        return table.set_column(column, "status", pa.array(["splendid", "ok"]))

    rewrite(path, change)
    with pytest.raises(StoreError, match="splendid"):
        read(path)


@pytest.mark.parametrize("name", ["runs", "environments", "schema"])
@pytest.mark.parametrize("text", ["{", "3", "null", "[]", "[3]", '{"a": 3}', '"text"', ""])
def test_metadata_that_is_not_ours_is_refused_or_says_nothing(
    path: Path, name: str, text: str
) -> None:
    write(RESULTS, path)
    rewrite(path, with_metadata(**{name: text}))
    found = read_or_refusal(path)
    if isinstance(found, str):
        assert str(path) in found
    else:  # an empty list of runs is one
        assert all(isinstance(each, Run) for each in found.runs)
        assert all(isinstance(each, Environment) for each in found.environments.values())


def test_a_parquet_file_of_someone_else_is_refused(path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), path)
    with pytest.raises(StoreError, match="not one that layernorm-bench wrote"):
        read(path)


def read_or_refusal(path: Path) -> Results | str:
    try:
        return read(path)
    except StoreError as error:
        return str(error)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello, world\n" * 100, b"\0" * 1000])
def test_what_is_no_parquet_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_is_named_with_the_next_step(path: Path) -> None:
    with pytest.raises(StoreError, match="no such file; make one with `layernorm-bench run`"):
        read(path)


def test_a_folder_is_no_results_file(tmp_path: Path) -> None:
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
    """Copies of a results file with one bit flipped, in every 37th byte of a part of it."""
    footer = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    positions = range(footer) if part == DATA else range(footer, len(whole))
    for position in positions[::37]:  # 37 is prime: every bit of a byte and a field has its turn
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        yield bytes(damaged)


@pytest.mark.parametrize("part", [DATA, FOOTER])
def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(path: Path, part: str) -> None:
    write(RESULTS, path)
    damaged = list(flipped(path.read_bytes(), part))
    assert len(damaged) > 100
    silently_changed = 0
    for each in damaged:
        path.write_bytes(each)
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


def test_a_journal_that_is_not_there_is_named(journal: Path) -> None:
    with pytest.raises(StoreError, match=r"results\.jsonl: cannot be read: No such file"):
        read_journal(journal)


# --- where nothing can be written ----------------------------------------------------------------


@pytest.fixture
def not_a_folder(tmp_path: Path) -> Path:
    """A path below a file: nobody can write there, not even root."""
    (tmp_path / "file").write_text("a file, no folder", encoding="utf-8")
    return tmp_path / "file" / "results"


def test_parquet_where_nothing_can_be_written_is_refused_in_words(not_a_folder: Path) -> None:
    with pytest.raises(StoreError) as caught:
        write(RESULTS, not_a_folder)
    assert str(caught.value).startswith(f"{not_a_folder}: cannot be written: ")


def test_a_folder_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        write(RESULTS, tmp_path / "missing" / "results.parquet")


def test_a_journal_where_nothing_can_be_written_is_refused_in_words(not_a_folder: Path) -> None:
    with pytest.raises(StoreError) as caught:
        Journal(not_a_folder)
    assert str(caught.value).startswith(f"{not_a_folder}: cannot be written: ")


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_under_a_journal_says_what_to_do(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(StoreError, match=r"No space left.*kept.*--resume"):
            file.add(FULL)
        monkeypatch.undo()
    assert BARE in read_journal(journal).records


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_device_that_is_always_full_is_refused_and_closed_quietly() -> None:
    journal = Journal.__new__(Journal)  # opening would look for a torn line in it, without end
    journal.path = Path("/dev/full")
    journal._file = journal.path.open("ab")
    with journal, pytest.raises(StoreError, match="/dev/full: cannot be written: No space left"):
        journal.add(FULL)


def test_a_full_disk_under_parquet_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(RESULTS, path)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreError, match="No space left"):
        write(replace(RESULTS, records=()), path)
    monkeypatch.undo()
    assert same(read(path), RESULTS)


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(RESULTS, path)

    def half(table: pa.Table, where: Path, **_: object) -> None:
        Path(where).write_bytes(b"PAR1 and then")
        full_disk()

    monkeypatch.setattr(parquet.pq, "write_table", half)
    with pytest.raises(StoreError, match="No space left"):
        write(replace(RESULTS, records=()), path)
    monkeypatch.undo()
    assert same(read(path), RESULTS)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_reason_that_is_no_valid_text_does_not_lose_the_run(path: Path) -> None:
    # what a guest raises may hold the half characters Python makes of undecodable file names
    wanted = replace(RESULTS, records=(replace(BARE, reason="no file \udcff.py"),))
    write(wanted, path)
    assert read(path).records[0].reason.startswith("no file ")


# --- from plain values ---------------------------------------------------------------------------


def test_a_field_with_a_default_may_be_absent_and_another_may_not() -> None:
    pair = make_dataclass("Pair", [("a", int), ("b", int, 7)])
    assert from_plain(pair, {"a": 1}) == pair(1, 7)
    with pytest.raises(KeyError):
        from_plain(pair, {"b": 1})


def test_an_unknown_member_is_refused() -> None:
    with pytest.raises(ValueError, match="splendid"):
        from_plain(Status, "splendid")

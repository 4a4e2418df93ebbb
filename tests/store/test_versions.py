"""Older files are read; newer ones and foreign ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import RESULTS, read_or_refusal

from harness.records import Cost, Environment, Run, Status
from harness.store import SCHEMA_VERSION, StoreError, read, write

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a results file to what another version would have written."""
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


def test_a_newer_schema_is_refused(path: Path) -> None:
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
def test_a_latency_without_a_timer_is_of_the_own_timer(path: Path, samples: bool) -> None:
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


def test_a_field_that_a_file_must_have_is_missed(path: Path) -> None:
    write(RESULTS, path)
    rewrite(path, lambda table: table.drop_columns(["status"]))
    with pytest.raises(StoreError, match=r"results\.parquet: not records of this schema.*status"):
        read(path)


def test_an_unknown_status_is_refused(path: Path) -> None:
    write(RESULTS, path)

    def change(table: pa.Table) -> pa.Table:
        column = table.schema.get_field_index("status")
        return table.set_column(column, "status", pa.array(["splendid", "ok"]))

    rewrite(path, change)
    with pytest.raises(StoreError, match="splendid"):
        read(path)


@pytest.mark.parametrize("name", ["runs", "environments", "schema"])
@pytest.mark.parametrize("text", ["{", "3", "null", "[]", "[3]", '{"a": 3}', '"text"', ""])
def test_foreign_metadata_is_refused_or_ignored(path: Path, name: str, text: str) -> None:
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
    with pytest.raises(StoreError, match="not the records of a run"):
        read(path)


def test_former_names_of_fields_are_read(path: Path) -> None:
    case = replace(RESULTS.records[0].case, grad_output="ones")
    cost = Cost(total_s=3.0, implementation_s=2.0, oracle_s=0.5, sampling_s=0.25)
    wanted = replace(RESULTS.records[0], case=case, cost=cost)
    write(replace(RESULTS, records=(wanted,)), path)
    rewrite(path, with_former_names)
    (found,) = read(path).records
    assert (found.case, found.cost) == (case, cost)


def with_former_names(table: pa.Table) -> pa.Table:
    rows = table.to_pylist()
    for row in rows:
        row["case"]["upstream"] = row["case"].pop("grad_output")
        row["cost"]["guest_s"] = row["cost"].pop("implementation_s")
    former = pa.Table.from_pylist(rows)
    return former.replace_schema_metadata(table.schema.metadata)


def foreign_tables() -> list[Path]:
    every = sorted(PUBLISHED.glob("*.parquet"))
    return [
        path
        for path in every
        if b"layernorm_bench_schema" not in (pq.read_metadata(path).metadata or {})
    ]


@pytest.mark.parametrize("path", foreign_tables(), ids=lambda path: path.stem)
def test_the_table_of_an_experiment_says_what_it_is(path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"measurements of an experiment \(.+\).* docs/"
    ) as refusal:
        read(path)
    page = str(refusal.value).partition("docs/")[2].partition(".md")[0]
    assert path.stem in (PUBLISHED.parents[1] / "docs" / f"{page}.md").read_text().replace("-", "_")

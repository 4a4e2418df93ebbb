"""Files of another schema and foreign tables are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories.stored import RESULTS, read_or_refusal

from harness.records import Environment, Run
from harness.store import SCHEMA_VERSION, StoreError, read, write


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a results file to what another program would have written."""
    changed = change(pq.read_table(path))
    checksum = {
        b"layernorm_bench_sha256": pq.read_metadata(path).metadata[b"layernorm_bench_sha256"]
    }
    pq.write_table(changed.replace_schema_metadata(checksum | changed.schema.metadata), path)


def with_metadata(**changes: str) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        kept = dict(table.schema.metadata)
        return table.replace_schema_metadata(
            kept | {f"layernorm_bench_{name}".encode(): text for name, text in changes.items()}
        )

    return change


@pytest.mark.parametrize("version", ["4", str(SCHEMA_VERSION + 1), "", "six"])
def test_another_schema_is_refused(path: Path, version: str) -> None:
    write(RESULTS, path)
    rewrite(path, with_metadata(schema=version))
    with pytest.raises(StoreError) as caught:
        read(path)
    assert f"{path}: has schema version {version}, this layernorm-bench reads" in str(caught.value)


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
        assert all(isinstance(run, Run) for run in found.runs)
        assert all(
            isinstance(environment, Environment) for environment in found.environments.values()
        )


def test_a_parquet_file_of_someone_else_is_refused(path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), path)
    with pytest.raises(StoreError, match="not the records of a run"):
        read(path)

"""Every field of a results file is described, with its unit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories.stored import RESULTS

from harness.store import record_schema, write


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
        assert field.metadata[b"description"], f"{name} has no text under it in harness/records"


@pytest.mark.parametrize(
    ("suffix", "unit"), [("_s", b"second"), ("_bytes", b"byte"), ("_ulp", b"ulp"), ("_ratio", b"1")]
)
def test_a_quantity_has_the_unit_that_its_name_ends_in(suffix: str, unit: bytes) -> None:
    found = [field for name, field in leaves(record_schema()) if name.endswith(suffix)]
    assert found
    assert all(field.metadata[b"unit"] == unit for field in found)


def test_a_field_that_is_not_a_quantity_has_no_unit() -> None:
    suffixes = ("_s", "_bytes", "_ulp", "_ratio", "_w", "_hz", "_c")
    for name, field in leaves(record_schema()):
        if not name.endswith(suffixes):
            assert b"unit" not in field.metadata, name


def test_only_what_may_be_none_may_be_null() -> None:
    by_name = dict(leaves(record_schema()))
    assert by_name["errors"].nullable
    assert not by_name["case"].nullable
    assert not by_name["case.eps"].nullable
    assert not by_name["warnings"].nullable


def test_descriptions_are_in_the_file_for_readers_without_layernorm_bench(path: Path) -> None:
    write(RESULTS, path)
    schema = pq.read_schema(path)
    assert (
        schema.field("case").type.field("seed").metadata[b"description"] == b"Seed of the inputs."
    )
    latency = schema.field("latency").type
    assert latency.field("compile_s").metadata[b"unit"] == b"second"

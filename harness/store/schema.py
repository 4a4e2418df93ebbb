"""The parquet schema, derived from the dataclasses: names, types, units and descriptions."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_origin

import pyarrow as pa

from harness.records import Record
from harness.store.plain import is_optional, typed_fields, without_none

__all__ = ["SAMPLE_FIELDS", "prepare", "record_schema"]

SAMPLE_FIELDS = (("latency", "arms"), ("cold", "arms"))
"""Where the raw samples are. They are most of a file's bytes, and few readers need them."""

_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_UNITS = {
    "_s": "second",
    "_bytes": "byte",
    "_ulp": "ulp",
    "_ratio": "1",
    "_w": "watt",
    "_hz": "hertz",
    "_c": "degree Celsius",
}


@cache
def record_schema() -> pa.Schema:
    """Return the schema of a results file, with the unit and description of each field."""
    return pa.schema([_field(Record, each.name, hint) for each, hint in typed_fields(Record)])


def prepare() -> None:
    """Make pyarrow's first conversion now: it imports pandas, which takes a quarter second."""
    record_schema().empty_table().to_pylist()
    pa.array([0.0])


def _field(owner: Any, name: str, hint: Any) -> pa.Field:
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), None)
    metadata = {"description": _descriptions(owner).get(name, "")}
    if unit:
        metadata["unit"] = unit
    return pa.field(name, _arrow_type(hint), nullable=is_optional(hint), metadata=metadata)


def _arrow_type(annotation: Any) -> pa.DataType:
    owner = annotation = without_none(annotation)
    if get_origin(annotation) is tuple:
        return pa.list_(_arrow_type(get_args(annotation)[0]))
    if is_dataclass(annotation):
        return pa.struct([_field(owner, each.name, hint) for each, hint in typed_fields(owner)])
    if issubclass(annotation, StrEnum):
        return pa.string()
    return _PLAIN[annotation]


def _descriptions(owner: Any) -> dict[str, str]:
    """Return the text under each field of a dataclass."""
    return _module_descriptions(owner.__module__)[owner.__qualname__]


@cache
def _module_descriptions(module: str) -> dict[str, dict[str, str]]:
    """Read the text under each field of a module's dataclasses from its source."""
    source = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        each.name: {
            above.target.id: inspect.cleandoc(str(below.value.value))
            for above, below in pairwise(each.body)
            if isinstance(above, ast.AnnAssign)
            and isinstance(above.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }
        for each in source.body
        if isinstance(each, ast.ClassDef)
    }

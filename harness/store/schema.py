"""What is stored: records as plain values, and the parquet schema derived from their dataclasses.

A column is a field of :class:`harness.records.Record` or of a part of it, in harness/records. The
text under the field is the column's description, and the end of its name gives the unit. To add a
column, add a field there; nothing is written here.

Until the first release there is one schema. A change of it raises SCHEMA_VERSION, and the published
files are converted with it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import pyarrow as pa

from harness.records import Environment, Record, Run
from harness.records.text import count

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 7  # above those of all earlier files, which no reader of this version takes

VERSION_KEY = b"layernorm_bench_schema"
RUNS_KEY = b"layernorm_bench_runs"
ENVIRONMENTS_KEY = b"layernorm_bench_environments"
DIGEST_KEY = b"layernorm_bench_sha256"

SAMPLED = ("latency", "cold")
"""Columns whose part "arms" has raw samples: most of a file's bytes, which few readers need."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a results file holds."""

    records: tuple[Record, ...]
    runs: tuple[Run, ...]
    """The invocations that made them, in order; more than one after ``--resume``."""
    environments: dict[str, Environment]
    """By fingerprint, as named in the records."""

    @property
    def why_unfinished(self) -> str | None:
        """How much of the last run is there, if it was cut short; else None."""
        return why_unfinished(self.runs, len(self.records))


def why_unfinished(runs: Sequence[Run], found: int) -> str | None:
    """Return how much of the last of some runs is there, if it was cut short; else None."""
    if not runs or (runs[-1].wall_s is not None and found >= runs[-1].planned):
        return None
    return f"{found:,} of its {count(runs[-1].planned, 'case')} are there"


def to_plain(value: Any) -> Any:
    """Turn dataclasses into dicts, tuples into lists and enumerations into strings."""
    kind: Any = type(value)
    if value is None or kind in {int, float, bool}:
        return value
    if isinstance(value, str):
        text = str(value)
        # UTF-8 cannot hold lone surrogates, which stand for undecodable bytes in messages
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, tuple):
        # tuples of numbers may be long (samples): copied without looking at their items
        plain = not value or isinstance(value[0], int | float)
        return list(value) if plain else [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if names := _field_names(kind):
        return {name: to_plain(getattr(value, name)) for name in names}
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass; none for other types."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def from_plain(annotation: Any, stored: Any) -> Any:
    """Build a value of the annotated type.

    Absent fields take their default; unknown ones are ignored. A part may have been built already.

    Raises:
        ValueError: a field without default is absent, or a value is not of its type.
    """
    from pydantic import ValidationError

    try:
        return _reader(annotation).validate_python(stored)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = "" if first["type"] == "missing" else f", found {first['input']!r:.60}"
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}{found}") from None


@cache
def _reader(annotation: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # takes a tenth of a second, and not every command reads

    return TypeAdapter(annotation)


@cache
def record_schema() -> pa.Schema:
    """Return the schema of a results file, with the unit and description of each field."""
    return pa.schema(_arrow_fields(Record))


def prepare() -> None:
    """Make pyarrow's first conversion now: it imports pandas, which takes a quarter second."""
    record_schema().empty_table().to_pylist()
    pa.array([0.0])


def _arrow_fields(owner: Any) -> list[pa.Field]:
    descriptions = _descriptions(owner.__module__)[owner.__qualname__]
    made = []
    for name, hint in get_type_hints(owner).items():
        options = get_args(hint)
        is_optional = NoneType in options
        metadata = {"description": descriptions.get(name, "")}
        if unit := next((_UNITS[end] for end in _UNITS if name.endswith(end)), None):
            metadata["unit"] = unit
        kind = _arrow_type(options[0] if is_optional else hint)
        made.append(pa.field(name, kind, nullable=is_optional, metadata=metadata))
    return made


def _arrow_type(kind: Any) -> pa.DataType:
    if get_origin(kind) is tuple:
        return pa.list_(_arrow_type(get_args(kind)[0]))
    if is_dataclass(kind):
        return pa.struct(_arrow_fields(kind))
    return _PLAIN[str if issubclass(kind, StrEnum) else kind]


@cache
def _descriptions(module: str) -> dict[str, dict[str, str]]:
    """Read the text under each field of a module's dataclasses from its source."""
    source = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        owner.name: {
            above.target.id: inspect.cleandoc(str(below.value.value))
            for above, below in pairwise(owner.body)
            if isinstance(above, ast.AnnAssign)
            and isinstance(above.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }
        for owner in source.body
        if isinstance(owner, ast.ClassDef)
    }

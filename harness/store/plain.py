"""Convert dataclasses to plain dicts, lists and numbers, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

__all__ = ["from_plain", "is_optional", "to_plain", "typed_fields", "without_none"]


def to_plain(value: Any) -> Any:
    """Turn dataclasses into dicts, tuples into lists and enumerations into strings."""
    kind: Any = type(value)
    if value is None or kind in _NUMBERS:
        return value
    if isinstance(value, str):
        text = str(value)
        # UTF-8 cannot hold lone surrogates, which stand for undecodable bytes in messages
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, tuple):
        # tuples of numbers may be long (samples): copied without looking at each
        plain = not value or isinstance(value[0], int | float)
        return list(value) if plain else [to_plain(each) for each in value]
    if names := _field_names(kind):
        return {name: to_plain(getattr(value, name)) for name in names}
    return value


_NUMBERS = {int, float, bool}


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass; none for other types."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def from_plain(annotation: Any, stored: Any) -> Any:
    """Build a value of the annotated type.

    Absent fields take their default; unknown ones are ignored. A part may have been built already.

    Raises:
        KeyError: a field without default is absent.
        ValueError: a string is not a member of its enumeration, or null where None is not allowed.
        TypeError: a value has another type.
    """
    return _reader(annotation)(stored)


_Reader = Callable[[Any], Any]


@cache
def _reader(annotation: Any) -> _Reader:
    """Return the function that reads values of a type: a file has thousands of each."""
    inner = without_none(annotation)
    if get_origin(inner) is tuple:
        read = _tuple_reader(get_args(inner))
    elif is_dataclass(inner):
        read = _dataclass_reader(inner)
    elif isinstance(inner, type) and issubclass(inner, StrEnum):
        read = inner
    else:
        read = partial(_checked, inner)
    null_is_allowed = is_optional(annotation)

    def read_or_null(stored: Any) -> Any:
        if stored is not None:
            return read(stored)
        if not null_is_allowed:
            raise ValueError(f"null, expected {annotation}")
        return None

    return read_or_null


def _dataclass_reader(owner: Any) -> _Reader:
    readers = [
        (
            each.name,
            each.metadata.get("formerly", each.name),
            without_none(hint),
            _reader(hint),
            _has_no_default(each),
        )
        for each, hint in typed_fields(owner)
    ]

    def read(stored: Any) -> Any:
        if isinstance(stored, owner):
            return stored
        values = {}
        for name, former, kind, read_field, is_required in readers:
            # older files have a field under its former name
            key = former if name not in stored and former in stored else name
            if key in stored or is_required:
                value = stored[key]  # most are numbers and texts: not worth a call
                values[name] = value if type(value) is kind else read_field(value)
        return owner(**values)

    return read


def _tuple_reader(items: tuple[Any, ...]) -> _Reader:
    readers = [_reader(each) for each in items if each is not Ellipsis]
    if items[-1] is not Ellipsis:  # a tuple of fixed length
        return lambda stored: tuple(
            read_item(each) for read_item, each in zip(readers, stored, strict=True)
        )
    (read_item,) = readers
    if items[0] in {int, float, str}:
        # the first element stands for all: samples are many, and of one type in a file
        def read(stored: list[Any]) -> Any:
            for first in _checked(list, stored)[:1]:
                _checked(items[0], first)
            return tuple(stored)

        return read
    return lambda stored: tuple(map(read_item, stored))


def _checked(annotation: type, stored: Any) -> Any:
    """Return ``stored``, refusing another type: one flipped bit in a parquet footer changes it."""
    if not isinstance(stored, _ACCEPTED.get(annotation, annotation)):
        raise TypeError(f"{stored!r:.60}, expected {annotation.__name__}")
    return float(stored) if annotation is float else stored


_ACCEPTED: dict[type, Any] = {float: (int, float)}
"""Types of numbers that are read as another one."""


@cache
def typed_fields(owner: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """Return the fields of a dataclass with their resolved types."""
    hints = get_type_hints(owner)
    return tuple((each, hints[each.name]) for each in fields(owner))


def is_optional(annotation: Any) -> bool:
    """Whether None is allowed."""
    return get_origin(annotation) is UnionType and NoneType in get_args(annotation)


def without_none(annotation: Any) -> Any:
    """Return the annotation without ``| None``."""
    if is_optional(annotation):
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    return annotation


def _has_no_default(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING

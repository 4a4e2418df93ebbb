"""Convert dataclasses to plain dicts, lists and numbers, and back."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

__all__ = ["from_plain", "is_optional", "to_plain", "typed_fields", "without_none"]


def to_plain(value: Any) -> Any:
    """Turn dataclasses into dicts, tuples into lists and enumerations into strings."""
    if is_dataclass(value):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        # tuples of numbers may be long (samples): copied without looking at each
        plain = not value or isinstance(value[0], int | float)
        return list(value) if plain else [to_plain(each) for each in value]
    if isinstance(value, str):
        # UTF-8 cannot hold lone surrogates, which stand for undecodable bytes in messages
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


def from_plain(annotation: Any, stored: Any) -> Any:
    """Build a value of the annotated type.

    Absent fields take their default; unknown ones are ignored.

    Raises:
        KeyError: a field without default is absent.
        ValueError: a string is not a member of its enumeration, or null where None is not allowed.
        TypeError: a value has another type.
    """
    if stored is None:
        if not is_optional(annotation):
            raise ValueError(f"null, expected {annotation}")
        return None
    owner = annotation = without_none(annotation)
    if get_origin(annotation) is tuple:
        return _tuple_from_plain(get_args(annotation), stored)
    if is_dataclass(annotation):
        return owner(**{
            each.name: from_plain(hint, stored[name])
            for each, hint in typed_fields(owner)
            if (name := _stored_name(each, stored)) in stored or _has_no_default(each)
        })
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return annotation(stored)
    return _checked(annotation, stored)


def _tuple_from_plain(items: tuple[Any, ...], stored: list[Any]) -> tuple[Any, ...]:
    if items[-1] is not Ellipsis:  # a tuple of fixed length
        return tuple(from_plain(item, each) for item, each in zip(items, stored, strict=True))
    if items[0] in {int, float, str}:
        # the first element stands for all: samples are many, and of one type in a file
        for first in _checked(list, stored)[:1]:
            _checked(items[0], first)
        return tuple(stored)
    return tuple(from_plain(items[0], each) for each in stored)


def _checked(annotation: type, stored: Any) -> Any:
    """Return ``stored``, refusing another type: one flipped bit in a parquet footer changes it."""
    if not isinstance(stored, int | float if annotation is float else annotation):
        raise TypeError(f"{stored!r:.60}, expected {annotation.__name__}")
    return stored


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


def _stored_name(each: Field[Any], stored: dict[str, Any]) -> str:
    """Return the name under which a field is stored; older files have its former name."""
    former: str = each.metadata.get("formerly", each.name)
    return former if each.name not in stored and former in stored else each.name


def _has_no_default(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING

"""Strict reading of TOML files: an unknown key or a value of the wrong type is a mistake.

Every mistake of a file is reported at once, each with its line, its key and what was expected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from harness.records.refusal import Refusal
from harness.records.text import suggest

__all__ = [
    "Location",
    "StrictTable",
    "TomlFile",
    "key_path",
    "not_one_of",
    "read_toml",
    "validated",
]

Location = tuple[int | str, ...]
"""Keys and indices that lead to a value, such as ``("grids", 0, "shapes", 1)``."""

_ANY_HEADER = re.compile(r"\s*\[")


class StrictTable(BaseModel):
    """A table without unknown keys, frozen once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


TableT = TypeVar("TableT", bound=StrictTable)


class TomlFile:
    """The values in a TOML text, and the line of each, which tomllib does not report."""

    def __init__(self, name: str, text: str, array: str, error: type[Refusal]) -> None:
        """Parse ``text``.

        Args:
            name: what messages call the file.
            text: its content.
            array: the key of its array of tables: "grids" where it holds ``[[grids]]``.
            error: what to raise.

        Raises:
            Refusal: of type ``error``: the text is not TOML.
        """
        self.name, self._array = name, array
        try:
            self.plain = tomllib.loads(text)
        except tomllib.TOMLDecodeError as why:
            raise error(f"{name}: not TOML: {why}") from why
        self._lines = text.splitlines()
        header = re.compile(rf"\s*\[\[\s*{array}\s*\]\]")
        self._headers = [number for number, line in enumerate(self._lines) if header.match(line)]
        tables = self.plain.get(array)
        # tables written inline have no header; a line within a string may look like one
        if not isinstance(tables, list) or len(self._headers) != len(tables):
            self._headers = []

    def place_of(self, location: Location) -> str:
        """Return file, line and key, such as ``mine.toml:3: grids[0].shapes[1]``."""
        line = self._line_of(location)
        return f"{self.name}{f':{line}' if line else ''}: {key_path(location)}"

    def _line_of(self, location: Location) -> int | None:
        if location[0] != self._array or len(location) == 1:
            return self._line_of_key(str(location[0]), -1)
        if not self._headers:
            return None
        header = self._headers[int(location[1])]
        return self._line_of_key(str(location[2]), header) if len(location) > 2 else header + 1

    def _line_of_key(self, key: str, header: int) -> int:
        """Return the line that sets ``key`` below a header, or the line of the header."""
        pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
        for number in range(header + 1, len(self._lines)):
            if pattern.match(self._lines[number]):
                return number + 1
            if _ANY_HEADER.match(self._lines[number]):
                break
        return max(header + 1, 1)


def read_toml(path: Path, array: str, error: type[Refusal]) -> TomlFile:
    """Read and parse a file; arguments as for :class:`TomlFile`.

    Raises:
        Refusal: of type ``error``: the file cannot be read, or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else "not UTF-8 text"
        raise error(f"{path}: cannot be read: {why}") from failure
    return TomlFile(str(path), text, array, error)


def validated(
    model: type[TableT],
    plain: Mapping[str, object],
    place_of: Callable[[Location], str],
    error: type[Refusal],
) -> TableT:
    """Return ``plain`` as a ``model``.

    Args:
        model: the type of the whole file.
        plain: what the file holds.
        place_of: names the place of a value; where it returns nothing, the key is named.
        error: what to raise.

    Raises:
        Refusal: of type ``error``, with a line for each mistake.
    """
    try:
        return model.model_validate(plain)
    except ValidationError as invalid:
        mistakes = invalid.errors()
        locations = [mistake["loc"] for mistake in mistakes]
        lines = [
            f"{place_of(mistake['loc']) or key_path(mistake['loc'])}: {_message(model, mistake)}"
            for mistake in mistakes
            # pydantic reports a list whose only value is bad as too short, too
            if not any(
                known[: len(mistake["loc"])] == mistake["loc"] != known for known in locations
            )
        ]
        raise error("\n".join(lines)) from invalid


def key_path(location: Location) -> str:
    """Return ``grids[0].shapes[1]``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)[1:]


def not_one_of(value: object, known: tuple[str, ...]) -> str:
    """Return a message that lists the known values, and the one that was probably meant."""
    return f"{value!r} is not one of {', '.join(known)}{suggest(str(value), known)}"


def _message(model: type[StrictTable], mistake: ErrorDetails) -> str:
    """Return the expected and the found value in words."""
    location, value, kind = mistake["loc"], mistake["input"], mistake["type"]
    if kind == "extra_forbidden":
        in_array = len(location) > 2
        owner = get_args(model.model_fields[str(location[0])].annotation)[0] if in_array else model
        return f"unknown key{suggest(str(location[-1]), tuple(owner.model_fields))}"
    if kind == "enum":
        expected = mistake["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return not_one_of(value, tuple(expected.split(", ")))
    messages = {
        "missing": "missing",
        "value_error": mistake["msg"].removeprefix("Value error, "),
        "too_short": f"needs at least one value (found {value!r})",
    }
    if kind in messages:
        return messages[kind]
    must_be = {
        "tuple_type": f"tables [[{location[0]}]]" if len(location) == 1 else "a list",
        "model_type": "a table",
    }
    expected = must_be.get(kind, mistake["msg"].removeprefix("Input should be "))
    return f"must be {expected} (found {value!r})"

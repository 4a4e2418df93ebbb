"""Where the values of a sweep were written, so that a message can name the place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.records.text import count
from harness.sweep.strict_toml import Location, TomlFile

__all__ = ["Origin", "mistake_lines"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the values of a sweep were written. No field is compared: equal sweeps are equal."""

    file: TomlFile | None = field(default=None, compare=False)
    """The user's sweep file, if there is one."""
    preset: str = field(default="", compare=False)
    """What messages call the preset. Its keys are not named, since users do not edit it."""
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Axes whose values came from command-line options, and those options."""

    def name_of(self, axis: str) -> str:
        """Return what the user calls an axis: ``--dtype``, or ``dtypes`` in a file."""
        return self.options.get(axis, axis)

    def place_of(self, location: Location) -> str:
        """Return where a value was written; empty for a sweep that was made in Python."""
        if len(location) > 2 and location[2] in self.options:
            return self.options[str(location[2])]
        return self.preset if self.file is None else self.file.place_of(location)


def mistake_lines(mistakes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line per message: the first place that has the mistake, and how many others do.

    Args:
        mistakes: places and messages; a place may be empty.
    """
    places: dict[str, dict[str, None]] = {}
    for place, message in mistakes:
        places.setdefault(message, {})[place] = None
    lines = []
    for message, (first, *others) in places.items():
        more = f" (and in {count(len(others), 'other place')})" if others else ""
        lines.append(f"{first}: {message}{more}" if first else message)
    return lines

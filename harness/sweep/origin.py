"""Where the values of a sweep were written, so that a message can name the place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Origin", "mistake_lines"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the values of a sweep were written. Sweeps are equal wherever that was."""

    source: str = field(default="", compare=False)
    """The sweep file, or the name of the preset; empty for a sweep made in Python."""
    is_file: bool = field(default=False, compare=False)
    """Whether ``source`` is a file that the user can edit, so that its keys are worth naming."""
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Axes whose values came from command-line options, and those options."""

    def name_of(self, axis: str) -> str:
        """What the user calls an axis: ``--dtype``, or ``dtypes`` in a file."""
        return self.options.get(axis, axis)

    def place_of(self, axis: str, grid: int, index: int) -> str:
        """Where a value of an axis was written; empty where only Python code has it."""
        if axis in self.options:
            return self.options[axis]
        return f"{self.source}: grids[{grid}].{axis}[{index}]" if self.is_file else self.source


def mistake_lines(mistakes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each mistake: the first place that has it, and in how many others it is.

    Args:
        mistakes: places and messages; a place may be empty.
    """
    places: dict[str, dict[str, None]] = {}
    for place, message in mistakes:
        places.setdefault(message, {})[place] = None
    lines = []
    for message, found in places.items():
        first, *others = found
        more = f" (and in {len(others)} other place{'s'[: len(others) > 1]})" if others else ""
        lines.append(f"{first}: {message}{more}" if first else message)
    return lines

"""A case, and what it raised, in words."""

from __future__ import annotations

from collections.abc import Sequence

from harness.cases.axes import (
    BACKWARD_CALLS,
    FORWARD_CALLS,
    Condition,
    Relation,
    array_axes,
    value_of,
)
from harness.records import Case, Direction
from harness.records.text import shape_text

__all__ = ["SETTINGS", "SIMPLEST", "case_in_words", "cause", "settings_in_words"]

SIMPLEST = {name: (axis.simple or axis.values[0],) for name, axis in array_axes().items()} | {
    "call": (FORWARD_CALLS[0], BACKWARD_CALLS[0])
}
# all but the sizes, in the order in which they are said
SETTINGS = (
    *("layout", "call", "threads", "param_dtype", "affine", "normalized_axes", "parameters"),
    *("distribution", "grad_output", "eps"),
)
_LONGEST = 44  # characters of a message; its first words tell what is the matter


def case_in_words(case: Case) -> str:
    """Return a case in words: "an x of 2x33, with gradients (the layout of x is transposed)"."""
    direction = "" if case.direction is Direction.FORWARD else ", with gradients"
    settings = f" ({', '.join(words)})" if (words := settings_in_words(case)) else ""
    return f"an x of {shape_text(case.shape)}{direction}{settings}"


def settings_in_words(case: Case, axes: Sequence[str] = SETTINGS) -> tuple[str, ...]:
    """Return the values of ``case`` on axes where it has not the simplest value, in words."""
    return tuple(
        Condition(axis=axis, relation=Relation.IS, value=value).text
        for axis in axes
        if (value := value_of(case, axis)) not in SIMPLEST[axis]
    )


def cause(reason: str) -> str:
    """Return the first words of what was raised, as "AssertionError" or "TypeError: expected x"."""
    words = reason.strip().removesuffix(":")
    if len(words) <= _LONGEST:
        return words
    kind, separator, message = words.partition(": ")
    if not separator or " " in kind:  # it was declined in words
        kind, separator, message = "", "", words
    cut = message[: _LONGEST - len(kind)].rpartition(" ")[0]
    return f"{kind}{separator}{cut.rstrip(':,;')}..." if cut else kind

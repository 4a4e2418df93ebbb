"""Shapes as users type them, such as 4096x1024, and messages for text that is no shape."""

from __future__ import annotations

import re
from math import prod

from harness.records.text import shape_text

__all__ = ["check_holdable", "check_list_of_shapes", "parse_shape", "parse_shapes"]

_SHAPE = re.compile(r"\d+(x\d+)*")
# sizes joined by another character than x, or a tuple or list as Python prints it
_ALMOST_A_SHAPE = re.compile(r"[\[(]?\s*\d+(\s*[xX*×,]\s*\d+)+\s*,?\s*[\])]?", re.ASCII)
_MOST_ELEMENTS = 1 << 40  # 4 TiB in float32, more than any device has


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in ``4096x1024``; a size may be 0.

    Raises:
        ValueError: the text is not sizes joined by x, or no device holds so many elements.
    """
    if not _SHAPE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a shape: write sizes joined by x, such as {_example(text)}"
        )
    return check_holdable(tuple(int(size) for size in text.split("x")))


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes in ``64x768,8x1024``, or the one shape in ``64x768`` or ``768``.

    A shape of one axis is accepted only by itself: ``64,768`` is more often meant as one shape.

    Raises:
        ValueError: a part is no shape, or one of several shapes has a single axis.
    """
    if text.lstrip().startswith(("(", "[")):
        return (parse_shape(text),)  # refuses it, with the shape that was meant
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r} has an empty shape: remove the extra comma")
    shapes = tuple(parse_shape(part) for part in parts)
    if len(shapes) > 1 and any(len(shape) == 1 for shape in shapes):
        options = " ".join(f"--shape {part}" for part in parts)
        if all(len(shape) == 1 for shape in shapes):
            raise ValueError(
                f"{text!r} is ambiguous: write {'x'.join(parts)} for one shape of {len(parts)} "
                f"axes, or {options} for {len(parts)} shapes of one axis; several shapes of more "
                "axes are written 64x768,8x1024"
            )
        raise ValueError(
            f"{text!r} has a shape of one axis among others: if that is meant, write {options}; "
            "otherwise join the sizes of each shape by x, such as 64x768,8x1024"
        )
    return shapes


def check_holdable(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``shape``.

    Raises:
        ValueError: it has more elements than any device holds.
    """
    if prod(shape) > _MOST_ELEMENTS:
        raise ValueError(
            f"'{shape_text(shape)}' has {prod(shape):.3g} elements, more than any device holds"
        )
    return shape


def check_list_of_shapes(value: object) -> object:
    """Return the value of a sweep file's ``shapes``.

    Raises:
        ValueError: it is a list of numbers, that is the sizes of a single shape.
    """
    if isinstance(value, list | tuple) and value and all(type(size) is int for size in value):
        sizes = list(value)
        apart = ", ".join(f"[{size}]" for size in sizes)
        one_axis = "" if len(sizes) == 1 else f", or [{apart}] for {len(sizes)} shapes of one axis"
        raise ValueError(
            f"{sizes} is a list of sizes, not of shapes: "
            f'write ["{shape_text(sizes)}"] for one shape{one_axis}'
        )
    return value


def _example(text: str) -> str:
    """Return the shape that was probably meant, or any shape."""
    if _ALMOST_A_SHAPE.fullmatch(text.strip()):
        return "x".join(re.findall(r"\d+", text))
    return "4096x1024"

"""Shapes as users type them."""

from __future__ import annotations

import pytest

from harness.cases import parse_shape, parse_shapes


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("4096x1024", (4096, 1024)),
        ("7", (7,)),
        ("0x5", (0, 5)),
        ("5x0", (5, 0)),
        ("2x3x5x7", (2, 3, 5, 7)),
        ("064x1", (64, 1)),
    ],
)
def test_a_shape_is_its_sizes_joined_by_x(text: str, shape: tuple[int, ...]) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    ["4xx", "(4, 8)", "4X8", "-1x3", "1e9x1e9", "", "x", "4x", "x4", "4.0x4", "4x4x\n", "a", "4 4"],
)
def test_other_text_is_not_a_shape(text: str) -> None:
    with pytest.raises(ValueError, match="write sizes joined by x, such as 4096x1024"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("64x768", ((64, 768),)),
        ("768", ((768,),)),
        ("64x768,8x1024", ((64, 768), (8, 1024))),
        ("64x768, 2x3x4", ((64, 768), (2, 3, 4))),
    ],
)
def test_shapes_are_joined_by_commas(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert parse_shapes(text) == shapes

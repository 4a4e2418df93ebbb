"""The error of the worst output."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from factories.stored import FULL

from harness.records import Errors

assert FULL.errors is not None
Y = replace(FULL.errors.outputs[0], unexpected_nonfinite=0, scaled_max_ulp=2.0)
DX = replace(Y, output="dx", scaled_max_ulp=3.0)


def errors(**dx: float) -> Errors:
    assert FULL.errors is not None
    return replace(FULL.errors, outputs=(Y, replace(DX, **dx)))


@pytest.mark.parametrize(
    ("dx", "output", "worst_ulp"),
    [
        ({}, "dx", 3.0),
        ({"scaled_max_ulp": 1.0}, "y", 2.0),
        ({"scaled_max_ulp": inf}, "dx", inf),
        ({"scaled_max_ulp": nan}, "dx", inf),
        ({"scaled_max_ulp": 1.0, "unexpected_nonfinite": 1}, "dx", inf),
    ],
)
def test_the_worst_output_has_the_largest_scaled_error(
    dx: dict[str, float], output: str, worst_ulp: float
) -> None:
    found = errors(**dx)
    assert (found.worst.output, found.worst_ulp) == (output, worst_ulp)
    assert replace(FULL, errors=found).worst_ulp == worst_ulp


def test_there_is_no_worst_error_where_none_was_measured() -> None:
    assert replace(errors(), outputs=()).worst_ulp is None
    assert replace(FULL, errors=None).worst_ulp is None

"""Cases of which each alone catches some mutant."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from harness.records import Affine, Case, Direction
from harness.verify.mutants.mutant import HALVES

DTYPES = ["float32", "bfloat16", "float16", "float64"]


def case_of(dtype: str, shape: tuple[int, ...], distribution: str = "normal", **axes: Any) -> Case:
    """A backward case; its parameters have the dtype of x."""
    axes = {"direction": Direction.BACKWARD, "param_dtype": dtype} | axes
    return Case(
        implementation="mutant", shape=shape, dtype=dtype, distribution=distribution, **axes
    )


def contiguous_cases(dtype: str) -> Iterator[Case]:
    """Odd and even, on and off multiples of 4, 32, 64 and powers of two, in rows and elements."""
    case, forward = partial(case_of, dtype), {"direction": Direction.FORWARD}
    yield case((33, 257))
    yield case((33, 257), **forward)
    yield case((33, 257), "tiny_variance")
    yield case((33, 257), "tiny_variance", eps=1e-8, **forward)
    yield case((33, 257), eps=0.5)
    yield case((12, 100), "offset_1e2")
    yield case((12, 257), "offset_1e4")
    yield case((5, 64), "constant")
    yield case((12, 64), "mixed_outliers")
    yield case((5, 64), parameters="ones_weight")
    yield case((5, 64), "nan_row")
    yield case((5, 64), grad_output="expanded_row")
    yield case((5, 64), grad_output="expanded_number")
    yield case((5, 64), grad_output="nan_row")
    yield case((5, 64), "tiny_variance", grad_output="huge", eps=1e-6)
    yield case((3, 4, 5, 7), normalized_dims=2)
    yield case((3, 4, 5, 7), normalized_dims=2, **forward)
    yield case((3, 4, 31), affine=Affine.WEIGHT)
    yield case((3, 4, 31), affine=Affine.BIAS)
    yield case((3, 4, 64), affine=Affine.BIAS)
    wide = "float32" if dtype in HALVES else dtype
    yield case((1, 6, 64), param_dtype=wide)
    yield case((1, 6, 64), param_dtype=wide, **forward)
    yield case((300, 16))
    yield case((67, 129))
    yield case((2, 2048), **forward)
    yield case((5, 4097), **forward)
    yield case((4, 4125), "mixed_conditions", **forward)


def cases_of_many_rows(dtype: str) -> tuple[Case, Case]:
    """More rows than a 16-bit index counts, and more elements than one chunk."""
    return (
        case_of(dtype, (65_600, 4), grad_output="few_rows"),
        case_of(dtype, (1030, 1024), direction=Direction.FORWARD),
    )


def other_layouts(dtype: str) -> Iterator[Case]:
    for layout in ("padded_rows", "transposed", "every_second", "storage_offset", "negated"):
        yield case_of(dtype, (8, 65), layout=layout)
    yield case_of(dtype, (7, 7), layout="transposed")
    yield case_of(dtype, (8, 65), layout="padded_rows", direction=Direction.FORWARD)
    yield case_of(dtype, (4, 6, 32), layout="sequence_first")
    yield case_of(dtype, (4, 6, 32), layout="sliced_middle")
    yield case_of(dtype, (6, 5, 7), layout="transposed", normalized_dims=2)

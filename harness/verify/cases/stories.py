"""Stories: groups of cases beside the covering array, each aimed at one kind of mistake.

They need sizes, rows or gradients that no axis of the array has: rows of public bug reports, widths
with kernels of their own, more rows than a 16-bit index counts. A case is run as a backward, which
checks y, dx, dweight and dbias together, and again as inference; stories about gradients run the
backward only. Sizes are odd, distinct and prime where that matters. The quick tier is a subset of
the full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from harness.inputs import DISTRIBUTIONS, reported
from harness.verify.cases.group import BACKWARD, FORWARD, Group

__all__ = ["FULL", "QUICK"]

_ODD_AND_EVEN = ((5, 31), (5, 64))  # kernels that load vectors take another path for each


def _rows(counts: Sequence[int], *hidden: int) -> tuple[tuple[int, ...], ...]:
    return tuple(product(counts, hidden))


_WIDTHS = Group(
    catches="a kernel specialised for a width that models use",
    shapes=_rows(
        (2,), 128, 256, 512, 768, 1024, 1280, 1600, 2048, 3072, 4096, 5120, 8192, 12288, 16385
    ),
)
_REMAINDERS = Group(
    catches="a tail that is wrong for one remainder of the row length, in long rows",
    shapes=_rows((2,), *range(65, 97), *range(2049, 2081)),
    directions=BACKWARD,
)
_BOTH_LARGE = Group(
    catches="one-pass statistics or rows left out where rows are many and long",
    shapes=((300, 1040), (2001, 2003), (8200, 132), (65_600, 64), (5, 70_001)),
    distributions=("mixed_conditions",),
    dtypes=("float32", "bfloat16"),
    directions=BACKWARD,
)
_EPS = Group(
    catches="eps left out, fixed, outside the root, or rounded to a narrow dtype",
    shapes=_ODD_AND_EVEN,
    distributions=("normal", "tiny_variance"),
    eps=(0.0, 1e-8, 1e-6),
)
_PARAMETERS = Group(
    catches="special values of the weight: NaN, zero, one, powers of two",
    shapes=_ODD_AND_EVEN,
    parameters=("zero_weight", "ones_weight", "power_of_two_weight", "nan_weight"),
)
_CONSTANT = Group(
    catches="rows without a variance",
    shapes=_ODD_AND_EVEN,
    distributions=("constant", "constant_1234", "constant_zero"),
)
_NONFINITE = Group(
    catches="a NaN or an infinity that is hidden or spreads to other rows",
    shapes=_ODD_AND_EVEN,
    distributions=("nan_row", "positive_infinity_row"),
)
_SINGLE_ROWS = Group(
    catches="an axis of size one treated as no axis",
    shapes=((1, 7, 33), (5, 1, 64), (1, 1, 33), (1, 3, 5, 64), (2, 1, 1, 33), (1, 2, 1, 3, 33)),
)
_EQUAL_AXES = Group(
    catches="an axis identified by its size alone",
    shapes=((5, 5), (7, 7, 7), (5, 5, 5, 5), (20, 6, 6)),
    layouts=("contiguous", "transposed"),
)
_FOUR_AXES = Group(
    catches="every axis normalised",
    shapes=((2, 3, 5, 7),),
    normalized_dims=(4,),
)
_FIVE_AXES = Group(
    catches="five axes, more than the usual two to four",
    shapes=((2, 3, 1, 5, 7),),
    normalized_dims=(1, 2, 3, 5),
    layouts=("contiguous", "channels_last", "transposed", "every_second"),
)
_MANY_ROWS = Group(
    catches="dweight and dbias summed in a narrow dtype, a block of rows left out",
    shapes=((4100, 24),),
    grad_outputs=("shifted_normal", "ones", "few_rows"),
)
_MORE_ROWS_THAN_16_BITS = Group(
    catches="an overflow of a 16-bit row index",
    shapes=((65_600, 3),),
    grad_outputs=("ones",),
)
# the bound of a sum over so many rows exceeds 64 of them, unless dy is 0 in most rows
_FEW_OF_MORE_ROWS_THAN_16_BITS = Group(
    catches="a 16-bit row index in vectors, last rows left out of sums, rounded partial sums",
    shapes=((65_600, 4),),
    grad_outputs=("few_rows",),
)
_TILES = Group(
    catches="a later tile of rows and columns left out",
    shapes=((300, 520),),
)
_CHUNKS = Group(
    catches="the last chunk of rows left out",
    shapes=((1030, 1024),),
    directions=FORWARD,
)
_EMPTY = Group(
    catches="a crash for an empty x",
    shapes=((0, 5), (3, 0)),
    dtypes=("float32", "bfloat16"),
)
_ONE_ROW_OF_GRADIENT = Group(
    catches="a row or column left out of the gradients, a missing term of dx",
    shapes=((67, 33),),
    grad_outputs=("one_row", "one_column", "centred_normal"),
    directions=BACKWARD,
)
_GRAD_OUTPUTS = Group(
    catches="terms of dx that should cancel, gradients of unusual size, one number taken for 1",
    shapes=((7, 33), (3, 1000)),
    grad_outputs=("inverse_weight", "normalised", "expanded_number"),
    directions=BACKWARD,
)
_GRAD_OUTPUTS_WITHOUT_EPS = Group(
    catches="a missing term of dx, when dx is otherwise zero without eps",
    shapes=((7, 33),),
    grad_outputs=("normalised",),
    eps=(0.0,),
    directions=BACKWARD,
)
_INFINITE_GRAD_OUTPUTS = Group(
    catches="an infinity of dy that is hidden or spreads to other rows and columns",
    shapes=((7, 33), (5, 64)),
    grad_outputs=("infinity_row",),
    directions=BACKWARD,
)
# rstd is 1000 and dy 100: about a third of dx exceeds 65504, and no dweight or dbias does
_OVERFLOWING_DX = Group(
    catches="a clamped dx, which hides an overflow from loss scaling",
    shapes=((7, 33), (5, 64)),
    dtypes=("float16",),
    distributions=("tiny_variance",),
    grad_outputs=("huge",),
    eps=(1e-6,),
    directions=BACKWARD,
)

# by public bug report: the shapes it names
_REPORTED: dict[str, tuple[tuple[int, ...], ...]] = {
    "mlx_2238": ((1, 16),),
    "onnxruntime_21935": ((1, 256),),
    "onnxruntime_28463": ((1, 4),),
    "pytorch_40302": ((2, 32768),),
    "pytorch_51102": ((5, 4),),
    "pytorch_81090": ((100, 32),),
    "pytorch_108072": ((2, 2, 2),),
    "pytorch_162489": ((4, 64),),
    "pytorch_188372": ((3, 1),),
}
_MADE = tuple(name for name in DISTRIBUTIONS if name not in reported.__all__)

QUICK: tuple[Group, ...] = (
    _EPS,
    _PARAMETERS,
    _CONSTANT,
    _NONFINITE,
    _SINGLE_ROWS,
    _EQUAL_AXES,
    _FOUR_AXES,
    _MANY_ROWS,
    _ONE_ROW_OF_GRADIENT,
    _GRAD_OUTPUTS,
    _INFINITE_GRAD_OUTPUTS,
    _OVERFLOWING_DX,
    _EMPTY,
    _WIDTHS,
    _REMAINDERS,
    _MORE_ROWS_THAN_16_BITS,
    _FEW_OF_MORE_ROWS_THAN_16_BITS,
    _TILES,
    _CHUNKS,
)


FULL: tuple[Group, ...] = (
    *QUICK,
    Group(
        catches="what each distribution is made for",
        shapes=((5, 64),),
        distributions=tuple(
            name
            for name in _MADE
            if name not in (*_CONSTANT.distributions, *_NONFINITE.distributions)
        ),
    ),
    Group(
        catches="what each distribution is made for, in longer rows",
        shapes=((17, 1000),),
        distributions=_MADE,
    ),
    Group(
        catches="tails of vectors and blocks, at sizes around powers of two",
        shapes=_rows(
            (1, 6),
            *(1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 255, 257),
            *(768, 1000, 1023, 1024, 1025, 4096, 4097, 5120, 8191, 16384),
        ),
    ),
    Group(
        catches="kernels that switch at 32 or 128 rows",
        shapes=_rows((2, 31, 32, 67, 127, 128, 129, 160, 1000), 33, 64),
    ),
    *(
        Group(
            catches=f"the bug reported as {name.replace('_', ' ')}",
            shapes=shapes,
            distributions=(name,),
            eps=(1e-5, 1e-6),
        )
        for name, shapes in _REPORTED.items()
    ),
    _BOTH_LARGE,
    _FIVE_AXES,
    _GRAD_OUTPUTS_WITHOUT_EPS,
    Group(
        catches="long rows: counts in a narrow dtype, running sums",
        shapes=((2, 65537),),
        dtypes=("float32", "bfloat16", "float16"),
        distributions=("normal", "offset_1e1"),
    ),
    Group(
        catches="a million elements per row, as in normalised images",
        shapes=((1, 1_000_001),),
    ),
    Group(
        catches="activations of realistic size, with all gradients",
        shapes=((1030, 1024), (4100, 768)),
        dtypes=("float32", "bfloat16"),
        directions=BACKWARD,
    ),
    Group(
        catches="an overflow of a 16-bit row index, with two million elements",
        shapes=((65_600, 32),),
        dtypes=("float32",),
    ),
    Group(
        catches="more elements per row than float32 can count",
        shapes=((1, (1 << 24) + 1),),
        dtypes=("float32",),  # the dtype of the count, for half precision too
        directions=FORWARD,
    ),
)

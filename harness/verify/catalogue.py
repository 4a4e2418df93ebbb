"""The cases a target is verified on, as data, each group saying what it catches.

Nearly every case is run as a backward one, which checks y, dx, dweight and dbias together; some
run as inference too, since implementations take another path there. Sizes are odd, distinct and
prime where that matters: a square input or equal axes hide a mistaken axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from harness.inputs import DISTRIBUTIONS, reported
from harness.records import Affine, Case, Direction

__all__ = ["FULL", "QUICK", "Group", "cases_of"]

FORWARD, BACKWARD = (Direction.FORWARD,), (Direction.BACKWARD,)
NARROW = ("float16", "bfloat16")
_ANY_UPSTREAM = "shifted_normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A product of axes and what it is there to catch."""

    catches: str
    shapes: tuple[tuple[int, ...], ...]
    normalized_dims: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    param_dtypes: tuple[str | None, ...] = (None,)
    """None is x's."""
    distributions: tuple[str, ...] = ("normal",)
    layouts: tuple[str, ...] = ("contiguous",)
    upstreams: tuple[str, ...] = ("shifted_normal",)
    affines: tuple[Affine, ...] = (Affine.BOTH,)
    parameters: tuple[str, ...] = ("normal",)
    eps: tuple[float, ...] = (1e-5,)
    directions: tuple[Direction, ...] = BACKWARD


def cases_of(
    group: Group, target: str, dtype: str, device: str, forward_only: bool
) -> Iterator[Case]:
    """Yield the cases of a group in one dtype; none if it has none in that."""
    if dtype not in group.dtypes:
        return
    directions = FORWARD if forward_only else group.directions
    axes = product(
        group.shapes,
        group.normalized_dims,
        group.param_dtypes,
        group.distributions,
        group.layouts,
        group.upstreams,
        group.affines,
        group.parameters,
        group.eps,
        directions,
    )
    for (
        shape, dims, param_dtype, distribution, layout, upstream, affine, parameters, eps, direction
    ) in axes:  # fmt: skip
        yield Case(
            implementation=target,
            shape=shape,
            normalized_dims=dims,
            dtype=dtype,
            param_dtype=param_dtype or dtype,
            device=device,
            distribution=distribution,
            layout=layout,
            # inference has no gradient to start from
            upstream=upstream if direction is not Direction.FORWARD else _ANY_UPSTREAM,
            affine=affine,
            parameters=parameters,
            eps=eps,
            direction=direction,
        )


def _rows(counts: Sequence[int], *hidden: int) -> tuple[tuple[int, ...], ...]:
    return tuple(product(counts, hidden))


_AFFINES = Group(
    catches="None taken for ones, a bias without weight skipped, weight and bias mixed up",
    shapes=((5, 31),),
    affines=(Affine.NONE, Affine.WEIGHT, Affine.BIAS),
    directions=FORWARD + BACKWARD,
)
_PARAMETERS = Group(
    catches="weight or bias that is NaN, zero, negative or exact used in another way than it is",
    shapes=((5, 31),),
    parameters=("zero_weight", "negative_weight", "power_of_two_weight", "nan_weight", "nan_bias"),
    directions=FORWARD + BACKWARD,
)
_EPS = Group(
    catches="eps left out, fixed, outside the root, or cast to a dtype that cannot hold it",
    shapes=((5, 31),),
    distributions=("normal", "tiny_variance"),
    eps=(0.0, 1e-12, 1e-8, 1e-6, 1e-3, 0.5),
)
_LAYOUTS = Group(
    catches="strides, offsets, padding and the negative bit ignored",
    shapes=((7, 33), (3, 64)),
    layouts=("storage_offset", "padded_rows", "transposed", "every_second", "expanded", "negated"),
)
_IMAGES = Group(
    catches="strides of axes in the middle",
    shapes=((2, 3, 5, 7),),
    normalized_dims=(1, 2, 3),
    layouts=("channels_last", "transposed", "padded_rows", "every_second"),
)
_FIVE_AXES = Group(
    catches="a number of axes that is not the usual two to four",
    shapes=((2, 3, 1, 5, 7),),
    normalized_dims=(1, 2, 3, 5),
    layouts=("contiguous", "channels_last", "transposed", "every_second"),
)
_SEVERAL_AXES = Group(
    catches="only the last axis normalised, or all but the first",
    shapes=((2, 3, 5, 7),),
    normalized_dims=(1, 2, 3, 4),
)
_WIDE_PARAMETERS = Group(
    catches="a result promoted to the parameters' dtype",
    shapes=((5, 31),),
    dtypes=NARROW,
    param_dtypes=("float32",),
)
_MANY_ROWS = Group(
    catches="dweight and dbias summed in a narrow dtype, a block of rows left out",
    shapes=((4100, 24),),
    upstreams=("shifted_normal", "ones"),
)
_MORE_ROWS_THAN_16_BITS = Group(
    catches="more rows than 16 bits count",
    shapes=((65_600, 3),),
    upstreams=("ones",),
)
_EMPTY = Group(
    catches="a crash where there is nothing to do",
    shapes=((0, 5), (3, 0)),
    dtypes=("float32", "bfloat16"),
)
_ONE_ROW_OF_GRADIENT = Group(
    catches="a row or column left out of the gradients, a term of dx left out",
    shapes=((67, 33),),
    upstreams=("one_row", "one_column", "centred_normal", "tiny"),
)
_UPSTREAMS = Group(
    catches="terms of dx that have to cancel and do not, gradients of another size",
    shapes=((7, 33), (3, 1000)),
    upstreams=("inverse_weight", "normalised", "huge"),
)
_UPSTREAMS_WITHOUT_EPS = Group(
    catches="a term of dx left out, where without eps nothing else is left",
    shapes=((7, 33),),
    upstreams=("normalised",),
    eps=(0.0,),
)

# the shapes that the bugs were reported on
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
    Group(
        catches="cancellation, eps, outliers, isolation of rows",
        shapes=((5, 64), (3, 1000)),
        distributions=(
            "normal",
            "offset_1e1",
            "offset_1e2",
            "offset_1e4",
            "constant",
            "tiny_variance",
            "outlier_first",
            "transformer_outlier",
            "ramp_offset",
            "row_scales",
            "ulp_comb",
            "nan_row",
        ),
    ),
    Group(
        catches="tails of vectors and blocks, N - 1, one element",
        shapes=(*_rows((1, 67), 1, 2, 3, 7, 33, 129), (3, 4097)),
    ),
    Group(catches="another path in inference", shapes=((5, 64), (3, 1000)), directions=FORWARD),
    _AFFINES,
    _EPS,
    _LAYOUTS,
    _IMAGES,
    _SEVERAL_AXES,
    _WIDE_PARAMETERS,
    _MANY_ROWS,
    _MORE_ROWS_THAN_16_BITS,
    _ONE_ROW_OF_GRADIENT,
    _PARAMETERS,
    _UPSTREAMS,
    _EMPTY,
)

FULL: tuple[Group, ...] = (
    Group(
        catches="every distribution says what",
        shapes=((5, 64), (17, 1000)),
        distributions=_MADE,
    ),
    Group(
        catches="another path in inference",
        shapes=((5, 64), (3, 1000)),
        distributions=_MADE,
        directions=FORWARD,
    ),
    Group(
        catches="tails of vectors and blocks, N - 1, one element, sizes around powers of two",
        shapes=_rows(
            (1, 6),
            *(1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 255, 257),
            *(768, 1000, 1023, 1024, 1025, 4096, 4097, 5120, 8191, 16384),
        ),
    ),
    Group(
        catches="long rows: counts in a narrow dtype, sums in one run",
        shapes=((2, 65537),),
        dtypes=("float32", "bfloat16", "float16"),
        distributions=("normal", "offset_1e1"),
    ),
    Group(
        catches="a million elements a row, as images normalised whole",
        shapes=((1, 1_000_001),),
    ),
    Group(
        catches="more elements a row than float32 can count",
        shapes=((1, (1 << 24) + 1),),
        dtypes=("float32", "bfloat16"),
        directions=FORWARD,
    ),
    Group(
        catches="rows beyond a block, kernels that switch at 32 and 128 rows",
        shapes=_rows((2, 31, 32, 67, 127, 128, 129, 160, 1000), 33, 64),
    ),
    _MORE_ROWS_THAN_16_BITS,
    *(
        Group(
            catches=f"what was reported as {' '.join(name.split('_'))}",
            shapes=shapes,
            distributions=(name,),
            eps=(1e-5, 1e-6),
            directions=FORWARD + BACKWARD,
        )
        for name, shapes in _REPORTED.items()
    ),
    _AFFINES,
    _PARAMETERS,
    _EPS,
    _LAYOUTS,
    _IMAGES,
    _SEVERAL_AXES,
    _FIVE_AXES,
    _WIDE_PARAMETERS,
    _MANY_ROWS,
    _ONE_ROW_OF_GRADIENT,
    _UPSTREAMS,
    _UPSTREAMS_WITHOUT_EPS,
    _EMPTY,
)

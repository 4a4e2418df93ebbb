"""The axes of the covering array: every condition under which a LayerNorm is tried, as data.

To add a condition, add a value to :data:`AXES`; values that cannot occur together are in
:data:`EXCLUSIONS`. Some sizes lie on each side of those at which kernels change path. A size that
is split into several axes of x gives them different lengths where possible, so that a kernel that
mistakes one of them for another fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from math import isqrt
from typing import Any

from harness.records import Affine, Autograd, Case, Direction
from harness.verify.cases.covering_array import Exclusion, covering_array
from harness.verify.scope import Scope

__all__ = [
    "AXES",
    "BACKWARD_CALLS",
    "EXCLUSIONS",
    "FORWARD_CALLS",
    "array_within",
    "axes_within",
    "case_from",
    "factors",
]

FORWARD_CALLS = ("no_grad", "inference_mode", "recorded")
BACKWARD_CALLS = (
    "all_gradients",
    "frozen_x",
    "frozen_parameters",
    "frozen_weight",
    "frozen_bias",
    "non_leaf_x",
)
_MOST_ELEMENTS = 150_000  # of x; more take longer than all other cases together

AXES: dict[str, tuple[Any, ...]] = {
    # one; fewer and more than a warp of 32, a tile of 64, blocks of 128 and 1024; multiples of 32
    "rows": (1, 2, 6, 32, 35, 96, 130, 1030),
    # one; below, at and above a vector of 4; odd; multiples of 4, of 8 and of 32; near 32, 128 and
    # 1024; widths of models; over 1024 and over 4096, both odd and a multiple of a vector
    "hidden": (1, 3, 4, 8, 33, 64, 129, 300, 768, 1025, 1032, 2048, 4125, 5120),
    "leading_axes": (0, 1, 2, 3),
    "normalized_axes": (1, 2, 3),
    "distribution": (
        "normal",
        "mixed_conditions",
        "mixed_scales",
        "mixed_outliers",
        "tiny_variance_offset",
        "ulp_comb",
        "last_digit",
        "square_overflow",
        "mixed_nonfinite",
    ),
    "layout": (
        "contiguous",
        "storage_offset",
        "padded_rows",
        "transposed",
        "every_second",
        "channels_last",
        "sequence_first",
        "sliced_middle",
        "expanded",
        "negated",
    ),
    "affine": ("both", "weight", "bias", "none"),
    "parameters": ("normal", "negative_weight", "mixed_weight", "transposed", "nan_bias"),
    "param_dtype": ("same", "float32"),
    "eps": (1e-5, 1e-12, 1e-3, 0.5, 0.0),
    "call": FORWARD_CALLS + BACKWARD_CALLS,
    "grad_output": (
        "shifted_normal",
        "tiny",
        "huge",
        "few_rows",
        "expanded_row",
        "transposed_normal",
        "strided_normal",
        "negated_normal",
        "nan_row",
        "infinity_row",
    ),
    "threads": (1, 2),
}
"""The values of each axis. The first value of an axis is the usual one."""

_RARE: dict[str, tuple[Any, ...]] = {
    # these values hide mistakes: outputs are missing, all equal, or without a guarantee
    "hidden": (1,),
    "distribution": (
        "ulp_comb",
        "last_digit",
        "square_overflow",
        "mixed_nonfinite",
    ),
    "affine": ("weight", "bias", "none"),
    "eps": (0.5, 0.0),
    "call": tuple(each for each in AXES["call"] if each not in {"all_gradients", "non_leaf_x"}),
    "grad_output": ("few_rows", "nan_row", "infinity_row"),
    # threads wait for each other for longer than a small case takes
    "threads": (2,),
}
"""Values that a row of the array has only where a combination needs them."""
# by strength: array rows per combination. With one row per pair, other values of the row may hide a
# mistake
_TIMES = {2: 2}


def _only(axis: str, values: tuple[Any, ...], other: str, *allowed: Any) -> Exclusion:
    """Exclude all values of ``other`` that are not allowed together with ``values``."""
    excluded = tuple(each for each in AXES[other] if each not in allowed)
    return Exclusion(axis, values, other, excluded)


def _not(axis: str, values: tuple[Any, ...], other: str, *excluded: Any) -> Exclusion:
    return Exclusion(axis, values, other, excluded)


EXCLUSIONS: tuple[Exclusion, ...] = (
    _only("leading_axes", (0,), "rows", 1),
    *(
        _not("rows", (rows,), "hidden", hidden)
        for rows, hidden in product(AXES["rows"], AXES["hidden"])
        if rows * hidden > _MOST_ELEMENTS
    ),
    # these layouts are contiguous if x has only one row, or too few axes;
    # without leading axes, an expanded x is one constant row, which hides most mistakes
    _not("layout", ("transposed", "channels_last", "expanded"), "leading_axes", 0),
    _not("layout", ("expanded",), "rows", 1),
    _only("layout", ("sequence_first", "sliced_middle"), "leading_axes", 2, 3),
    _only("layout", ("channels_last",), "normalized_axes", 2, 3),
    _not("grad_output", ("expanded_row",), "rows", 1),
    # a forward has no output gradient
    _only("call", FORWARD_CALLS, "grad_output", "shifted_normal"),
    # a parameter that is frozen, or that alone requires a gradient, must be given
    _not("call", ("frozen_x", "frozen_parameters"), "affine", "none"),
    _only("call", ("frozen_weight", "frozen_bias"), "affine", "both"),
    # a parameter that is not given has no values
    _only("affine", ("none",), "parameters", "normal"),
    _only("affine", ("none",), "param_dtype", "same"),
    _not("affine", ("weight",), "parameters", "nan_bias"),
    _not("affine", ("bias",), "parameters", "negative_weight", "mixed_weight"),
    # without eps, rows that are constant or nearly so have no exact result
    _only("eps", (0.0,), "distribution", "normal", "mixed_scales"),
    _not("eps", (0.0,), "hidden", 1),
    _not("parameters", ("transposed",), "normalized_axes", 1),
)
"""Values that cannot occur together, or that together repeat another condition."""


def axes_within(scope: Scope, *, forward_only: bool) -> dict[str, tuple[Any, ...]]:
    """Return the axes, each with the values that a target accepts.

    An axis without such a value keeps its usual one, and :meth:`Scope.fit` adapts each case.

    Args:
        scope: of the target.
        forward_only: whether to leave out every backward pass.
    """
    is_fixed = scope.normalized_shape is not None
    allowed: dict[str, tuple[Any, ...]] = {
        "call": FORWARD_CALLS if forward_only else AXES["call"],
        "affine": tuple(affine.value for affine in scope.affines),
        "hidden": AXES["hidden"][:1] if is_fixed else AXES["hidden"],
        "normalized_axes": (1,) if is_fixed else scope.normalized_dims,
        "param_dtype": AXES["param_dtype"] if scope.takes_mixed_dtypes else ("same",),
        "eps": (1e-5,)
        if scope.eps is not None
        else tuple(each for each in AXES["eps"] if each >= scope.least_eps),
        "layout": _without("layout", scope.declined_layouts),
        "grad_output": _without("grad_output", scope.declined_grad_outputs),
        "parameters": _without("parameters", scope.declined_parameters),
    }
    within = {
        axis: tuple(value for value in values if value in allowed.get(axis, values))
        for axis, values in AXES.items()
    }
    return {axis: values or AXES[axis][:1] for axis, values in within.items()}


def _without(axis: str, declined: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(each for each in AXES[axis] if each not in declined)


def array_within(scope: Scope, strength: int, *, forward_only: bool) -> list[dict[str, Any]]:
    """Return the rows of the covering array over the axes of :func:`axes_within`."""
    axes = axes_within(scope, forward_only=forward_only)
    without = tuple(affine.value for affine in scope.affines_without_gradient)
    return _array(
        tuple(axes.items()), strength, Exclusion("call", BACKWARD_CALLS, "affine", without)
    )


@lru_cache(maxsize=8)
def _array(
    axes: tuple[tuple[str, tuple[Any, ...]], ...], strength: int, of_target: Exclusion
) -> list[dict[str, Any]]:
    exclusions = (*EXCLUSIONS, of_target)
    return covering_array(dict(axes), exclusions, strength, _RARE, _TIMES.get(strength, 1))


def case_from(conditions: Mapping[str, Any], target: str, dtype: str, device: str) -> Case:
    """Return the case that a row of the covering array describes.

    Args:
        conditions: the row, a value for each axis.
        target: name of the implementation.
        dtype: of x, by name.
        device: device kind.
    """
    call = conditions["call"]
    leading = factors(conditions["rows"], conditions["leading_axes"])
    normalized = factors(conditions["hidden"], conditions["normalized_axes"])
    is_wide = conditions["param_dtype"] != "same" and dtype in {"float16", "bfloat16"}
    has_mode = call not in {"no_grad", "all_gradients"}
    return Case(
        implementation=target,
        shape=(*leading, *normalized),
        normalized_dims=len(normalized),
        dtype=dtype,
        param_dtype="float32" if is_wide else dtype,
        device=device,
        distribution=conditions["distribution"],
        layout=conditions["layout"],
        direction=Direction.FORWARD if call in FORWARD_CALLS else Direction.BACKWARD,
        autograd=Autograd(call) if has_mode else Autograd.DEFAULT,
        grad_output=conditions["grad_output"],
        affine=Affine(conditions["affine"]),
        parameters=conditions["parameters"],
        eps=conditions["eps"],
        threads=conditions["threads"],
    )


def factors(size: int, count: int) -> tuple[int, ...]:
    """Split a size into ``count`` factors, different ones where possible, the largest last."""
    if count < 2:
        return (size,) * count
    largest = (
        next(
            each
            for each in range(isqrt(size) + 1, size + 1)
            if each * each > size and size % each == 0
        )
        if size > 1
        else 1
    )
    return (*factors(size // largest, count - 1), largest)

"""Start the kernels of rows too long for a program to hold."""

from __future__ import annotations

from typing import Any

from implementations.contract import wide_dtype
from implementations.triton import layout as layouts
from implementations.triton.arguments import leaves, options


def forward(kernels: Any, given: dict[str, Any], saved: int) -> None:
    """Write y, and the moments of the rows if they are to be saved.

    Args:
        kernels: the module ``long_forward_kernels``.
        given: arguments of the kernel of rows that a program holds.
        saved: moments of a row, which are written to ``moments_ptr`` unless it is None.
    """
    x, rows, hidden, moments = (given[key] for key in ("x_ptr", "rows", "hidden", "moments_ptr"))
    statistic, of_row = given["STATISTIC"], {key: given[key] for key in ("hidden", "WIDE")}
    blocks = -(-hidden // layouts.LONG_BLOCK)
    if moments is None:
        moments = x.new_empty((saved, rows), dtype=wide_dtype(x.dtype))
    sums = moments.new_empty((3, rows, blocks))
    reading = {"x_ptr": x, "x_stride": given["x_stride"], **of_row}
    for is_second in (False, True) if statistic == "two_pass" else (False,):
        kernels.sums_of_blocks[(rows * blocks,)](
            **reading,
            mean_ptr=moments if is_second else None,
            sums_ptr=sums,
            rows=rows,
            blocks=blocks,
            STATISTIC=statistic,
            **_leaves(layouts.SUMMING, given, "x"),
            **options(layouts.SUMMING),
        )
        kernels.moments_of_rows[(rows,)](
            **of_row,
            sums_ptr=sums,
            moments_ptr=moments,
            rows=rows,
            blocks=blocks,
            eps_bits=given["eps_bits"],
            STATISTIC=statistic,
            SECOND_OF_TWO=is_second,
            LONG_BLOCK=layouts.LONG_BLOCK,
            **options(layouts.JOINING),
        )
    blocks = -(-hidden // layouts.WRITING.columns)
    kernels.normalise_blocks[(rows * blocks,)](
        **reading,
        weight_ptr=given["weight_ptr"],
        bias_ptr=given["bias_ptr"],
        y_ptr=given["y_ptr"],
        moments_ptr=moments,
        rows=rows,
        blocks=blocks,
        RECENTRED=statistic == "recentred",
        **_leaves(layouts.WRITING, given, "x"),
        **options(layouts.WRITING),
    )


def backward(
    kernels: Any,
    given: dict[str, Any],
    for_dx: dict[str, Any],
    into: dict[str, Any],
    parts: int,
) -> None:
    """Write dx, and parts of dweight and dbias; a pointer is None if it is not needed.

    Args:
        kernels: the module ``long_backward_kernels``.
        given: arguments of every kernel of the backward.
        for_dx: ``weight_ptr`` and ``dx_ptr``.
        into: ``dweight_parts_ptr`` and ``dbias_parts_ptr``.
        parts: their number.
    """
    rows, hidden, moments = given["rows"], given["hidden"], given["moments_ptr"]
    means = None
    if for_dx["dx_ptr"] is not None:
        blocks = -(-hidden // layouts.LONG_BLOCK)
        sums, means = moments.new_empty((2, rows, blocks)), moments.new_empty((2, rows))
        kernels.gradient_sums_of_blocks[(rows * blocks,)](
            **given,
            weight_ptr=for_dx["weight_ptr"],
            sums_ptr=sums,
            blocks=blocks,
            **_leaves(layouts.SUMMING, given, "dy", "x"),
            **options(layouts.SUMMING),
        )
        kernels.gradient_means_of_rows[(2 * rows,)](
            sums, means, blocks, hidden, given["WIDE"], **options(layouts.JOINING)
        )
    layout = layouts.GRADIENTS
    kernels.gradients_of_blocks[-(-hidden // layout.columns), parts](
        **given, **for_dx, **into, means_ptr=means, STAGES=layout.stages, **options(layout)
    )


def _leaves(layout: layouts.Layout, given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return how the columns of a tile are split, where the tensors of these names are read."""
    read = [given[f"{name}_ptr"] for name in names]
    strides = (given[f"{name}_stride"] for name in names)
    is_aligned = not any(tensor.data_ptr() % 16 for tensor in read)
    return leaves(layout, given["hidden"], read[0].element_size(), *strides, is_aligned=is_aligned)

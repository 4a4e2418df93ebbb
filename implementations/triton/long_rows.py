"""Start the kernels of rows too long for a program to hold."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from implementations.contract import wide_dtype
from implementations.triton import layout as layouts
from implementations.triton.arguments import leaves, options


def forward(
    kernels: Any,
    saved: int,
    is_aligned: bool,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    moments: Tensor | None,
    *,
    rows: int,
    x_stride: int,
    eps_bits: int,
    STATISTIC: str,
    **of_row: Any,
) -> None:
    """Write y, and the moments of the rows if they are to be saved.

    Args:
        kernels: the module ``long_forward_kernels``.
        saved: moments of a row, which are written to ``moments`` unless it is None.
        is_aligned: whether the address of x is a multiple of 16 bytes.
        of_row: ``hidden`` and ``WIDE``. These and the arguments above are those of the kernel of
            rows that a program holds.
    """
    hidden = of_row["hidden"]
    blocks = -(-hidden // layouts.LONG_BLOCK)
    if moments is None:
        moments = x.new_empty((saved, rows), dtype=wide_dtype(x.dtype))
    sums = moments.new_empty((3, rows, blocks))
    reading = {"x_ptr": x, "x_stride": x_stride, **of_row}

    def split(layout: layouts.Layout) -> dict[str, Any]:
        return leaves(layout, hidden, x.itemsize, x_stride, is_aligned=is_aligned)

    for is_second in (False, True) if STATISTIC == "two_pass" else (False,):
        kernels.sums_of_blocks[(rows * blocks,)](
            **reading,
            mean_ptr=moments if is_second else None,
            sums_ptr=sums,
            rows=rows,
            blocks=blocks,
            STATISTIC=STATISTIC,
            **split(layouts.SUMMING),
            **options(layouts.SUMMING),
        )
        kernels.moments_of_rows[(rows,)](
            **of_row,
            sums_ptr=sums,
            moments_ptr=moments,
            rows=rows,
            blocks=blocks,
            eps_bits=eps_bits,
            STATISTIC=STATISTIC,
            SECOND_OF_TWO=is_second,
            LONG_BLOCK=layouts.LONG_BLOCK,
            **options(layouts.JOINING),
        )
    blocks = -(-hidden // layouts.WRITING.columns)
    kernels.normalise_blocks[(rows * blocks,)](
        **reading,
        weight_ptr=weight,
        bias_ptr=bias,
        y_ptr=y,
        moments_ptr=moments,
        rows=rows,
        blocks=blocks,
        RECENTRED=STATISTIC == "recentred",
        **split(layouts.WRITING),
        **options(layouts.WRITING),
    )


def backward(
    kernels: Any,
    parts: int,
    is_aligned: bool,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    moments: Tensor,
    dx: Tensor | None,
    dweight_parts: Tensor | None,
    dbias_parts: Tensor | None,
    **sizes: Any,
) -> None:
    """Write dx, and parts of dweight and dbias; a tensor is None if it is not needed.

    Args:
        kernels: the module ``long_backward_kernels``.
        parts: their number.
        is_aligned: whether the addresses of dy and x are multiples of 16 bytes.
        sizes: the remaining arguments of the kernel of rows that a program holds, but for those
            that its layout gives.
    """
    rows, hidden = sizes["rows"], sizes["hidden"]
    strides = sizes["dy_stride"], sizes["x_stride"]
    reading = {"dy_ptr": dy, "x_ptr": x, "weight_ptr": weight, "moments_ptr": moments, **sizes}
    means = None
    if dx is not None:
        layout = layouts.SUMMING
        blocks = -(-hidden // layouts.LONG_BLOCK)
        sums, means = moments.new_empty((2, rows, blocks)), moments.new_empty((2, rows))
        kernels.gradient_sums_of_blocks[(rows * blocks,)](
            **reading,
            sums_ptr=sums,
            blocks=blocks,
            **leaves(layout, hidden, x.itemsize, *strides, is_aligned=is_aligned),
            **options(layout),
        )
        kernels.gradient_means_of_rows[(2 * rows,)](
            sums, means, blocks, hidden, sizes["WIDE"], **options(layouts.JOINING)
        )
    layout = layouts.GRADIENTS
    kernels.gradients_of_blocks[-(-hidden // layout.columns), parts](
        **reading,
        dx_ptr=dx,
        dweight_parts_ptr=dweight_parts,
        dbias_parts_ptr=dbias_parts,
        means_ptr=means,
        STAGES=layout.stages,
        **options(layout),
    )

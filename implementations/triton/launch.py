"""Start the kernels on tensors; :mod:`long_rows` does it for rows that no program can hold."""

from __future__ import annotations

import torch
from torch import Tensor

from implementations.contract import wide_dtype
from implementations.triton import layout as layouts
from implementations.triton import long_rows
from implementations.triton.arguments import (
    as_matrix,
    as_vector,
    bits,
    current,
    in_triton,
    kernels,
    leaves,
    multiprocessors,
    options,
    rows_of,
)
from implementations.triton.layout import Layout


def moments_of(statistic: str) -> int:
    """Return how many numbers of each row are saved for the backward."""
    return 4 if statistic == "recentred" else 2


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    hidden: int,
    eps: float,
    statistic: str,
    saves: bool,
) -> tuple[Tensor, Tensor]:
    """Return y, contiguous, and the moments that the backward needs.

    Args:
        x: any shape whose trailing axes have ``hidden`` elements together.
        weight: ``hidden`` elements in any shape, or None; as is ``bias``.
        hidden: elements that share a mean.
        eps: added to the variance.
        statistic: as :func:`implementations.triton.statistics.moments` takes it.
        saves: whether there will be a backward.

    Returns:
        y, and moments (2 or 4, rows) in float32 or wider: mean, rstd, and for ``recentred`` two
        residual means; (2 or 4, 0) if nothing is saved.

    Raises:
        UnsupportedError: triton is not installed, or there is no kernel for device, dtype or size.
    """
    rows = rows_of(x, hidden)
    found = kernels("forward_kernels", x, rows, hidden)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    moments = x.new_empty((moments_of(statistic), rows if saves else 0), dtype=wide_dtype(x.dtype))
    if not x.numel():
        return y, moments.zero_()
    layout = layouts.forward(hidden, x.element_size())
    matrix = as_matrix(x, rows, hidden)
    given = {
        "x_ptr": matrix,
        "weight_ptr": as_vector(weight),
        "bias_ptr": as_vector(bias),
        "y_ptr": y,
        "moments_ptr": moments if saves else None,
        "rows": rows,
        "hidden": hidden,
        "x_stride": matrix.stride(0),
        "eps_bits": bits(eps),
        "STATISTIC": statistic,
        "WIDE": in_triton(moments.dtype),
    }
    with current(x.device):
        if layout is None:
            long = kernels("long_forward_kernels", x, rows, hidden)
            long_rows.forward(long, given, moments)
        else:
            grid = (layout.grid(rows, multiprocessors(x.device)),)
            tile = leaves(layout, hidden, matrix, grouped=statistic == "welford")
            found.forward_of_tiles[grid](**given, **tile, **_staged(layout))
    return y, moments


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    moments: Tensor,
    hidden: int,
    wants_dx: bool,
    dweight_dtype: torch.dtype | None,
    dbias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, contiguous, and dweight and dbias (hidden,); each is empty if not needed.

    Args:
        dy: the shape of ``x``.
        x: as given to :func:`forward`, as are ``weight`` and ``hidden``.
        moments: as :func:`forward` saved them.
        wants_dx: whether dx is needed.
        dweight_dtype: None if dweight is not needed; likewise ``dbias_dtype``.
    """
    rows = rows_of(x, hidden)
    found = kernels("backward_kernels", x, rows, hidden)
    dx = x.new_empty(x.shape if wants_dx else 0)
    dweight = x.new_empty(hidden if dweight_dtype else 0, dtype=dweight_dtype)
    dbias = x.new_empty(hidden if dbias_dtype else 0, dtype=dbias_dtype)
    if not x.numel():
        return dx, dweight.zero_(), dbias.zero_()
    layout = layouts.backward(hidden, x.element_size())
    available = multiprocessors(x.device)
    if layout is None:
        parts = layouts.gradient_parts(rows, hidden, available)
    else:
        parts = layout.grid(rows, available)
    wanted = [gradient if gradient.numel() else None for gradient in (dweight, dbias)]
    sums = moments.new_empty((sum(gradient is not None for gradient in wanted), parts, hidden))
    matrices = as_matrix(dy, rows, hidden), as_matrix(x, rows, hidden)
    given = {
        "dy_ptr": matrices[0],
        "x_ptr": matrices[1],
        "moments_ptr": moments,
        "rows": rows,
        "hidden": hidden,
        "dy_stride": matrices[0].stride(0),
        "x_stride": matrices[1].stride(0),
        "RECENTRED": moments.shape[0] == moments_of("recentred"),
        "WIDE": in_triton(moments.dtype),
    }
    for_dx = {"weight_ptr": as_vector(weight), "dx_ptr": dx if wants_dx else None}
    into = {
        "dweight_parts_ptr": sums[0] if dweight_dtype else None,
        "dbias_parts_ptr": sums[-1] if dbias_dtype else None,
    }
    with current(x.device):
        if layout is None:
            long = kernels("long_backward_kernels", x, rows, hidden)
            long_rows.backward(long, given, for_dx, into, parts)
        else:
            tile = {**leaves(layout, hidden, *matrices), **_staged(layout)}
            found.backward_of_tiles[(parts,)](**given, **for_dx, **into, **tile)
        if len(sums):
            adding = layouts.adding(parts)
            grid = -(-hidden // adding.columns), len(sums)
            found.add_parts[grid](
                sums, *wanted, parts, hidden, given["WIDE"], ROWS=adding.rows, **options(adding)
            )
    return dx, dweight, dbias


def _staged(layout: Layout) -> dict[str, object]:
    """Return compile options of a kernel that loops over tiles."""
    return {"ROWS": layout.rows, "STAGES": layout.stages, **options(layout)}

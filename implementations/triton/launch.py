"""Start the kernels on tensors; :mod:`long_rows` does it for rows that no program can hold.

What depends only on shapes, strides, dtypes and the device is found once per kind of call: finding
it takes longer than a small LayerNorm runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from implementations.contract import wide_dtype
from implementations.triton import layout as layouts
from implementations.triton import long_rows
from implementations.triton.arguments import (
    as_rows,
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

KINDS = 1024  # of calls whose plans are kept
plan = lru_cache(KINDS)


def moments_of(statistic: str) -> int:
    """Return how many numbers of each row are saved for the backward."""
    return 4 if statistic == "recentred" else 2


# --- forward -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Forward:
    """What the forward of all calls of one kind has in common."""

    wide: torch.dtype
    start: Callable[..., object]
    """Starts the kernels with x, weight, bias, y and moments, and with ``eps_bits``."""


@plan
def _forward_plan(
    rows: int,
    hidden: int,
    stride: int,
    is_aligned: bool,
    dtype: torch.dtype,
    device: torch.device,
    statistic: str,
) -> _Forward:
    found, wide = kernels("forward_kernels", dtype, device, rows, hidden), wide_dtype(dtype)
    constants: dict[str, Any] = {
        "rows": rows,
        "hidden": hidden,
        "x_stride": stride,
        "STATISTIC": statistic,
        "WIDE": in_triton(wide),
    }
    if not (rows and hidden):
        return _Forward(wide, _nothing)
    layout = layouts.forward(hidden, dtype.itemsize)
    if layout is None:
        long = kernels("long_forward_kernels", dtype, device, rows, hidden)
        return _Forward(
            wide, partial(long_rows.forward, long, moments_of(statistic), is_aligned, **constants)
        )
    grouped = statistic == "welford"
    constants |= leaves(
        layout, hidden, dtype.itemsize, stride, is_aligned=is_aligned, grouped=grouped
    )
    kernel = found.forward_of_tiles[(layout.grid(rows, multiprocessors(device)),)]
    return _Forward(wide, partial(kernel, **constants, **_staged(layout)))


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    hidden: int,
    eps: float,
    statistic: str,
    saves: bool,
) -> tuple[Tensor, Tensor | None]:
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
        residual means; None if nothing is saved.

    Raises:
        UnsupportedError: triton is not installed, or there is no kernel for device, dtype or size.
    """
    rows = rows_of(x, hidden)
    matrix, stride = as_rows(x, rows, hidden)
    is_aligned = matrix.data_ptr() % 16 == 0
    planned = _forward_plan(rows, hidden, stride, is_aligned, x.dtype, x.device, statistic)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    # sizes apart, and torch.empty: twice as fast as x.new_empty of a tuple
    moments = (
        torch.empty(moments_of(statistic), rows, dtype=planned.wide, device=x.device)
        if saves
        else None
    )
    with current(x):
        planned.start(matrix, as_vector(weight), as_vector(bias), y, moments, eps_bits=bits(eps))
    return y, moments


# --- backward ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Backward:
    """What the backward of all calls of one kind has in common."""

    parts: int
    """How many parts of dweight and dbias are written."""
    start: Callable[..., object]
    """Starts the kernels with dy, x, weight, moments, dx, and parts of dweight and dbias."""
    add: Callable[..., object]
    """Starts the kernel that adds up the parts, with these, dweight and dbias."""


@plan
def _backward_plan(
    rows: int,
    hidden: int,
    strides: tuple[int, int],
    is_aligned: bool,
    dtype: torch.dtype,
    device: torch.device,
    saved: int,
    sums: int,
) -> _Backward:
    found, wide = (
        kernels("backward_kernels", dtype, device, rows, hidden),
        in_triton(wide_dtype(dtype)),
    )
    constants: dict[str, Any] = {
        "rows": rows,
        "hidden": hidden,
        "dy_stride": strides[0],
        "x_stride": strides[1],
        "RECENTRED": saved == moments_of("recentred"),
        "WIDE": wide,
    }
    available, layout = multiprocessors(device), layouts.backward(hidden, dtype.itemsize)
    start: Callable[..., object]
    if layout is None:
        parts = layouts.gradient_parts(rows, hidden, available)
        long = kernels("long_backward_kernels", dtype, device, rows, hidden)
        start = partial(long_rows.backward, long, parts, is_aligned, **constants)
    else:
        parts = layout.grid(rows, available)
        constants |= leaves(layout, hidden, dtype.itemsize, *strides, is_aligned=is_aligned)
        start = partial(found.backward_of_tiles[(parts,)], **constants, **_staged(layout))
    if not sums:
        return _Backward(parts, start, _nothing)
    adding = layouts.adding(parts)
    kernel = found.add_parts[-(-hidden // adding.columns), sums]
    fixed = {"parts": parts, "hidden": hidden, "WIDE": wide, "ROWS": adding.rows}
    return _Backward(parts, start, partial(kernel, **fixed, **options(adding)))


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    moments: Tensor,
    hidden: int,
    wants_dx: bool,
    dweight_dtype: torch.dtype | None,
    dbias_dtype: torch.dtype | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dx, contiguous, and dweight and dbias (hidden,); each is None if not needed.

    Args:
        dy: the shape of ``x``.
        x: as given to :func:`forward`, as are ``weight`` and ``hidden``.
        moments: as :func:`forward` saved them.
        wants_dx: whether dx is needed.
        dweight_dtype: None if dweight is not needed; likewise ``dbias_dtype``.
    """
    rows = rows_of(x, hidden)
    dweight = None if dweight_dtype is None else x.new_empty(hidden, dtype=dweight_dtype)
    dbias = None if dbias_dtype is None else x.new_empty(hidden, dtype=dbias_dtype)
    summed = [gradient for gradient in (dweight, dbias) if gradient is not None]
    dx = x.new_empty(x.shape) if wants_dx else None
    if not (rows and hidden):
        for gradient in summed:
            gradient.zero_()
        return dx, dweight, dbias
    (dy, dy_stride), (matrix, stride) = as_rows(dy, rows, hidden), as_rows(x, rows, hidden)
    planned = _backward_plan(
        rows,
        hidden,
        (dy_stride, stride),
        not (dy.data_ptr() % 16 or matrix.data_ptr() % 16),
        x.dtype,
        x.device,
        moments.shape[0],
        len(summed),
    )
    parts = moments.new_empty(len(summed), planned.parts, hidden)
    dweight_parts = None if dweight is None else parts  # they come first
    dbias_parts = None if dbias is None else parts[-1]
    with current(x):
        planned.start(dy, matrix, as_vector(weight), moments, dx, dweight_parts, dbias_parts)
        planned.add(parts, dweight, dbias)
    return dx, dweight, dbias


def forget_plans() -> None:
    """Find the plans anew, for layouts that have changed."""
    _forward_plan.cache_clear()
    _backward_plan.cache_clear()


def _staged(layout: Layout) -> dict[str, object]:
    """Return compile options of a kernel that loops over tiles."""
    of_loop = {"ROWS": layout.rows, "STAGES": layout.stages, "maxnreg": layout.registers}
    return {**of_loop, **options(layout)}


def _nothing(*_: object, **__: object) -> None:
    """Stand for kernels where there is nothing to compute."""

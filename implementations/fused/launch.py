"""Start the kernels on tensors: strides, dtypes, grids, and what there is no kernel for.

Triton, and with it the kernels, is imported at the first call.
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from implementations.contract import UnsupportedError, wide_dtype
from implementations.fused import layout as layouts
from implementations.fused.layout import Layout

__all__ = ["backward", "forward", "moments_of"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_OLDEST = (3, 3)  # of triton: the compiler of 3.2 breaks off at tiles that are fetched ahead
_INTERPRETED = 4  # ours: multiprocessors that the interpreter is taken for, which has none


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
    """Return y, contiguous, and what the backward needs of each row.

    Args:
        x: any shape whose trailing axes have ``hidden`` elements together.
        weight: ``hidden`` elements in any shape, or None; as is ``bias``.
        hidden: elements that share a mean.
        eps: added to the variance.
        statistic: as :func:`implementations.fused.statistics.moments` takes it.
        saves: whether there will be a backward.

    Returns:
        y, and moments (2 or 4, rows) in float32 or wider: mean, rstd, and for ``recentred`` what is
        left of the mean, twice; no columns if nothing is to be saved.

    Raises:
        UnsupportedError: triton is not installed, or there is no kernel for device, dtype or size.
    """
    rows = _rows_of(x, hidden)
    kernels = _kernels("forward_kernels", x, rows, hidden)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    moments = x.new_empty((moments_of(statistic), rows if saves else 0), dtype=wide_dtype(x.dtype))
    if not x.numel():
        return y, moments.zero_()
    layout = layouts.forward(hidden, x.element_size(), _bytes_of(weight) + _bytes_of(bias))
    matrix = _as_matrix(x, rows, hidden)
    arguments = (
        matrix,
        _as_vector(weight),
        _as_vector(bias),
        y,
        moments if saves else None,
        rows,
        hidden,
        matrix.stride(0),
        _bits(eps),
        statistic,
        _in_triton(moments.dtype),
    )
    leaves = _leaves(layout, hidden, matrix, grouped=statistic == "welford")
    options = {**leaves, **_options(layout)}
    with _current(x.device):
        grid = (layout.grid(rows, _multiprocessors(x.device)),)
        if layout.holds_row:
            kernels.forward_of_tiles[grid](*arguments, ROWS=layout.rows, **options)
        else:
            kernels.forward_of_long_rows[grid](*arguments, **options)
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
    """Return dx, contiguous, and dweight and dbias (hidden,); what is not wanted has no elements.

    Args:
        dy: the shape of ``x``.
        x: as given to :func:`forward`, as are ``weight`` and ``hidden``.
        moments: as :func:`forward` saved them.
        wants_dx: whether dx is wanted.
        dweight_dtype: of dweight; None if it is not wanted. As is ``dbias_dtype``.
    """
    rows = _rows_of(x, hidden)
    kernels = _kernels("backward_kernels", x, rows, hidden)
    dx = x.new_empty(x.shape if wants_dx else 0)
    dweight = x.new_empty(hidden if dweight_dtype else 0, dtype=dweight_dtype)
    dbias = x.new_empty(hidden if dbias_dtype else 0, dtype=dbias_dtype)
    if not x.numel():
        return dx, dweight.zero_(), dbias.zero_()
    layout = layouts.backward(hidden, x.element_size(), _bytes_of(weight))
    multiprocessors = _multiprocessors(x.device)
    programs = layout.grid(rows, multiprocessors)
    summing, parts = layout, programs
    if layout.sums_apart:
        summing, parts = layouts.columns(rows, hidden, multiprocessors)
    found = [each if each.numel() else None for each in (dweight, dbias)]
    sums = moments.new_empty((sum(each is not None for each in found), parts, hidden))
    into = {
        "dweight_parts_ptr": sums[0] if dweight_dtype else None,
        "dbias_parts_ptr": sums[-1] if dbias_dtype else None,
    }
    matrices = _as_matrix(dy, rows, hidden), _as_matrix(x, rows, hidden)
    given = {
        "dy_ptr": matrices[0],
        "x_ptr": matrices[1],
        "moments_ptr": moments,
        "rows": rows,
        "hidden": hidden,
        "dy_stride": matrices[0].stride(0),
        "x_stride": matrices[1].stride(0),
        "RECENTRED": moments.shape[0] == moments_of("recentred"),
        "WIDE": _in_triton(moments.dtype),
    }
    of_rows = {
        **given,
        "weight_ptr": _as_vector(weight),
        "dx_ptr": dx if wants_dx else None,
        **_leaves(layout, hidden, *matrices),
        **_options(layout),
    }
    with _current(x.device):
        if not layout.sums_apart:
            kernels.backward_of_tiles[(programs,)](**of_rows, **into, ROWS=layout.rows)
        elif wants_dx and layout.holds_row:
            none = dict.fromkeys(into)
            kernels.backward_of_tiles[(programs,)](**of_rows, **none, ROWS=layout.rows)
        elif wants_dx:
            kernels.backward_of_long_rows[(programs,)](**of_rows)
        if layout.sums_apart and len(sums):
            grid = -(-hidden // summing.columns), parts
            kernels.backward_of_columns[grid](
                **given, **into, ROWS=summing.rows, **_options(summing)
            )
        if len(sums):
            adding = layouts.adding(parts)
            kernels.add_parts[(-(-hidden // adding.columns), len(sums))](
                sums,
                *found,
                parts,
                hidden,
                given["WIDE"],
                ROWS=adding.rows,
                COLUMNS=adding.columns,
                num_warps=adding.warps,
                enable_fp_fusion=True,
            )
    return dx, dweight, dbias


def _rows_of(x: Tensor, hidden: int) -> int:
    return x.numel() // hidden if hidden else 0


def _kernels(name: str, x: Tensor, rows: int, hidden: int) -> Any:
    """Import a module of kernels.

    Raises:
        UnsupportedError: triton is not installed, or there is no kernel for device, dtype or size.
    """
    if (dtype := _name(x.dtype)) not in _DTYPES:
        raise UnsupportedError(f"no kernel for {dtype}; there are for {', '.join(_DTYPES)}")
    if max(rows, hidden) > layouts.LONGEST:
        raise UnsupportedError(
            f"{rows} rows of {hidden} elements: the Triton kernels count up to {layouts.LONGEST}"
        )
    kernels, interpreted = _imported(name)
    if not (x.is_cuda or (interpreted and x.device.type == "cpu")):
        raise UnsupportedError(
            f"Triton kernels run on cuda, x is on {x.device.type}; with TRITON_INTERPRET=1 in the "
            "environment, set before Python starts, they are interpreted on the cpu"
        )
    return kernels


@cache
def _imported(name: str) -> tuple[Any, bool]:
    """Return a module of kernels, and whether Triton interprets them."""
    if find_spec("triton") is None:
        raise UnsupportedError("needs triton: pip install 'layernorm-bench[triton]'")
    triton = import_module("triton")
    if tuple(map(int, triton.__version__.split(".")[:2])) < _OLDEST:
        raise UnsupportedError(
            f"needs triton {_OLDEST[0]}.{_OLDEST[1]} or newer, which comes with torch 2.7; "
            f"found {triton.__version__}"
        )
    found = import_module(f"implementations.fused.{name}")
    return found, not isinstance(getattr(found, found.__all__[0]), triton.JITFunction)


def _as_matrix(x: Tensor, rows: int, hidden: int) -> Tensor:
    """Return x as (rows, hidden), the elements of a row side by side; copies only if it must."""
    matrix = x.reshape(rows, hidden)
    return matrix if matrix.stride(1) == 1 or hidden == 1 else matrix.contiguous()


def _as_vector(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous().view(-1)


def _bytes_of(parameter: Tensor | None) -> int:
    """Return the bytes of an element."""
    return 0 if parameter is None else parameter.element_size()


def _options(layout: Layout) -> dict[str, object]:
    """Return how a kernel is compiled.

    A product and a sum may become one operation: it leaves a rounding out, and no kernel here
    relies on one.
    """
    return {
        "COLUMNS": layout.columns,
        "STAGES": layout.stages,
        "num_warps": layout.warps,
        "enable_fp_fusion": True,
    }


def _leaves(
    layout: Layout, hidden: int, *matrices: Tensor, grouped: bool = False
) -> dict[str, Any]:
    """Return how the columns of a tile are split, so that a thread's elements are its leaves.

    They are neighbours if Triton reads 16 bytes at once: where pointers are multiples of 16 bytes,
    and sizes and strides of 16 elements. Of a short row a thread has few elements, which need no
    leaves unless they are to be ``grouped``.
    """
    if layout.columns <= layouts.SHORT and not grouped:
        return {"LEAVES": layout.columns, "NEIGHBOURS": True}
    aligned = not any(
        each.data_ptr() % 16 or each.stride(0) % 16 or hidden % 16 for each in matrices
    )
    leaves = 16 // matrices[0].element_size() if aligned else layouts.LEAVES_APART
    return {"LEAVES": min(leaves, layout.columns), "NEIGHBOURS": aligned}


def _bits(eps: float) -> int:
    """Return the bits of a float64 as an integer: a kernel would round the number to float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", eps))[0]
    return bits


def _in_triton(dtype: torch.dtype) -> Any:
    return getattr(import_module("triton.language"), _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one, on which Triton starts its kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count

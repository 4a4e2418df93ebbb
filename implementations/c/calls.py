"""Calls of the C library on tensors: what it is told of their memory, and what it gives back."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from implementations.c.build import library
from implementations.contract import UnsupportedError, wide_dtype

__all__ = ["STATISTICS", "backward", "forward"]

STATISTICS = 3
"""Numbers kept of a row: the mean as a sum of two, and 1/sqrt(variance + eps)."""

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""As elements.h numbers them."""
# struct forward and struct backward of recentred.c: to pass one packed argument takes a third of the
# time that fourteen take
_pack_forward = struct.Struct("@6P3nd4i").pack
_pack_backward = struct.Struct("@8P4n4i").pack

_Call = Callable[[bytes], int]


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float, saves: bool
) -> tuple[Tensor, Tensor | None]:
    """Normalise the rows of ``x``, its last ``hidden`` elements being one.

    Args:
        x: on the CPU, as are weight and bias; any strides.
        saves: whether the statistics are wanted.

    Returns:
        y, contiguous, and the statistics of each row, (rows, STATISTICS) in float32 or wider.

    Raises:
        UnsupportedError: the library cannot be built, or the dtypes are not what it takes.
        MemoryError: there is none for weight and bias in the dtype of the sums.
    """
    call, _, parallel = _functions()
    types = _types(
        x.dtype, None if weight is None else weight.dtype, None if bias is None else bias.dtype
    )
    y = _like(x)
    count = x.numel()
    rows = count // hidden if count else 0
    statistics = None
    if saves:
        statistics = torch.empty((rows, STATISTICS), dtype=wide_dtype(x.dtype))
    if not count:
        return y, statistics
    x, stride = _dense_rows(x, hidden)
    weight, bias = _dense(weight), _dense(bias)
    packed = _pack_forward(
        x.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        0 if statistics is None else statistics.data_ptr(),
        parallel,
        rows,
        hidden,
        stride,
        eps,
        *types,
        torch.get_num_threads(),
    )
    if call(packed):
        raise MemoryError(f"c_recentred: no memory for 2 x {hidden} parameters")
    return y, statistics


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    hidden: int,
    wants_dx: bool,
    wants_dweight: bool,
    wants_dbias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dx, dweight and dbias, contiguous; None for what is not wanted.

    Raises:
        MemoryError: there is none for the sums over rows.
    """
    _, call, parallel = _functions()
    types = _types(
        x.dtype, None if weight is None else weight.dtype, None if bias is None else bias.dtype
    )
    dx = _like(x) if wants_dx else None
    dweight = _like(weight) if wants_dweight and weight is not None else None
    dbias = _like(bias) if wants_dbias and bias is not None else None
    count = x.numel()
    if not count:
        for each in (dweight, dbias):
            if each is not None:
                each.zero_()
        return dx, dweight, dbias
    x, x_stride = _dense_rows(x, hidden)
    dy, dy_stride = _dense_rows(dy, hidden)
    weight = _dense(weight)
    packed = _pack_backward(
        x.data_ptr(),
        dy.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        statistics.data_ptr(),
        0 if dx is None else dx.data_ptr(),
        0 if dweight is None else dweight.data_ptr(),
        0 if dbias is None else dbias.data_ptr(),
        parallel,
        count // hidden,
        hidden,
        x_stride,
        dy_stride,
        *types,
        torch.get_num_threads(),
    )
    if call(packed):
        raise MemoryError(f"c_recentred: no memory to sum gradients over {count // hidden} rows")
    return dx, dweight, dbias


@cache
def _functions() -> tuple[_Call, _Call, int]:
    """Forward and backward, and the address of what runs a function in several threads.

    That is GOMP_parallel of the OpenMP runtime that torch itself runs on, so that no second set of
    threads competes with torch's; 0, for one thread, where torch has another runtime.
    """
    found = library()
    for each in (found.recentred_forward, found.recentred_backward):
        each.argtypes = (ctypes.c_char_p,)
        each.restype = ctypes.c_int
    try:
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except AttributeError:
        return found.recentred_forward, found.recentred_backward, 0
    address = ctypes.cast(parallel, ctypes.c_void_p).value or 0
    return found.recentred_forward, found.recentred_backward, address


@cache
def _types(
    dtype: torch.dtype, weight: torch.dtype | None, bias: torch.dtype | None
) -> tuple[int, int, int]:
    """Numbers of the types of x, weight and bias; 0 for one that is not there.

    Raises:
        UnsupportedError: these are not taken.
    """
    if dtype not in _TYPES:
        taken = ", ".join(str(each).removeprefix("torch.") for each in _TYPES)
        raise UnsupportedError(f"c_recentred does not take {dtype}; it takes {taken}")
    for name, other in (("weight", weight), ("bias", bias)):
        if other not in {None, dtype, torch.float32}:
            raise UnsupportedError(
                f"c_recentred takes {name} in x's dtype or in float32; x is {dtype}, "
                f"{name} is {other}"
            )
    return tuple(0 if each is None else _TYPES[each] for each in (dtype, weight, bias))


def _like(tensor: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and dtype, of any content."""
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _dense_rows(x: Tensor, hidden: int) -> tuple[Tensor, int]:
    """Return x, or a copy of it, whose rows are each dense, and the elements from row to row."""
    if x.is_contiguous():
        return x, hidden
    rows = x.reshape(-1, hidden)  # a copy only where the rows are not evenly spaced
    if hidden > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _dense(parameter: Tensor | None) -> Tensor | None:
    if parameter is None or parameter.is_contiguous():
        return parameter
    return parameter.contiguous()

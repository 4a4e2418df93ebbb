"""Call the C library on tensors."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from implementations.contract import UnsupportedError, wide_dtype
from implementations.cpu.build import load
from implementations.cpu.threads import address_of_parallel

__all__ = ["FILES", "STATISTICS", "addresses", "backward", "forward", "kinds"]

STATISTICS = 3
"""Numbers saved per row: the mean as a sum of two, and 1/sqrt(variance + eps)."""

FILES = (
    "recentred.c",
    "recentred.h",
    "types.h",
    "elements.h",
    "threads.h",
    "rows.h",
    "forward.h",
    "backward.h",
    "parameters.h",
)
"""The library's source."""
_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""The numbers of the types in types.h."""
# struct forward and struct backward of recentred.h; one packed argument takes a third of the time
# that fourteen arguments take
_pack_forward = struct.Struct("@6P3nd4i").pack
_pack_backward = struct.Struct("@8P4n4i").pack

_SHORT = 1 << 16
"""Elements up to which a call uses one thread and holds Python's lock, for about 10 us. Waking
another thread takes as long; releasing and taking the lock takes a twentieth of it."""


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float, saves: bool
) -> tuple[Tensor, Tensor | None]:
    """Normalise the rows of ``x``; the last axes with ``hidden`` elements form a row.

    Args:
        x: on the CPU, as are weight and bias; any strides.
        saves: whether to return the statistics.

    Returns:
        y, contiguous, and the statistics of each row, (rows, STATISTICS) in float32 or wider.

    Raises:
        UnsupportedError: the library cannot be built, or does not support the dtypes.
        MemoryError: weight and bias cannot be copied to the dtype of the sums.
    """
    kind, of_weight, of_bias = kinds(x.dtype, weight, bias)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    count = x.numel()
    library = _library()
    if x.is_contiguous():
        y, stride = torch.empty_like(x), hidden
    else:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        x, stride = _dense_rows(x, hidden)
    rows = count // hidden if count else 0
    statistics = None
    if saves:
        statistics = torch.empty((rows, STATISTICS), dtype=wide_dtype(x.dtype))
    if not count:
        return y, statistics
    packed = _pack_forward(
        x.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        0 if statistics is None else statistics.data_ptr(),
        library.parallel,
        rows,
        hidden,
        stride,
        eps,
        kind,
        of_weight,
        of_bias,
        1 if count <= _SHORT else torch.get_num_threads(),
    )
    if (library.forward_short if count <= _SHORT else library.forward)(packed):
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
    """Return dx, dweight and dbias, contiguous; None for each that is not needed.

    Raises:
        MemoryError: there is none for the sums over rows.
    """
    kind, of_weight, of_bias = kinds(x.dtype, weight, bias)
    dx = _like(x) if wants_dx else None
    dweight = _like(weight) if wants_dweight and weight is not None else None
    dbias = _like(bias) if wants_dbias and bias is not None else None
    count = x.numel()
    if not count:
        for each in (dweight, dbias):
            if each is not None:
                each.zero_()
        return dx, dweight, dbias
    library = _library()
    x, x_stride = _dense_rows(x, hidden)
    dy, dy_stride = _dense_rows(dy, hidden)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    packed = _pack_backward(
        x.data_ptr(),
        dy.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        statistics.data_ptr(),
        0 if dx is None else dx.data_ptr(),
        0 if dweight is None else dweight.data_ptr(),
        0 if dbias is None else dbias.data_ptr(),
        library.parallel,
        count // hidden,
        hidden,
        x_stride,
        dy_stride,
        kind,
        of_weight,
        of_bias,
        1 if count <= _SHORT else torch.get_num_threads(),
    )
    if (library.backward_short if count <= _SHORT else library.backward)(packed):
        raise MemoryError(f"c_recentred: no memory to sum gradients over {count // hidden} rows")
    return dx, dweight, dbias


@dataclass(frozen=True, slots=True)
class _Library:
    """The library's functions; each takes a packed structure, and returns 1 if memory ran out."""

    forward: Callable[[bytes], int]
    backward: Callable[[bytes], int]
    forward_short: Callable[[bytes], int]
    """Like ``forward``, without releasing Python's lock."""
    backward_short: Callable[[bytes], int]
    parallel: int


@cache
def _library() -> _Library:
    found = [load(FILES, kind) for kind in (ctypes.CDLL, ctypes.PyDLL)]
    for each in found:
        for function in (each.recentred_forward, each.recentred_backward):
            function.argtypes = (ctypes.c_char_p,)
            function.restype = ctypes.c_int
    usual, short = found
    return _Library(
        forward=usual.recentred_forward,
        backward=usual.recentred_backward,
        forward_short=short.recentred_forward,
        backward_short=short.recentred_backward,
        parallel=address_of_parallel(),
    )


def addresses() -> tuple[int, int, int]:
    """Return the addresses of forward, backward and the function that runs them in threads.

    Raises:
        UnsupportedError: the library cannot be built.
    """
    library = _library()
    forward, backward = (
        ctypes.cast(each, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
        for each in (library.forward, library.backward)
    )
    return forward, backward, library.parallel


def kinds(dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None) -> tuple[int, int, int]:
    """Return the type numbers of x, weight and bias; a missing parameter has that of x.

    Raises:
        UnsupportedError: a dtype is not supported.
    """
    kind = _TYPES.get(dtype)
    if kind is None:
        taken = ", ".join(str(each).removeprefix("torch.") for each in _TYPES)
        raise UnsupportedError(f"c_recentred does not take {dtype}; it takes {taken}")
    return (
        kind,
        kind if weight is None or weight.dtype is dtype else _wider("weight", weight.dtype, dtype),
        kind if bias is None or bias.dtype is dtype else _wider("bias", bias.dtype, dtype),
    )


def _wider(name: str, dtype: torch.dtype, of_x: torch.dtype) -> int:
    """Return the type number of a parameter whose dtype is not x's."""
    if dtype != torch.float32:
        raise UnsupportedError(
            f"c_recentred takes {name} in x's dtype or in float32; x is {of_x}, {name} is {dtype}"
        )
    return _TYPES[dtype]


def _like(tensor: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor of the same shape and dtype."""
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _dense_rows(x: Tensor, hidden: int) -> tuple[Tensor, int]:
    """Return x, or a copy of it, with dense rows, and the elements from one row to the next."""
    if x.is_contiguous():
        return x, hidden
    rows = x.reshape(-1, hidden)  # copies only if the rows are not evenly spaced
    if hidden > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)

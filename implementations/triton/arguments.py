"""Arguments of the kernels, and the import of the kernel modules by the first call."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from implementations.contract import UnsupportedError, install_extra
from implementations.triton import layout as layouts
from implementations.triton.layout import Layout

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_OLDEST = (3, 3)  # of triton: the compiler of 3.2 fails on prefetched tiles
_AS_IT_IS: AbstractContextManager[object] = nullcontext()
_INTERPRETED = 4  # multiprocessors assumed for the interpreter: several programs, quickly run


def rows_of(x: Tensor, hidden: int) -> int:
    """Return the number of rows of ``hidden`` elements in x."""
    return x.numel() // hidden if hidden else 0


def kernels(name: str, dtype: torch.dtype, device: torch.device, rows: int, hidden: int) -> Any:
    """Import a module of kernels.

    Raises:
        UnsupportedError: triton is not installed, or there is no kernel for device, dtype or size.
    """
    if (named := _name(dtype)) not in _DTYPES:
        raise UnsupportedError(f"no kernel for {named}; there are for {', '.join(_DTYPES)}")
    if max(rows, hidden) > layouts.LONGEST:
        raise UnsupportedError(
            f"{rows} rows of {hidden} elements: the Triton kernels count up to {layouts.LONGEST}"
        )
    found, interpreted = imported(name)
    if not (device.type == "cuda" or (interpreted and device.type == "cpu")):
        raise UnsupportedError(
            f"Triton kernels run on cuda, x is on {device.type}; with TRITON_INTERPRET=1 in the "
            "environment, set before Python starts, they are interpreted on the cpu"
        )
    return found


@cache
def imported(name: str) -> tuple[Any, bool]:
    """Return a module of kernels, and whether Triton interprets them."""
    if find_spec("triton") is None:
        raise UnsupportedError(f"needs triton: {install_extra('triton')}")
    triton = import_module("triton")
    if tuple(map(int, triton.__version__.split(".")[:2])) < _OLDEST:
        raise UnsupportedError(
            f"needs triton {_OLDEST[0]}.{_OLDEST[1]} or newer, which comes with torch 2.7; "
            f"found {triton.__version__}"
        )
    found = import_module(f"implementations.triton.{name}")
    return found, not isinstance(getattr(found, found.__all__[0]), triton.JITFunction)


def as_rows(x: Tensor, rows: int, hidden: int) -> tuple[Tensor, int]:
    """Return x with the elements of a row side by side, and the elements from row to row.

    Its shape is of no use, as kernels take an address. It is copied only if it must be.
    """
    if x.is_contiguous() and not x.is_neg():
        return x, hidden
    # a lazily negated tensor holds the values with the other sign
    matrix = x.resolve_neg().reshape(rows, hidden)
    if matrix.stride(1) != 1 and hidden != 1:
        matrix = matrix.contiguous()
    return matrix, matrix.stride(0)


def as_vector(parameter: Tensor | None) -> Tensor | None:
    """Return weight or bias with its elements side by side."""
    if parameter is None or (parameter.is_contiguous() and not parameter.is_neg()):
        return parameter  # as the calls below do, which take twice as long to find that out
    return parameter.resolve_neg().contiguous()


def options(layout: Layout) -> dict[str, object]:
    """Return compile options.

    A product and a sum may be fused, which leaves out a rounding that no kernel here relies on.
    """
    return {
        "COLUMNS": layout.columns,
        "num_warps": layout.warps,
        "enable_fp_fusion": True,
    }


def leaves(
    layout: Layout,
    hidden: int,
    itemsize: int,
    *strides: int,
    is_aligned: bool,
    grouped: bool = False,
) -> dict[str, Any]:
    """Return how the columns of a tile are split, so that a thread's elements are its leaves.

    They are neighbours if Triton reads 16 bytes at once: pointers are multiples of 16 bytes, sizes
    and strides of 16 elements. In a short row, a thread has few elements, which need no leaves
    unless they must be ``grouped``.

    Args:
        layout: of the kernel.
        hidden: elements of a row.
        itemsize: bytes of an element.
        strides: elements from row to row, of each tensor that is read.
        is_aligned: whether their addresses are multiples of 16 bytes.
        grouped: whether leaves are needed in any case.
    """
    if layout.columns <= layouts.SHORT and not grouped:
        return {"LEAVES": layout.columns, "NEIGHBOURS": True}
    is_aligned = is_aligned and not any(size % 16 for size in (hidden, *strides))
    per_thread = 16 // itemsize if is_aligned else layouts.LEAVES_APART
    return {"LEAVES": min(per_thread, layout.columns), "NEIGHBOURS": is_aligned}


@lru_cache
def bits(eps: float) -> int:
    """Return the bits of a float64 as an integer; as a float argument, it would become float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", eps))[0]
    return bits


def in_triton(dtype: torch.dtype) -> Any:
    """Return Triton's name of a dtype."""
    return getattr(import_module("triton.language"), _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def current(x: Tensor) -> AbstractContextManager[object]:
    """Make the device of x the current one, on which Triton starts its kernels."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _AS_IT_IS
    return torch.cuda.device(x.device)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors."""
    if device.type != "cuda":
        return _INTERPRETED
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count

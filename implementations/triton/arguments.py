"""Arguments of the kernels, and the import of the kernel modules by the first call."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from functools import cache
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
_INTERPRETED = 4  # multiprocessors assumed for the interpreter: several programs, quickly run


def rows_of(x: Tensor, hidden: int) -> int:
    """Return the number of rows of ``hidden`` elements in x."""
    return x.numel() // hidden if hidden else 0


def kernels(name: str, x: Tensor, rows: int, hidden: int) -> Any:
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
    found, interpreted = imported(name)
    if not (x.is_cuda or (interpreted and x.device.type == "cpu")):
        raise UnsupportedError(
            f"Triton kernels run on cuda, x is on {x.device.type}; with TRITON_INTERPRET=1 in the "
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


def as_matrix(x: Tensor, rows: int, hidden: int) -> Tensor:
    """Return x as (rows, hidden), the elements of a row side by side; copies only if it must."""
    matrix = x.reshape(rows, hidden)
    return matrix if matrix.stride(1) == 1 or hidden == 1 else matrix.contiguous()


def as_vector(parameter: Tensor | None) -> Tensor | None:
    """Return weight or bias as (hidden,), its elements side by side."""
    return None if parameter is None else parameter.contiguous().view(-1)


def options(layout: Layout) -> dict[str, object]:
    """Return compile options.

    A product and a sum may be fused, which leaves out a rounding that no kernel here relies on.
    """
    return {
        "COLUMNS": layout.columns,
        "num_warps": layout.warps,
        "enable_fp_fusion": True,
    }


def leaves(layout: Layout, hidden: int, *matrices: Tensor, grouped: bool = False) -> dict[str, Any]:
    """Return how the columns of a tile are split, so that a thread's elements are its leaves.

    They are neighbours if Triton reads 16 bytes at once: pointers are multiples of 16 bytes, sizes
    and strides of 16 elements. In a short row, a thread has few elements, which need no leaves
    unless they must be ``grouped``.
    """
    if layout.columns <= layouts.SHORT and not grouped:
        return {"LEAVES": layout.columns, "NEIGHBOURS": True}
    aligned = not any(
        matrix.data_ptr() % 16 or matrix.stride(0) % 16 or hidden % 16 for matrix in matrices
    )
    per_thread = 16 // matrices[0].element_size() if aligned else layouts.LEAVES_APART
    return {"LEAVES": min(per_thread, layout.columns), "NEIGHBOURS": aligned}


def bits(eps: float) -> int:
    """Return the bits of a float64 as an integer; as a float argument, it would become float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", eps))[0]
    return bits


def in_triton(dtype: torch.dtype) -> Any:
    """Return Triton's name of a dtype."""
    return getattr(import_module("triton.language"), _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one, on which Triton starts its kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors."""
    if device.type != "cuda":
        return _INTERPRETED
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count

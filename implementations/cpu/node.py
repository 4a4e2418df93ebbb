"""The library in C as an operator of PyTorch, whose node in autograd's graph is C++."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from implementations.cpu import calls
from implementations.cpu.build import load

__all__ = ["layer_norm"]

# the kernels too, few of which it includes: where a process has two revisions of them, each has an
# operator of its own
_FILES = ("node.cpp", *calls.FILES)


@cache
def layer_norm() -> Callable[[Tensor, Tensor | None, Tensor | None, int, float], Tensor]:
    """Return what takes x, weight, bias, the elements of a row and eps to y.

    Its tensors are on the CPU and of the dtypes that :func:`implementations.cpu.calls.forward`
    takes.

    Raises:
        UnsupportedError: either library cannot be built.
    """
    library = load(_FILES)  # first: who installs a compiler of C++ gets the one of C with it
    kernels = calls.addresses()
    library.use_library.argtypes = (ctypes.c_void_p,) * 3
    library.use_library.restype = ctypes.c_char_p
    namespace, _, name = library.use_library(*kernels).decode().partition("::")
    operator: Callable[..., Tensor] = getattr(getattr(torch.ops, namespace), name).default
    return operator

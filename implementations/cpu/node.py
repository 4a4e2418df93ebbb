"""The C library as an operator of PyTorch with an autograd node in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from implementations.cpu import calls
from implementations.cpu.build import load

__all__ = ["layer_norm"]

# all kernel files, so that another revision of them in the same process gets its own operator
_FILES = ("node.cpp", *calls.FILES)


@cache
def layer_norm() -> Callable[[Tensor, Tensor | None, Tensor | None, int, float], Tensor]:
    """Return a function of x, weight, bias, the elements per row and eps that returns y.

    Tensors must be on the CPU, in the dtypes that :func:`implementations.cpu.calls.forward`
    supports.

    Raises:
        UnsupportedError: either library cannot be built.
    """
    library = load(_FILES)  # first, because a C++ compiler includes one for C
    kernels = calls.addresses()
    library.use_library.argtypes = (ctypes.c_void_p,) * 3
    library.use_library.restype = ctypes.c_char_p
    namespace, _, name = library.use_library(*kernels).decode().partition("::")
    operator: Callable[..., Tensor] = getattr(getattr(torch.ops, namespace), name).default
    return operator

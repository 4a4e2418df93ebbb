"""The operators of operator.cpp: their schemas, the shapes of their results, and their library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from implementations.contract import Param, trailing_axes, wide_dtype
from implementations.cpu.build import load
from implementations.torch_private import function_of

OPERATOR = "layernorm_bench::cpu_recentred"
STATISTICS = 3
"""Numbers saved per row: the mean as a sum of two, and 1/sqrt(variance + eps)."""

_SOURCES = ("operator.cpp", "kernels.cpp")
_HEADERS = (
    "kernels.h", "stream.h", "threads.h", "elements.h", "rows.h", "forward.h", "backward.h",
    "parameters.h",
)  # fmt: skip


@cache
def load_operator(namespace: str = OPERATOR.partition("::")[0]) -> Callable[..., Tensor]:
    """Return the operator, with the signature of ``implementations.contract.LayerNormFunction``.

    Its autograd node is in C++. It raises ValueError for shapes that do not agree, and
    NotImplementedError for dtypes and devices that it does not support.

    Args:
        namespace: one in which the operators are defined.

    Raises:
        UnsupportedError: the library cannot be built.
    """
    load(_SOURCES, _HEADERS, (f"-DNAMESPACE={namespace}",))
    return function_of(getattr(torch.ops, namespace).cpu_recentred.default)


def _fake(
    x: Tensor, shape: Sequence[int], weight: Param = None, bias: Param = None, eps: float = 1e-5
) -> Tensor:
    trailing_axes(x, shape, weight, bias)
    return _dense_like(x)


def _fake_forward(
    x: Tensor, weight: Param, bias: Param, hidden: int, eps: float
) -> tuple[Tensor, Tensor]:
    rows = x.numel() // hidden if hidden else 0
    return _dense_like(x), x.new_empty((rows, STATISTICS), dtype=wide_dtype(x.dtype))


def _fake_backward(
    dy: Tensor, x: Tensor, weight: Param, bias: Param, statistics: Tensor, hidden: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(
        x.new_empty(0) if tensor is None or not is_wanted else _dense_like(tensor)
        for tensor, is_wanted in zip((x, weight, bias), wanted, strict=True)
    )


def _dense_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def define(namespace: str) -> torch.library.Library:
    """Define the operators in a namespace, as long as the result is kept.

    Shape functions are in Python because torch.compile cannot use one in C++ with dynamic sizes.
    """
    library = torch.library.Library(namespace, "FRAGMENT")
    for schema, fake in (
        (
            "cpu_recentred(Tensor x, int[] normalized_shape, Tensor? weight=None, "
            "Tensor? bias=None, float eps=1e-05) -> Tensor",
            _fake,
        ),
        (
            "cpu_recentred_forward(Tensor x, Tensor? weight, Tensor? bias, int hidden, float eps) "
            "-> (Tensor y, Tensor statistics)",
            _fake_forward,
        ),
        (
            "cpu_recentred_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, "
            "Tensor statistics, int hidden, bool[3] wanted) -> (Tensor, Tensor, Tensor)",
            _fake_backward,
        ),
    ):
        library.define(schema)
        name = schema.partition("(")[0]
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    return library


_LIBRARY = define(OPERATOR.partition("::")[0])

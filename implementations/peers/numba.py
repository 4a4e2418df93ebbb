"""Numba: plain loops, compiled; they read and write torch's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from implementations.contract import (
    Algorithm,
    Param,
    Reduction,
    UnsupportedError,
    install_extra,
)
from implementations.peers.peer import Package, peer

PACKAGE = Package("numba", ("numba",), install_extra("numba"))


@peer(
    PACKAGE,
    (torch.float32, torch.float64),  # float16 exists only for its CUDA target
    forward_only=True,
    outside_torch=True,
    source="https://numba.readthedocs.io/en/stable/user/jit.html",
    algorithm=Algorithm.TWO_PASS,
    reduction=Reduction.SEQUENTIAL,  # in float64, the type of the literal 0.0
)
def numba(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """Numba: three plain loops over each row, under njit."""
    threads = torch.get_num_threads()
    loops = _compiled(threads > 1)
    if threads > 1:
        _use_threads(threads)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    hidden = x.shape[x.dim() - dims :].numel()
    if x.numel():
        loops(_matrix(x, hidden), _vector(weight), _vector(bias), eps, _matrix(y, hidden))
    return y


def _use_threads(threads: int) -> None:
    try:
        PACKAGE.load().set_num_threads(threads)
    except ValueError as error:
        raise UnsupportedError(f"numba was started with fewer threads: {error}") from error


@cache
def _compiled(parallel: bool) -> Callable[..., None]:
    """Return the loops, which the first call with new argument types compiles.

    With one thread, rows must not run in parallel: Numba would use threads of its own.
    """
    package = PACKAGE.load()
    rows_of = package.prange

    def loops(x: Any, weight: Any, bias: Any, eps: float, y: Any) -> None:
        rows, hidden = x.shape
        for row in rows_of(rows):
            total = 0.0
            for column in range(hidden):
                total += x[row, column]
            mean = total / hidden
            squares = 0.0
            for column in range(hidden):
                squares += (x[row, column] - mean) ** 2
            rstd = 1.0 / sqrt(squares / hidden + eps)
            for column in range(hidden):
                value = (x[row, column] - mean) * rstd
                if weight is not None:
                    value *= weight[column]
                if bias is not None:
                    value += bias[column]
                y[row, column] = value

    compiled: Callable[..., None] = package.njit(parallel=parallel)(loops)
    return compiled


def _matrix(tensor: Tensor, hidden: int) -> Any:
    return tensor.detach().resolve_neg().reshape(-1, hidden).numpy()


def _vector(parameter: Tensor | None) -> Any:
    return None if parameter is None else parameter.detach().resolve_neg().reshape(-1).numpy()

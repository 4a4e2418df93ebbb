"""Whether a LayerNorm with right results does something else besides; independent of verify."""

from __future__ import annotations

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import starmap

import numpy as np
import torch
from interactions import given
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.verify.process_state import process_state_restored
from implementations.contract import LayerNormFunction

__all__ = ["is_caught_by_effect"]


def is_caught_by_effect(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Whether it writes beside its arguments, keeps memory, or changes the process."""
    checks: tuple[Callable[[LayerNormFunction, torch.dtype], bool], ...] = (
        _writes_beside,
        _keeps_memory,
        _keeps_copies,
        _shares_dy,
    )
    with process_state_restored():
        if _changes_process(function, dtype):
            return True
    return any(check(function, dtype) for check in checks)


def _writes_beside(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    tensors = given(0, dtype)
    wholes = [torch.nn.functional.pad(each, (0, 8), value=3.0) for each in tensors]
    before = [each.clone() for each in wholes]
    *inputs, dy = (each[..., :-8] for each in wholes)
    leaves = [each.detach().requires_grad_() for each in inputs]
    y = function(leaves[0], leaves[1].shape, leaves[1], leaves[2], 1e-5)
    torch.autograd.grad(y, leaves, dy)
    is_same = all(starmap(torch.equal, zip(before, wholes, strict=True)))
    return not is_same or any(each.grad is not None for each in leaves)


def _keeps_memory(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    def dropped(shape: tuple[int, int]) -> list[StorageWeakRef]:
        *inputs, dy = given(0, dtype, shape)
        leaf = inputs[0].requires_grad_()
        y = function(leaf, shape[1:], inputs[1], inputs[2], 1e-5)
        torch.autograd.grad(y, leaf, dy)
        return [StorageWeakRef(each.untyped_storage()) for each in (leaf, y, dy)]

    gc.disable()
    try:
        references = [each for shape in ((8, 64), (2, 1088)) for each in dropped(shape)]
        return not all(each.expired() for each in references)
    finally:
        gc.enable()


def _keeps_copies(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    def count() -> int:
        gc.collect()
        return sum(issubclass(type(each), Tensor) for each in gc.get_objects())

    before = count()
    for seed in range(6):
        function(given(seed, dtype)[0], (64,))
    return count() - before >= 6


def _shares_dy(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    x, weight, bias, dy = given(0, dtype, (1, 48))
    bias.requires_grad_()
    function(x, bias.shape, weight, bias, 1e-5).backward(dy)
    assert bias.grad is not None
    return bias.grad.data_ptr() == dy.data_ptr()


def _changes_process(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    states: tuple[Callable[[], object], ...] = (
        torch.get_float32_matmul_precision,
        partial(getattr, torch.backends.cudnn, "allow_tf32"),
        partial(getattr, torch.backends.cudnn, "benchmark"),
        torch.get_num_threads,
        torch.get_default_dtype,
        torch.is_grad_enabled,
        partial(torch.is_autocast_enabled, "cuda"),
        lambda: list(warnings.filters),
        np.geterr,
        lambda: dict(os.environ),
        random.getstate,
        lambda: str(np.random.get_state()),
        sys.getrecursionlimit,
    )
    torch.set_num_threads(2)
    before = [read() for read in states]
    x, weight, bias, _ = given(0, dtype)
    function(x, weight.shape, weight, bias, 1e-5)
    return before != [read() for read in states]

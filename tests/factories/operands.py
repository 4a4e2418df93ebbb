"""What a LayerNorm is called with, always the same numbers, and what it returns for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from implementations import ALL

# tests/implementations/triton has the tests of those for a GPU
ON_CPU = [norm for norm in ALL if "cpu" in norm.devices]
every_implementation = pytest.mark.parametrize("norm", ON_CPU, ids=lambda norm: norm.name)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(
    shape: tuple[int, ...] = (6, 32), dims: int = 1, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Draw x, weight, bias and dy."""
    sizes = (shape, shape[-dims:], shape[-dims:], shape)
    return [normal(*size, seed=seed, dtype=dtype) for seed, size in enumerate(sizes)]


def y_and_gradients(function: Callable[..., Tensor], dy: Tensor, *arguments: Any) -> list[Tensor]:
    """Call a function; return y and the gradients of the tensors among its arguments."""
    given = [
        argument.detach().requires_grad_() if isinstance(argument, Tensor) else argument
        for argument in arguments
    ]
    y = function(*given)
    leaves = [argument for argument in given if isinstance(argument, Tensor)]
    return [y, *torch.autograd.grad(y, leaves, dy)]

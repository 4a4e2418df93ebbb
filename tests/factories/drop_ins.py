"""The drop-in module and torch's own, with equal parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from implementations import (
    ALL,
    Implementation,
    LayerNorm,
    native,
)

# tests/implementations/triton has those for a GPU
ON_CPU = [implementation for implementation in ALL if "cpu" in implementation.devices]

every_implementation = pytest.mark.parametrize("norm", ON_CPU, ids=lambda each: each.name)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ARGUMENTS: list[dict[str, Any]] = [
    {"normalized_shape": 8},
    {"normalized_shape": (8,)},
    {"normalized_shape": [3, 8]},
    {"normalized_shape": torch.Size([2, 3, 8])},
    {"normalized_shape": 8, "eps": 1e-3},
    {"normalized_shape": 8, "eps": 0.0},
    {"normalized_shape": 8, "bias": False},
    {"normalized_shape": (3, 8), "elementwise_affine": False},
    {"normalized_shape": 8, "elementwise_affine": False, "bias": False},
    {"normalized_shape": 8, "dtype": torch.float64},
    {"normalized_shape": 8, "device": "cpu", "dtype": torch.bfloat16},
    {"normalized_shape": 0},
]
all_arguments = pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(6)).to(dtype)


def trained(made: nn.LayerNorm) -> nn.LayerNorm:
    """Give the parameters values that are neither one nor zero."""
    with torch.no_grad():
        for seed, each in enumerate(made.parameters()):
            each.copy_(torch.randn(each.shape, generator=torch.Generator().manual_seed(seed)))
    return made


def pair(norm: Implementation, **arguments: Any) -> tuple[LayerNorm, nn.LayerNorm]:
    """Return the drop-in and torch's module, with the same parameters."""
    ours, theirs = LayerNorm(**arguments, implementation=norm), nn.LayerNorm(**arguments)
    trained(theirs)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def only(**declared: Any) -> Implementation:
    """Return an implementation with these declarations."""
    return replace(native, name="declared", **declared)


# a few roundings of values up to 8
close = {"rtol": 1e-5, "atol": 1e-5}

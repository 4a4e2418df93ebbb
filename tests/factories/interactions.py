"""Whether a LayerNorm is right next to other calls, graphs and modes; independent of verify."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.verify.process_state import process_state_restored
from implementations.contract import LayerNormFunction

SHAPES = ((8, 64), (131, 37), (3, 1088))
"""On both sides of 128 rows and of 1,024 elements per row; with and without a tail."""


def given(
    seed: int, dtype: torch.dtype, shape: tuple[int, int] = SHAPES[0]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, weight, bias and dy."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (shape, shape[1:], shape[1:], shape)
    x, weight, bias, dy = (torch.randn(each, generator=generator).to(dtype) for each in sizes)
    return x, weight, bias, dy


def recorded(
    function: LayerNormFunction, seed: int, dtype: torch.dtype, shape: tuple[int, int]
) -> tuple[Tensor, list[Tensor], Tensor]:
    *inputs, dy = given(seed, dtype, shape)
    leaves = [each.requires_grad_() for each in inputs]
    return function(leaves[0], shape[1:], leaves[1], leaves[2], 1e-5), leaves, dy


def is_near(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by less than any of the mistakes; more than rounding is allowed."""
    return torch.allclose(one.double(), other.double(), rtol=0.05, atol=0.05)


def is_caught_by_interaction(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Whether a result next to other calls differs from the result alone."""
    return (
        _forms_differ(function, dtype)
        or _modes_differ(function, dtype)
        or _results_are_lost(function, dtype)
        or _training_is_not_followed(function, dtype)
        or _depends_on_its_neighbours(function, dtype)
        or any(_graphs_mix(function, dtype, shape) for shape in SHAPES)
    )


def _forms_differ(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    x, weight, bias, _ = given(0, dtype)
    small = x / 1024
    return not is_near(
        function(small, SHAPES[0][1:], weight, bias),
        function(small, SHAPES[0][1:], weight, bias, 1e-5),
    )


def _modes_differ(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    leaf = given(0, dtype)[0].requires_grad_()
    torch.rand(1)
    state = torch.get_rng_state()
    with torch.no_grad():
        y = function(leaf, SHAPES[0][1:])
        if y.requires_grad or not torch.equal(torch.get_rng_state(), state):
            return True
        with torch.autocast("cpu", dtype=torch.bfloat16):
            other = function(leaf, SHAPES[0][1:])
        small = leaf / 1024
        usual = function(small, SHAPES[0][1:])
        with process_state_restored():
            torch.set_default_dtype(torch.float16)
            torch.use_deterministic_algorithms(True)
            if not torch.equal(usual, function(small, SHAPES[0][1:])):
                return True
    return dtype is torch.float32 and not torch.allclose(y, other, atol=1e-5)


def _results_are_lost(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    results = [function(given(seed, dtype)[0], SHAPES[0][1:]) for seed in range(5)]
    again = [function(given(seed, dtype)[0], SHAPES[0][1:]).clone() for seed in range(5)]
    return not all(map(is_near, results, again))


def _training_is_not_followed(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    x, weight, *_ = given(0, dtype)
    weight.requires_grad_()
    function(x, SHAPES[0][1:], weight).sum().backward()
    with torch.no_grad():
        weight.add_(1)
    y = function(x, SHAPES[0][1:], weight)
    if not is_near(y, function(x, SHAPES[0][1:], weight.detach().clone())):
        return True
    assert weight.grad is not None
    once = weight.grad.clone()
    y.sum().backward()
    return not is_near(weight.grad, 2 * once)


def _graphs_mix(function: LayerNormFunction, dtype: torch.dtype, shape: tuple[int, int]) -> bool:
    alone = []
    for seed in (0, 1):
        y, leaves, dy = recorded(function, seed, dtype, shape)
        alone.append(torch.autograd.grad(y, leaves, dy))
    graphs = [recorded(function, seed, dtype, shape) for seed in (0, 1)]
    for (y, leaves, dy), expected in zip(graphs, alone, strict=True):
        found = torch.autograd.grad(y, leaves, dy, create_graph=True)
        if not all(map(is_near, found, expected)):
            return True
    return False


def _depends_on_its_neighbours(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Whether gradients differ if x is computed and used twice, or after inference mode."""
    y, leaves, dy = recorded(function, 0, dtype, SHAPES[0])
    alone = torch.autograd.grad(y, leaves, dy)
    source, weight, bias = (each.detach().clone().requires_grad_() for each in leaves)
    with torch.inference_mode():
        function(given(1, dtype)[0], SHAPES[0][1:], weight, bias, 1e-5)
    x = source * 1
    try:
        total = x + function(x, SHAPES[0][1:], weight, bias, 1e-5)
        found = torch.autograd.grad(total, (source, weight, bias), dy)
    except RuntimeError:
        return True
    return not all(map(is_near, found, (alone[0] + dy, *alone[1:])))

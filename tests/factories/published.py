"""Normalisations as people publish them: the structure of well-known ones, in a few lines each.

Nobody's code is copied. Each docstring names the source and what is unusual about it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


def _normalised(x: Tensor, axes: int | tuple[int, ...], eps: float) -> Tensor:
    deviation = x - x.mean(axes, keepdim=True)
    return deviation / torch.sqrt(deviation.pow(2).mean(axes, keepdim=True) + eps)


def _parameters(*shape: int) -> tuple[nn.Parameter, nn.Parameter]:
    return nn.Parameter(torch.ones(*shape)), nn.Parameter(torch.zeros(*shape))


# --- modules -------------------------------------------------------------------------------------


class NanoGPT(nn.Module):
    """nanoGPT's: the bias is a required flag, eps is a constant in forward."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight, made = _parameters(ndim)
        self.bias = made if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class ConvNeXt(nn.Module):
    """ConvNeXt's: one class for both orders of the axes, eps of 1e-6."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-6, data_format: str = "channels_last"
    ) -> None:
        super().__init__()
        self.weight, self.bias = _parameters(normalized_shape)
        self.eps, self.data_format = eps, data_format

    def forward(self, x: Tensor) -> Tensor:
        if self.data_format == "channels_last":
            shape = (self.weight.numel(),)
            return functional.layer_norm(x, shape, self.weight, self.bias, self.eps)
        x = _normalised(x, 1, self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class XTransformers(nn.Module):
    """x-transformers': a LayerNorm without parameters inside, a gain around it, no bias."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim, elementwise_affine=False)
        self.gamma, _ = _parameters(dim)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.ln(x)
        return normed * self.gamma


class ShortEps(nn.Module):
    """OpenAI's early GPT: weight, bias and eps are named g, b and e."""

    def __init__(self, n_state: int, e: float = 1e-5) -> None:
        super().__init__()
        self.g, self.b = _parameters(n_state)
        self.e = e

    def forward(self, x: Tensor) -> Tensor:
        return self.g * _normalised(x, -1, self.e) + self.b


def trained() -> nn.Module:
    """Return an instance whose parameters are no longer those of a new one."""
    made = nn.LayerNorm(48, eps=1e-6)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(48, generator=generator))
    return made


# --- functions -----------------------------------------------------------------------------------


def batch_time_channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """llm.c's: for three axes only, with weight and bias."""
    _, _, channels = x.shape
    return functional.layer_norm(x, (channels,), weight, bias, eps)


def weight_required(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """A scale and no shift, as functions of inference engines have it."""
    return functional.layer_norm(x, weight.shape, weight, None, eps)


def broadcasts(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """A plain function that checks no argument."""
    y = _normalised(x, tuple(range(-len(normalized_shape), 0)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


class RawPointers(torch.autograd.Function):
    """A Triton kernel's launcher: it raises for no rows, and for memory that it cannot read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        if x.numel() == 0:
            raise RuntimeError("grid must be positive")
        if any(given.is_neg() for given in (x, weight, bias)):
            raise RuntimeError("data pointer of a negated view")
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return _normalised(x, -1, eps) * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if dy.is_neg():
            raise RuntimeError("data pointer of a negated view")
        leaves = [saved.detach().requires_grad_() for saved in ctx.saved_tensors]
        with torch.enable_grad():
            y = functional.layer_norm(leaves[0], leaves[1].shape, *leaves[1:], ctx.eps)
        return *torch.autograd.grad(y, leaves, dy), None


# --- something else ------------------------------------------------------------------------------


class T5LayerNorm(nn.Module):
    """T5's, which is named LayerNorm: no mean is subtracted."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, _ = _parameters(hidden_size)
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        wide = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class Nemotron(nn.LayerNorm):
    """Nemotron's LayerNorm1P: the weight is kept as its distance from 1."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(normalized_shape, eps, True, bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)

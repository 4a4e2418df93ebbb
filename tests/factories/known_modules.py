"""Modules as people publish them: the structure of well-known normalisations, in a few lines each.

Nobody's code is copied. Each docstring names the source and what is unusual about it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.nn import functional

# --- true LayerNorms -----------------------------------------------------------------------------


class NanoGPT(nn.Module):
    """nanoGPT's: the bias is a required flag, eps is a constant in forward."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class OLMo(nn.Module):
    """OLMo's: no parameters, no eps in the constructor, computed in float32."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.normalized_shape = (hidden_size,)

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.to(dtype=torch.float32)
        return functional.layer_norm(wide, self.normalized_shape, eps=1e-5).to(hidden_states.dtype)


class ConvNeXt(nn.Module):
    """ConvNeXt's: one class for both orders of the axes, eps of 1e-6."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-6, data_format: str = "channels_last"
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))
        self.eps, self.data_format = eps, data_format
        self.normalized_shape = (normalized_shape,)

    def forward(self, x: Tensor) -> Tensor:
        if self.data_format == "channels_last":
            return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        centred = x - x.mean(1, keepdim=True)
        x = centred / torch.sqrt(centred.pow(2).mean(1, keepdim=True) + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class SamLayerNorm2d(nn.Module):
    """Segment Anything's: channels first, for images only, eps of 1e-6."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class LayerNorm2d(nn.LayerNorm):
    """Permutes the axes, calls torch's own, and permutes them back."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__(num_channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Vits(nn.Module):
    """VITS' and ESPnet's: swaps the second axis with the last, for any number of axes."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(
            x.transpose(1, -1), (self.channels,), self.gamma, self.beta, self.eps
        )
        return y.transpose(1, -1)


class DeBERTa(nn.Module):
    """DeBERTa's: in float32, over the last axis whatever its size, eps of 1e-12."""

    def __init__(self, hidden_size: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.float()
        mean = wide.mean(-1, keepdim=True)
        variance = (wide - mean).pow(2).mean(-1, keepdim=True)
        wide = (wide - mean) / torch.sqrt(variance + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype) + self.bias


class Cohere(nn.Module):
    """Cohere's: a weight and never a bias, although there is a flag for one."""

    def __init__(self, hidden_size: Any = None, eps: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.to(torch.float32)
        mean = wide.mean(-1, keepdim=True)
        variance = (wide - mean).pow(2).mean(-1, keepdim=True)
        wide = (wide - mean) * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight.to(torch.float32) * wide).to(hidden_states.dtype)


class ESMFold(nn.Module):
    """OpenFold's and ESMFold's: the size is called c_in and kept as a tuple."""

    def __init__(self, c_in: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.c_in, self.eps = (c_in,), eps
        self.weight = nn.Parameter(torch.ones(c_in))
        self.bias = nn.Parameter(torch.zeros(c_in))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.c_in, self.weight, self.bias, self.eps)


class XTransformers(nn.Module):
    """x-transformers': a LayerNorm without parameters inside, a gain around it, no bias."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim, elementwise_affine=False)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.ln(x)
        return normed * self.gamma


class Labml(nn.Module):
    """labml's constructor, which asserts on shapes, with statistics in two passes."""

    def __init__(
        self,
        normalized_shape: int | list[int] | Size,
        *,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(normalized_shape, int):
            normalized_shape = torch.Size([normalized_shape])
        elif isinstance(normalized_shape, list):
            normalized_shape = torch.Size(normalized_shape)
        assert isinstance(normalized_shape, torch.Size)
        self.normalized_shape, self.eps = normalized_shape, eps
        self.elementwise_affine = elementwise_affine
        if elementwise_affine:
            self.gain = nn.Parameter(torch.ones(normalized_shape))
            self.bias = nn.Parameter(torch.zeros(normalized_shape))

    def variance(self, x: Tensor, mean: Tensor, axes: list[int]) -> Tensor:
        return ((x - mean) ** 2).mean(dim=axes, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        assert self.normalized_shape == x.shape[-len(self.normalized_shape) :]
        axes = [-(i + 1) for i in range(len(self.normalized_shape))]
        mean = x.mean(dim=axes, keepdim=True)
        normed = (x - mean) / torch.sqrt(self.variance(x, mean, axes) + self.eps)
        return self.gain * normed + self.bias if self.elementwise_affine else normed


class LabmlOnePass(Labml):
    """labml's own statistics: E[x^2] - E[x]^2, which cancels far from 0."""

    def variance(self, x: Tensor, mean: Tensor, axes: list[int]) -> Tensor:
        return (x**2).mean(dim=axes, keepdim=True) - mean**2


class ShortEps(nn.Module):
    """OpenAI's early GPT: weight, bias and eps are named g, b and e."""

    def __init__(self, n_state: int, e: float = 1e-5) -> None:
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(n_state)), nn.Parameter(torch.zeros(n_state))
        self.e = e

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return self.g * ((x - u) / torch.sqrt(s + self.e)) + self.b


class NumberOfEmbeddings(nn.Module):
    """The size is n_embed, which ``torch.ones`` would take as a tuple too."""

    def __init__(self, n_embed: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n_embed))
        self.shift = nn.Parameter(torch.zeros(n_embed))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(variance + self.eps) + self.shift


class ShapeThatIsAnInt(nn.Module):
    """The size is named normalized_shape, and annotated as an int."""

    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def trained() -> nn.Module:
    """Return an instance whose parameters are no longer those of a new one."""
    made = nn.LayerNorm(48, eps=1e-6)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(48, generator=generator))
    return made


# --- something else ------------------------------------------------------------------------------


class T5LayerNorm(nn.Module):
    """T5's, which is named LayerNorm: no mean is subtracted."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
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


class ScaleAlone(nn.Module):
    """A layer scale: nothing is normalised."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def group_norm() -> nn.Module:
    """Return a GroupNorm of 8 groups."""
    return nn.GroupNorm(8, 32)

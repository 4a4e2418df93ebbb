"""Right modules of every kind, and the bases of the wrong ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Norm(nn.Module):
    """Right; most of the others differ from it in one thing."""

    weight: Any
    bias: Any

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.eps, self.given = dim, eps, (elementwise_affine, bias)
        where: Any = {"device": device, "dtype": dtype}
        self.weight = self.bias = None
        if elementwise_affine:
            self.make(torch.ones(dim, **where), torch.zeros(dim, **where))
            self.bias = self.bias if bias else None

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight, self.bias = nn.Parameter(ones), nn.Parameter(zeros)

    def norm(self, x: Tensor, weight: Any = None, bias: Any = None) -> Tensor:
        return functional.layer_norm(x, (self.dim,), weight, bias, self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight, self.bias)


class FastWithoutGradient(Norm):
    """Takes another path where no gradient is recorded."""

    fast: Any

    def forward(self, x: Tensor) -> Tensor:
        is_usual = torch.is_grad_enabled() or self.weight is None
        return super().forward(x) if is_usual else self.fast(x)


# --- its parameters ------------------------------------------------------------------------------


class WeightAtFirstCall(nn.Module):
    """Makes its parameters in its first call."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.UninitializedParameter()
        self.bias = nn.UninitializedParameter()

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, nn.UninitializedParameter):
            self.weight.materialize(x.shape[-1:])
            self.bias.materialize(x.shape[-1:])
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class LazyNorm(nn.Module):
    """Registers its parameters in its first call."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            self.weight = nn.Parameter(torch.ones(self.dim, dtype=x.dtype))
            self.bias = nn.Parameter(torch.zeros(self.dim, dtype=x.dtype))
        return functional.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)


class Aliased(nn.Module):
    """Shows the parameters of its inner module as its own."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps)
        self.weight, self.bias = self.norm.weight, self.norm.bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


class OnesAsBuffer(Norm):
    """Gives its kernel a weight of ones where it has none itself."""

    def __init__(self, dim: int, elementwise_affine: bool = True, bias: bool = True) -> None:
        super().__init__(dim, elementwise_affine=elementwise_affine, bias=bias)
        self.register_buffer("ones", torch.ones(dim), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.ones if self.weight is None else self.weight, self.bias)


class BetaBuffer(nn.Module):
    """lucidrains' LayerNorm: a gain, and zeros in place of a bias, which no one trains."""

    beta: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))
        self.register_buffer("beta", torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class BothOrNone(Norm):
    """Has no bias without a weight: its constructor makes none, either."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight, None if self.weight is None else self.bias)


class ChannelsOfImages(nn.Module):
    """Over axis 1; its weight has an axis of 1 for each other one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.gamma


# --- its calls -----------------------------------------------------------------------------------


class CachedAndChecked(FastWithoutGradient):
    """Keeps a cast weight, and makes it anew whenever the weight is another one."""

    kept: Any = None

    def fast(self, x: Tensor) -> Tensor:
        if self.kept is None or not torch.equal(self.kept[0], self.weight):
            self.kept = self.weight.detach().clone(), self.weight.detach().to(x.dtype)
        return self.norm(x, self.kept[1].to(x.dtype), self.bias)


class Dropping(Norm):
    """Has a buffer of its own that does not matter, and a mode."""

    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return super().forward(x)


class Float32Norm(nn.LayerNorm):
    """Computes in float32 for every dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (None if own is None else own.float() for own in (self.weight, self.bias))
        y = functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return y.to(x.dtype)


class AlwaysInEvaluation(Norm):
    """A layer of a model that is not trained."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


# --- its constructor -----------------------------------------------------------------------------


class Passing(nn.LayerNorm):
    """timm's constructor: torch's argument has another name, and the rest is passed on."""

    def __init__(
        self, num_channels: int, eps: float = 1e-5, affine: bool = True, **named: Any
    ) -> None:
        super().__init__(num_channels, eps=eps, elementwise_affine=affine, **named)

"""LayerNorms written in other ways than torch's, right and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = 8


def standardised(x: Tensor, eps: float, axis: int = -1, correction: int = 0) -> Tensor:
    variance = x.var(axis, keepdim=True, correction=correction)
    return (x - x.mean(axis, keepdim=True)) / (variance + eps).sqrt()


def built(kind: type[nn.Module]) -> nn.Module:
    """Return a module whose parameters and buffers have values as after training."""
    module = kind(HIDDEN) if issubclass(kind, nn.LayerNorm) else kind()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for each in [*module.parameters(), *module.buffers()]:
            each.copy_(1 + torch.rand(each.shape, generator=generator))
    return module


class PlainNorm(nn.Module):
    """Has the usual parameters; the classes below change one thing each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.eps = 1e-5

    def affine(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(standardised(x, self.eps))


# --- right ----------------------------------------------------------------------------------------


class RenamingNorm(nn.Module):
    """Has its eps in the forward, and loads checkpoints in which its weight has another name."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(HIDDEN)) if bias else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functional.layer_norm(hidden_states, self.weight.shape, self.weight, self.bias, 2e-5)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}old" in state:
            state[f"{prefix}weight"] = state.pop(f"{prefix}old")
        super()._load_from_state_dict(state, prefix, *rest)


class NoParametersNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normalized_shape = [HIDDEN]

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), self.normalized_shape, eps=1e-6).to(x.dtype)


class GammaBetaNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(HIDDEN))
        self.beta = nn.Parameter(torch.zeros(HIDDEN))
        self.variance_epsilon = 1e-12

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * standardised(x, self.variance_epsilon) + self.beta


class BufferBetaNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(HIDDEN))
        self.register_buffer("beta", torch.zeros(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class WrapperNorm(nn.Module):
    """Scales the result of a LayerNorm inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(HIDDEN, eps=1e-3, elementwise_affine=False)
        self.gamma = nn.Parameter(torch.ones(1, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.gamma


class Outer(nn.Module):
    """Has no "norm" in its name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class HolderNorm(Outer):
    """Has the parameters of the LayerNorm inside it."""


class Float32Norm(nn.LayerNorm):
    """Computes in float32 for every dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.float(), self.bias.float()
        y = functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return y.to(x.dtype)


class FormatNorm(PlainNorm):
    """Normalises the last axis, or axis 1 if a flag says so."""

    def __init__(self, channels_first: bool = False) -> None:
        super().__init__()
        self.channels_first = channels_first

    def forward(self, x: Tensor) -> Tensor:
        if not self.channels_first:
            return super().forward(x)
        scale, shift = self.weight[:, None, None], self.bias[:, None, None]
        return standardised(x, self.eps, axis=1) * scale + shift


class TwoAxesNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, eps=1e-4)


RIGHT: tuple[type[nn.Module], ...] = (
    RenamingNorm,
    NoParametersNorm,
    GammaBetaNorm,
    BufferBetaNorm,
    WrapperNorm,
    HolderNorm,
    Float32Norm,
    FormatNorm,
    TwoAxesNorm,
)


# --- wrong, or not to be changed ------------------------------------------------------------------


class TrainingNorm(PlainNorm):
    """Adds noise in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0.1 * torch.randn_like(x) if self.training else 0.0)


class CountingNorm(PlainNorm):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class RunningNorm(PlainNorm):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(HIDDEN))


class HookPointNorm(PlainNorm):
    def __init__(self) -> None:
        super().__init__()
        self.hook = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.hook(super().forward(x))


class AnySizeNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, 1e-5)


class LastAxisNorm(TwoAxesNorm):
    """Has a weight of two axes, and normalises the last one."""

    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, 1e-5) * self.weight


def forward_of_two(self: PlainNorm, x: Tensor, cond: Tensor) -> Tensor:
    return PlainNorm.forward(self, x) + cond


def with_option(self: PlainNorm, x: Tensor, residual: Tensor | None = None) -> Tensor:
    return PlainNorm.forward(self, x if residual is None else x + residual)


def writing_into_x(self: PlainNorm, x: Tensor) -> Tensor:
    return PlainNorm.forward(self, x if x.requires_grad else x.sub_(x.mean(-1, keepdim=True)))


def raising(self: PlainNorm, x: Tensor) -> Tensor:
    raise RuntimeError("this kernel needs another machine")


def over_axis_1(self: PlainNorm, x: Tensor) -> Tensor:
    shape = (-1, *(1,) * (x.dim() - 2))  # with two axes, axis 1 is the last one
    return standardised(x, self.eps, axis=1) * self.weight.view(shape) + self.bias.view(shape)


def clamped(self: PlainNorm, x: Tensor) -> Tensor:
    variance = x.var(-1, keepdim=True, correction=0).clamp(min=self.eps)
    return self.affine((x - x.mean(-1, keepdim=True)) / variance.sqrt())


def with_detached_variance(self: PlainNorm, x: Tensor) -> Tensor:
    variance = x.detach().var(-1, keepdim=True, correction=0)
    return self.affine((x - x.mean(-1, keepdim=True)) / (variance + self.eps).sqrt())


def wrong(name: str, forward: Callable[..., Any]) -> type[nn.Module]:
    return type(name, (PlainNorm,), {"forward": forward, "__module__": __name__})


UnbiasedNorm = wrong(
    "UnbiasedNorm", lambda self, x: self.affine(standardised(x, self.eps, correction=1))
)
BrokenNorm = wrong("BrokenNorm", raising)
WiderNorm = wrong(
    "WiderNorm",
    lambda self, x: functional.layer_norm(
        x.float(), (HIDDEN,), self.weight.float(), self.bias.float(), self.eps
    ),
)
LEFT: tuple[type[nn.Module], ...] = (
    UnbiasedNorm,
    wrong(
        "OutsideNorm",
        lambda self, x: self.affine(
            (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + self.eps)
        ),
    ),
    wrong("ClampedNorm", clamped),
    wrong(
        "RootMeanSquareNorm",
        lambda self, x: self.affine(x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()),
    ),
    wrong("OnePlusNorm", lambda self, x: standardised(x, self.eps) * (1 + self.weight) + self.bias),
    wrong("DetachedNorm", with_detached_variance),
    wrong(
        "ConstantWeightNorm",
        lambda self, x: standardised(x, self.eps) * self.weight.detach() + self.bias,
    ),
    wrong("NoGradientNorm", torch.no_grad()(lambda self, x: PlainNorm.forward(self, x))),
    CountingNorm,
    wrong("ConditionNorm", forward_of_two),
    wrong("OptionNorm", with_option),
    wrong("InPlaceNorm", writing_into_x),
    wrong("TupleNorm", lambda self, x: (PlainNorm.forward(self, x), x)),
    RunningNorm,
    HookPointNorm,
    type("OwnCallNorm", (PlainNorm,), {"__call__": lambda self, x: x, "__module__": __name__}),
    AnySizeNorm,
    BrokenNorm,
    LastAxisNorm,
    wrong("ChannelsAxisNorm", over_axis_1),
)

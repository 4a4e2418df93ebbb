"""LayerNorms written in other ways, right and wrong ones, in a few lines each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = 8


def standardised(x: Tensor, eps: float, axis: int = -1, correction: int = 0) -> Tensor:
    variance = x.var(axis, keepdim=True, correction=correction)
    return (x - x.mean(axis, keepdim=True)) / (variance + eps).sqrt()


# --- right ----------------------------------------------------------------------------------------


class OptionalBiasNorm(nn.Module):
    """eps is written in the forward."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(HIDDEN)) if bias else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functional.layer_norm(hidden_states, self.weight.shape, self.weight, self.bias, 2e-5)


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
    """Scales what a LayerNorm inside it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(HIDDEN, eps=1e-3, elementwise_affine=False)
        self.gamma = nn.Parameter(torch.ones(1, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.gamma


class Outer(nn.Module):
    """No norm by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class HolderNorm(Outer):
    """Its parameters are those of the LayerNorm inside it."""


class Float32Norm(nn.LayerNorm):
    """Computes in float32 whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        y = functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return y.to(x.dtype)


class FormatNorm(nn.Module):
    """Two forms, of which a flag chooses; the channels first are no LayerNorm of the last axis."""

    def __init__(self, channels_first: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.eps, self.channels_first = 1e-6, channels_first

    def forward(self, x: Tensor) -> Tensor:
        if not self.channels_first:
            return functional.layer_norm(x, (HIDDEN,), self.weight, self.bias, self.eps)
        scale, shift = self.weight[:, None, None], self.bias[:, None, None]
        return standardised(x, self.eps, axis=1) * scale + shift


class TwoAxesNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, eps=1e-4)


class RenamingNorm(OptionalBiasNorm):
    """Reads checkpoints in which its weight has another name."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}old" in state:
            state[f"{prefix}weight"] = state.pop(f"{prefix}old")
        super()._load_from_state_dict(state, prefix, *rest)


RIGHT: tuple[type[nn.Module], ...] = (
    OptionalBiasNorm,
    NoParametersNorm,
    GammaBetaNorm,
    BufferBetaNorm,
    WrapperNorm,
    HolderNorm,
    Float32Norm,
    FormatNorm,
    TwoAxesNorm,
    RenamingNorm,
)


def built(kind: type[nn.Module]) -> nn.Module:
    """Return one whose parameters and buffers are those of a trained one."""
    module = kind(HIDDEN) if issubclass(kind, nn.LayerNorm) else kind()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for each in [*module.parameters(), *module.buffers()]:
            each.copy_(1 + torch.rand(each.shape, generator=generator))
    return module


# --- wrong, or not to be changed ------------------------------------------------------------------


class PlainNorm(nn.Module):
    """What those below derive from: the parameters of a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.eps = 1e-5

    def affine(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(standardised(x, self.eps))


class UnbiasedNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.affine(standardised(x, self.eps, correction=1))


class OutsideNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        deviation = x.std(-1, keepdim=True, correction=0)
        return self.affine((x - x.mean(-1, keepdim=True)) / (deviation + self.eps))


class ClampedNorm(PlainNorm):
    """What it computes differs where the variance is about eps."""

    def forward(self, x: Tensor) -> Tensor:
        variance = x.var(-1, keepdim=True, correction=0).clamp(min=self.eps)
        return self.affine((x - x.mean(-1, keepdim=True)) / variance.sqrt())


class RootMeanSquareNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.affine(x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt())


class OnePlusNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, self.eps) * (1 + self.weight) + self.bias


class DetachedNorm(PlainNorm):
    """A right result, and a wrong gradient."""

    def forward(self, x: Tensor) -> Tensor:
        variance = x.detach().var(-1, keepdim=True, correction=0)
        return self.affine((x - x.mean(-1, keepdim=True)) / (variance + self.eps).sqrt())


class ConstantWeightNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, self.eps) * self.weight.detach() + self.bias


class NoGradientNorm(PlainNorm):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class TrainingNorm(PlainNorm):
    """Adds noise while it is trained."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0.1 * torch.randn_like(x) if self.training else 0.0)


class CountingNorm(PlainNorm):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class ConditionNorm(PlainNorm):
    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        return super().forward(x) + cond


class OptionNorm(PlainNorm):
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return super().forward(x if residual is None else x + residual)


class WiderNorm(PlainNorm):
    """Returns float32 in a model of bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(
            x.float(), (HIDDEN,), self.weight.float(), self.bias.float(), self.eps
        )


class InPlaceNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            x.sub_(x.mean(-1, keepdim=True))
        return super().forward(x)


class TupleNorm(PlainNorm):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


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


class OwnCallNorm(PlainNorm):
    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(2 * x)


class AnySizeNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, 1e-5)


class BrokenNorm(PlainNorm):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("this kernel needs another machine")


class LastAxisNorm(nn.Module):
    """A weight of two axes, of which the last one is normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, 1e-5) * self.weight


class ChannelsAxisNorm(PlainNorm):
    """Axis 1, whatever the axes: of two, that is the last one."""

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *(1,) * (x.dim() - 2))
        y = standardised(x, self.eps, axis=1)
        return y * self.weight.view(shape) + self.bias.view(shape)


LEFT: tuple[tuple[type[nn.Module], str], ...] = (
    (UnbiasedNorm, "divides by N - 1 in its variance, not by N"),
    (OutsideNorm, "adds its eps outside the root"),
    (ClampedNorm, "is no LayerNorm: up to"),
    (RootMeanSquareNorm, "is an RMSNorm: it does not subtract the mean"),
    (OnePlusNorm, "is no plain LayerNorm, but near to: LayerNorm with 1 + weight"),
    (DetachedNorm, "has another gradient of x than torch's"),
    (ConstantWeightNorm, "gives no gradient of its weight"),
    (NoGradientNorm, "gives no gradient"),
    (CountingNorm, "its forward changes calls of it"),
    (ConditionNorm, "its forward needs cond besides x"),
    (OptionNorm, "its forward also takes residual"),
    (InPlaceNorm, "changes its x in place"),
    (TupleNorm, "returns tuple, not a tensor"),
    (RunningNorm, "has more than a weight and a bias: weight, bias, running_mean"),
    (HookPointNorm, "hook inside it (Identity) would not be called any more"),
    (OwnCallNorm, "its class has its own __call__"),
    (AnySizeNorm, "takes an x of any size"),
    (BrokenNorm, "this kernel needs another machine"),
    (LastAxisNorm, "normalises the last axis alone"),
    (ChannelsAxisNorm, "normalises over the channel axis (axis 1)"),
)

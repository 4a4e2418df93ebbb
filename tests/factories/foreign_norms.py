"""LayerNorms written in other ways than torch's, right and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from factories.right_modules import Float32Norm

HIDDEN = 8


def built(kind: type[nn.Module]) -> nn.Module:
    """Return a module whose parameters and buffers have values as after training."""
    module = kind(HIDDEN) if issubclass(kind, nn.LayerNorm) else kind()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.copy_(1 + torch.rand(tensor.shape, generator=generator))
    return module


def ones(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape or HIDDEN))


def two_axes() -> nn.Parameter:
    return ones(2, HIDDEN)


def zeros() -> nn.Buffer:
    return nn.Buffer(torch.zeros(HIDDEN))


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def variance(x: Tensor, correction: int = 0) -> Tensor:
    return x.var(-1, keepdim=True, correction=correction)


def standardised(x: Tensor, eps: float) -> Tensor:
    return centred(x) / (variance(x) + eps).sqrt()


class Parts(nn.Module):
    """Has the attributes that the functions in ``parts`` return."""

    parts: ClassVar[Mapping[str, Callable[[], object]]]

    def __init__(self) -> None:
        super().__init__()
        for name, make in self.parts.items():
            setattr(self, name, make())


class PlainNorm(Parts):
    parts: ClassVar = {"weight": ones, "bias": ones, "eps": lambda: 1e-5}

    def affine(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(standardised(x, self.eps))


def norm(name: str, forward: Callable[..., Any], **parts: Callable[[], object]) -> type[nn.Module]:
    return type(name, (Parts,), {"forward": forward, "parts": parts, "__module__": __name__})


def plain(name: str, forward: Any = PlainNorm.forward, **parts: Any) -> type[nn.Module]:
    """Return a PlainNorm with another forward, or with further parts."""
    given = {"forward": forward, "parts": PlainNorm.parts | parts, "__module__": __name__}
    return type(name, (PlainNorm,), given)


# --- right ----------------------------------------------------------------------------------------


class RenamingNorm(PlainNorm):
    """Has its eps in the forward, and loads checkpoints in which its weight has another name."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return layer_norm(hidden_states, self.weight.shape, self.weight, self.bias, 2e-5)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}old" in state:
            state[f"{prefix}weight"] = state.pop(f"{prefix}old")
        super()._load_from_state_dict(state, prefix, *rest)


def over_axis_1(self: PlainNorm, x: Tensor) -> Tensor:
    return PlainNorm.forward(self, x.movedim(1, -1)).movedim(-1, 1)


class FormatNorm(PlainNorm):
    """Normalises the last axis, or axis 1 if a flag says so."""

    channels_first = False

    def forward(self, x: Tensor) -> Tensor:
        return over_axis_1(self, x) if self.channels_first else super().forward(x)


NoParametersNorm = norm(
    "NoParametersNorm",
    lambda m, x: layer_norm(x.float(), m.normalized_shape, eps=1e-6).to(x.dtype),
    normalized_shape=lambda: [HIDDEN],
)
GammaBetaNorm = norm(
    "GammaBetaNorm", lambda m, x: m.gamma * standardised(x, 1e-12) + m.beta, gamma=ones, beta=ones
)
WrapperNorm = norm(  # scales the result of a LayerNorm inside it
    "WrapperNorm",
    lambda m, x: m.inner(x) * m.gamma,
    inner=lambda: nn.LayerNorm(HIDDEN, eps=1e-3, elementwise_affine=False),
    gamma=lambda: ones(1, HIDDEN),
)
# has the parameters of the LayerNorm inside it
HolderNorm = norm("HolderNorm", lambda m, x: m.norm(x), norm=lambda: nn.LayerNorm(HIDDEN))
TwoAxesNorm = norm(
    "TwoAxesNorm", lambda m, x: layer_norm(x, (2, HIDDEN), m.weight, eps=1e-4), weight=two_axes
)
RIGHT: tuple[type[nn.Module], ...] = (
    RenamingNorm, NoParametersNorm, GammaBetaNorm, WrapperNorm, HolderNorm,
    Float32Norm, FormatNorm, TwoAxesNorm,
)  # fmt: skip


# --- wrong, or not to be changed ------------------------------------------------------------------


def counting(self: Any, x: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return right(self, x)


def raising(self: PlainNorm, x: Tensor) -> Tensor:
    raise RuntimeError("this kernel needs another machine")


right = PlainNorm.forward
TrainingNorm = plain(
    "TrainingNorm", lambda m, x: right(m, x) + 0.1 * m.training * torch.randn_like(x)
)
WiderNorm = plain("WiderNorm", lambda m, x: right(m, x.float()))
BrokenNorm = plain("BrokenNorm", raising)
LEFT: tuple[type[nn.Module], ...] = (
    plain("UnbiasedNorm", lambda m, x: m.affine(centred(x) / (variance(x, 1) + 1e-5).sqrt())),
    plain("OutsideNorm", lambda m, x: m.affine(centred(x) / (variance(x).sqrt() + 1e-5))),
    plain("DetachNorm", lambda m, x: m.affine(centred(x) / variance(x.detach()).add(1e-5).sqrt())),
    plain("ConstantWeightNorm", lambda m, x: standardised(x, 1e-5) * m.weight.detach() + m.bias),
    plain("NoGradientNorm", torch.no_grad()(lambda m, x: right(m, x))),
    plain("CountingNorm", counting),
    plain("OptionNorm", lambda m, x, residual=None: right(m, x)),
    plain("InPlaceNorm", lambda m, x: right(m, x if x.requires_grad else x.add_(1))),
    plain("RunningNorm", running_mean=zeros),
    type("OwnCallNorm", (PlainNorm,), {"__call__": lambda m, x: x, "__module__": __name__}),
    norm("AnySizeNorm", lambda m, x: standardised(x, 1e-5)),
    BrokenNorm,
    norm("LastAxisNorm", lambda m, x: standardised(x, 1e-5) * m.weight, weight=two_axes),
    plain("ChannelsAxisNorm", over_axis_1),
)

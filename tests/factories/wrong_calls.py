"""Modules with one mistake each in a call: of a mode, of an earlier call, of hooks."""

from __future__ import annotations

from time import sleep
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from factories.right_modules import FastWithoutGradient, Norm
from implementations.contract import scale_and_shift

# --- modes ---------------------------------------------------------------------------------------


class BiasLostInEvaluation(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight, self.bias if self.training else None)


class EpsOfEvaluation(Norm):
    def forward(self, x: Tensor) -> Tensor:
        eps = self.eps if self.training else 1e-12
        return functional.layer_norm(x, (self.dim,), self.weight, self.bias, eps)


class UnbiasedWithoutGradient(Norm):
    """Takes a fast path in evaluation mode without gradients, with the variance over N - 1."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        normed = centred * (x.var(-1, keepdim=True) + self.eps).rsqrt()
        return scale_and_shift(normed, self.weight, self.bias)


class DetachedInEvaluation(Norm):
    """Saves memory in evaluation mode: x gets no gradient from its statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        variance, mean = torch.var_mean(x.detach(), -1, unbiased=False, keepdim=True)
        normed = (x - mean) * (variance + self.eps).rsqrt()
        return scale_and_shift(normed, self.weight, self.bias)


class BiasTwiceInTraining(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + self.bias if self.training and self.bias is not None else y


class InPlaceInEvaluation(Norm):
    """Without gradients it centres x where it is."""

    def forward(self, x: Tensor) -> Tensor:
        is_free = not (self.training or torch.is_grad_enabled())
        return super().forward(x.sub_(x.mean(-1, keepdim=True)) if is_free else x)


class RingInEvaluation(Norm):
    """Gives out eight buffers in turn."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training or torch.is_grad_enabled():
            return y
        ring = vars(self).setdefault("ring", [])
        ring.append(ring.pop(0).resize_(x.shape).copy_(y) if len(ring) == 8 else y)
        return ring[-1]


class OneBufferInEvaluation(Norm):
    """Writes every y of evaluation mode to the same buffer, which gets the shape of x."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training or torch.is_grad_enabled():
            return y
        return vars(self).setdefault("buffer", torch.empty(0)).resize_(x.shape).copy_(y)


class StrideOfEvaluation(Norm):
    """Reads x as if it were contiguous, in evaluation mode with gradients on."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and torch.is_grad_enabled():
            flat = torch.as_strided(x, x.shape, x.contiguous().stride())
            return super().forward(flat)
        return super().forward(x)


class OnePassInEvaluation(Norm):
    """Its variance is E[x^2] - E[x]^2 in evaluation mode with gradients on."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not torch.is_grad_enabled():
            return super().forward(x)
        mean = x.mean(-1, keepdim=True)
        variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
        normed = (x - mean) * (variance + self.eps).rsqrt()
        return scale_and_shift(normed, self.weight, self.bias)


class EvaluatesToNothing(Norm):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)


# --- what is kept from an earlier call -----------------------------------------------------------


class FoldedInEvaluation(Norm):
    """Keeps a copy of the weight of its first call in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.weight is None:
            return super().forward(x)
        folded = vars(self).setdefault("folded", self.weight.detach().clone())
        return self.norm(x, folded, self.bias)


class FoldedByEval(Norm):
    """Folds its weight when it gets into evaluation mode."""

    folded: Any = None

    def eval(self) -> Any:
        self.folded = None if self.weight is None else self.weight.detach().clone()
        return super().eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return super().forward(x)
        return self.norm(x, self.folded, self.bias)


class FoldedWhileFrozen(Norm):
    """Keeps copies of frozen parameters in evaluation mode."""

    kept: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.weight is None or self.weight.requires_grad:
            self.kept = None
            return super().forward(x)
        if self.kept is None or self.kept[0].dtype != self.weight.dtype:
            self.kept = [None if own is None else own.clone() for own in (self.weight, self.bias)]
        return self.norm(x, *self.kept)


class DecaysItsWeight(Norm):
    """Changes its own weight in every training step."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training and self.weight is not None:
            self.weight.data.mul_(0.9)
        return y


class NewParametersInEveryCall(Norm):
    """Replaces its parameters, which an optimizer holds."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None and self.training:
            self.weight = nn.Parameter(self.weight.detach())
        return super().forward(x)


class FixedMemory(FastWithoutGradient):
    """Keeps views of its parameters, which miss a ``.data`` that is replaced."""

    def fast(self, x: Tensor) -> Tensor:
        views = vars(self).setdefault("views", (self.weight.detach(), self.bias))
        return self.norm(x, *views)


class ShowsACopy(Norm):
    """Has its weight under another name; the attribute weight is a copy of it."""

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.gamma, self.bias = nn.Parameter(ones), nn.Parameter(zeros)

    @property  # type: ignore[override]
    def weight(self) -> Any:
        return self.gamma.clone() if "gamma" in self._parameters else None

    @weight.setter
    def weight(self, value: Any) -> None:
        assert value is None


class ComparesTheEnds(FastWithoutGradient):
    """Keeps a copy of its weight for as long as the first and last elements stay."""

    def fast(self, x: Tensor) -> Tensor:
        kept = vars(self).setdefault("kept", [self.weight.detach().clone()])
        if not torch.equal(kept[0][[0, -1]], self.weight[[0, -1]]):
            kept[0] = self.weight.detach().clone()
        return self.norm(x, kept[0], self.bias)


class CastOnce(Norm):
    """Keeps the weight in the dtype of its first call."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return super().forward(x)
        cast = vars(self).setdefault("cast", self.weight.detach().to(x.dtype, copy=True))
        weight = self.weight if torch.is_grad_enabled() else cast.to(x.dtype)
        return self.norm(x, weight, self.bias)


class CachedByDtype(FastWithoutGradient):
    """Keeps copies of weight and bias for each dtype, and never makes them anew."""

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        super().make(ones, zeros)
        self.copies: dict[Any, Any] = {}

    def fast(self, x: Tensor) -> Tensor:
        if x.dtype not in self.copies:
            bias = None if self.bias is None else self.bias.detach().clone()
            self.copies[x.dtype] = self.weight.detach().clone(), bias
        return self.norm(x, *self.copies[x.dtype])


class CachedByVersion(FastWithoutGradient):
    """Notices changes in place, and neither new parameters nor those through .data."""

    kept: Any = None

    def fast(self, x: Tensor) -> Tensor:
        if self.kept is None or self.kept[0] != self.weight._version:
            self.kept = self.weight._version, self.weight.detach().clone()
        return self.norm(x, self.kept[1], self.bias)


class RoundedByAutocast(Norm):
    def forward(self, x: Tensor) -> Tensor:
        half = vars(self).setdefault("half", torch.is_autocast_enabled("cpu"))
        y = super().forward(x)
        return y.bfloat16().to(x.dtype) if half else y


class OldParametersAfterSharing(Norm):
    """Holds its parameters in a list too, and computes with those of the list."""

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        super().make(ones, zeros)
        self.own = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.own[0].to(x.dtype)
        return self.norm(x, weight, self.bias)


class GradientOnce(Norm):
    """Records a graph for its parameters in its first call alone."""

    is_called = False

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or not self.is_called:
            self.is_called = True
            return super().forward(x)
        return self.norm(x, self.weight.detach(), self.bias)


class AxesOfTheLastCall(Norm):
    axes: int = 1

    def __call__(self, x: Tensor) -> Any:
        self.axes = x.dim() - 1
        return super().__call__(x)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if x.dim() == self.axes + 1 else 2)


class WithStatisticsOfItsLastCall(Norm):
    """Statistics lie in the module between the steps of a call."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.mean(-1, keepdim=True)
        self.rstd = ((x - self.mean).square().mean(-1, keepdim=True) + self.eps).rsqrt()
        sleep(1e-4)  # another thread is sure to run
        return scale_and_shift((x - self.mean) * self.rstd, self.weight, self.bias)


# --- whose parameters it computes with -----------------------------------------------------------


class ReadsItsDictionary(Norm):
    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters
        return self.norm(x, own.get("weight"), own.get("bias"))


class ReadsTheUnpruned(Norm):
    def forward(self, x: Tensor) -> Tensor:
        weight = self._parameters.get("weight_orig", self.weight)
        return self.norm(x, weight, self.bias)


class AnotherByItself(Norm):
    """Is wrong where it is called with the parameters that it was made with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + isinstance(self.weight, nn.Parameter))


class OneForAll(Norm):
    """All modules of a size share one weight."""

    known: ClassVar[dict[int, Any]] = {}

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        super().make(ones, zeros)
        self.weight = self.known.setdefault(self.dim, self.weight)


class ScaleOutsideState(Norm):
    """Keeps the size of the weight in an attribute, which no state_dict holds."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return super().forward(x)
        if self.training:
            self.scale = float(self.weight.detach().norm())
        norm = self.weight.norm().clamp(min=1e-9)
        return self.norm(x, self.weight / norm * self.scale, self.bias)


# --- frozen parameters ---------------------------------------------------------------------------


class Unfreezes(Norm):
    """Sets requires_grad of its parameters in every call."""

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.parameters():
            parameter.requires_grad_()
        return super().forward(x)


class NoGradientIfFrozen(Norm):
    def forward(self, x: Tensor) -> Tensor:
        is_trained = any(parameter.requires_grad for parameter in self.parameters())
        with torch.set_grad_enabled(is_trained and torch.is_grad_enabled()):
            return super().forward(x)


class NoGradientIfXHasNone(Norm):
    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
            return super().forward(x)


class FrozenAtFirst(Norm):
    """Remembers which parameters required a gradient in its first call."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return super().forward(x)
        trains = vars(self).setdefault("trains", self.weight.requires_grad)
        return self.norm(x, self.weight if trains else self.weight.detach(), self.bias)


# --- hooks ---------------------------------------------------------------------------------------


class WithoutHooks(Norm):
    __call__ = Norm.forward


class OnlyForwardHooks(Norm):
    def __call__(self, x: Tensor) -> Tensor:
        for before in self._forward_pre_hooks.values():
            (x,) = before(self, (x,)) or (x,)
        y = self.forward(x)
        for after in self._forward_hooks.values():
            given = after(self, (x,), y)
            y = y if given is None else given
        return y


class IgnoresHookResults(Norm):
    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = super().__call__(x)
        return y if torch.is_grad_enabled() else self.forward(x)


class GlobalHookResults(Norm):
    """Runs global hooks by itself, and drops what they return."""

    def __call__(self, x: Tensor) -> Tensor:
        if not (after := nn.modules.module._global_forward_hooks):
            y: Tensor = super().__call__(x)
            return y
        y = self.forward(x)
        for each in after.values():
            each(self, (x,), y)
        return y


# --- scripts -------------------------------------------------------------------------------------


class DefaultEpsInScripts(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias)
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class BiasLostInScript(nn.LayerNorm):
    """Wrong in evaluation mode, and made for torch.jit.script."""

    def forward(self, input: Tensor) -> Tensor:
        y = functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return y if self.training else y - self.bias

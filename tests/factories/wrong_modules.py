"""Modules with one mistake each, which no plain call of a new one shows, and right modules."""

from __future__ import annotations

import copy
from collections import OrderedDict
from threading import Lock
from time import sleep
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations.contract import scale_and_shift


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


class FastWithoutGradient(Norm):
    """Takes another path where no gradient is recorded."""

    fast: Any

    def forward(self, x: Tensor) -> Tensor:
        is_usual = torch.is_grad_enabled() or self.weight is None
        return super().forward(x) if is_usual else self.fast(x)


class FixedMemory(FastWithoutGradient):
    """Keeps views of its parameters, which miss a ``.data`` that is replaced."""

    def fast(self, x: Tensor) -> Tensor:
        views = vars(self).setdefault("views", (self.weight.detach(), self.bias))
        return self.norm(x, *views)


class ComparesTheEnds(FastWithoutGradient):
    """Keeps a copy of its weight for as long as the first and last elements stay."""

    def fast(self, x: Tensor) -> Tensor:
        kept = vars(self).setdefault("kept", [self.weight.detach().clone()])
        if not torch.equal(kept[0][[0, -1]], self.weight[[0, -1]]):
            kept[0] = self.weight.detach().clone()
        return self.norm(x, kept[0], self.bias)


class ReadsItsDictionary(Norm):
    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters
        return self.norm(x, own.get("weight"), own.get("bias"))


class RoundedByAutocast(Norm):
    def forward(self, x: Tensor) -> Tensor:
        half = vars(self).setdefault("half", torch.is_autocast_enabled("cpu"))
        y = super().forward(x)
        return y.bfloat16().to(x.dtype) if half else y


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


# --- copies, files and dtypes --------------------------------------------------------------------


class WithoutEpsInPickle(Norm):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.eps = 1e-5


class CopiedWithDefaults(Norm):
    def __deepcopy__(self, memo: Any) -> CopiedWithDefaults:
        return type(self)(self.dim, self.eps, *self.given).to(next(self.parameters(), None))


class CopySharesParameters(Norm):
    def __deepcopy__(self, memo: Any) -> CopySharesParameters:
        copied = type(self)(self.dim, self.eps, *self.given)
        copied.weight, copied.bias = self.weight, self.bias
        return copied


class CopyIsNotTied(Norm):
    """Is copied as if no other layer had its parameters."""

    def __deepcopy__(self, memo: Any) -> CopyIsNotTied:
        copied = type(self)(self.dim, self.eps, *self.given).to(next(self.parameters(), None))
        copied.load_state_dict(self.state_dict())
        for own, new in zip(self.parameters(), copied.parameters(), strict=True):
            new.requires_grad_(own.requires_grad)
        return copied


class PickledWithBias(Norm):
    """Comes out of a pickle as a new one if it has no bias."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if self.bias is None and self.weight is not None:
            nn.init.ones_(self.weight)


class TrainedWhenPickled(Norm):
    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.requires_grad_()


class StoredAroundZero(Norm):
    """Takes a state without metadata for one of an earlier version."""

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        if not metadata.get("version") and f"{prefix}weight" in state:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] + 1
        super()._load_from_state_dict(state, prefix, metadata, *others)


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


class OnlyForwardHooks(Norm):
    def __call__(self, x: Tensor) -> Tensor:
        for before in self._forward_pre_hooks.values():
            (x,) = before(self, (x,)) or (x,)
        y = self.forward(x)
        for after in self._forward_hooks.values():
            given = after(self, (x,), y)
            y = y if given is None else given
        return y


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


class AnotherByItself(Norm):
    """Is wrong where it is called with the parameters that it was made with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + isinstance(self.weight, nn.Parameter))


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


class Lambda(Norm):
    """Cannot be pickled."""

    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.activation = lambda y: y

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(super().forward(x))


class Locked(nn.LayerNorm):
    """Cannot be copied or pickled."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.lock = Lock()


class OneForAll(Norm):
    """All modules of a size share one weight."""

    known: ClassVar[dict[int, Any]] = {}

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        super().make(ones, zeros)
        self.weight = self.known.setdefault(self.dim, self.weight)


# --- what its parameters are ---------------------------------------------------------------------


class RestartsWhatIsMissing(Norm):
    """Loading a part of its state resets the rest."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        if self.bias is not None and f"{prefix}bias" not in state:
            nn.init.zeros_(self.bias)
        super()._load_from_state_dict(state, prefix, *others)


class CountOnMeta(Norm):
    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.register_buffer("one", torch.ones(1, device=named.get("device")), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.one.to(x.dtype)


class ThirdOfTheFactor(Norm):
    """A buffer that is rounded in half precision, and stays so."""

    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.register_buffer("third", torch.tensor(1 / 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (3 * self.third.to(x.dtype))


class TrainedWhenMoved(Norm):
    def _apply(self, function: Any, recurse: bool = True) -> Any:
        self.requires_grad_()
        return super()._apply(function, recurse)


class TrainedWhenCopied(Norm):
    def __deepcopy__(self, memo: Any) -> Any:
        copied = type(self)(self.dim, self.eps, *self.given).to(next(self.parameters(), None))
        copied.load_state_dict(self.state_dict())
        return copied


class TrainingWhenCopied(Norm):
    def __deepcopy__(self, memo: Any) -> Any:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy({**vars(self), "training": True}, memo))
        return copied


class PickledWithoutHooks(Norm):
    def __getstate__(self) -> Any:
        return {**vars(self), "_forward_hooks": OrderedDict()}


class ReturnsNothing(Norm):
    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        super().load_state_dict(*arguments, **named)


class OwnLoading(Norm):
    """Runs no hook, and takes every key and every size that can be broadcast."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        for name, own in self.named_parameters():
            if prefix + name in state:
                own.data.copy_(state[prefix + name])


class TrainedWhenAssigned(Norm):
    def load_state_dict(self, *arguments: Any, assign: bool = False, **named: Any) -> Any:
        keys = super().load_state_dict(*arguments, assign=assign, **named)
        for own in self.parameters():
            own.requires_grad_(own.requires_grad or assign)
        return keys


class NewMemoryByLoading(Norm):
    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        for own in self.parameters():
            own.data = own.data.clone()
        return super().load_state_dict(*arguments, **named)


class OldGradients(Norm):
    """Converts its parameters without their gradients."""

    def _apply(self, change: Any, *arguments: Any, **named: Any) -> Any:
        for own in self.parameters():
            if own.is_meta or change(own.detach()).is_meta:
                return super()._apply(change, *arguments, **named)
            own.data = change(own.data)
        return self


class ClonesWhatItShares(Norm):
    def _apply(self, *arguments: Any, **named: Any) -> Any:
        super()._apply(*arguments, **named)
        for own in self.parameters():
            own.data = own.data.clone()
        return self


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


class UnfreezesWhatItConverts(Norm):
    @classmethod
    def from_torch(cls, norm: nn.LayerNorm) -> Any:
        made = cls(norm.normalized_shape[0], norm.eps, bias=norm.bias is not None)
        made.load_state_dict(norm.state_dict())
        return made


class CopiedAsItself(Norm):
    """Is no subclass any more once it is copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        made = Norm(self.dim, self.eps, *self.given)
        made.load_state_dict(self.state_dict())
        return made


class CopiesWhatIsAssigned(Norm):
    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        if self.weight is None or not self.weight.is_meta:
            metadata = {**metadata, "assign_to_params_buffers": False}
        super()._load_from_state_dict(state, prefix, metadata, *others)


class ReadsTheUnpruned(Norm):
    def forward(self, x: Tensor) -> Tensor:
        weight = self._parameters.get("weight_orig", self.weight)
        return self.norm(x, weight, self.bias)


class RoundsItsEpsInPickles(Norm):
    def __getstate__(self) -> Any:
        return {**self.__dict__, "eps": round(self.eps, 8)}


class EqualByEps(Norm):
    """Two of one model are one for module.modules()."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualByEps) and self.eps == other.eps

    def __hash__(self) -> int:
        return hash(self.eps)


class AxesOfTheLastCall(Norm):
    axes: int = 1

    def __call__(self, x: Tensor) -> Any:
        self.axes = x.dim() - 1
        return super().__call__(x)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if x.dim() == self.axes + 1 else 2)


class DefaultEpsInScripts(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias)
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class WithoutHooks(Norm):
    __call__ = Norm.forward


class WithoutHooksInCopies(CopyIsNotTied):
    """Copies its parameters alone."""


class IgnoresHookResults(Norm):
    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = super().__call__(x)
        return y if torch.is_grad_enabled() else self.forward(x)


class StoresAroundZero(Norm):
    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        return {
            name: own - int(name == "weight")
            for name, own in super().state_dict(*arguments, **named).items()
        }


class EvaluatesToNothing(Norm):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)


class ReplacedByLoading(Norm):
    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        for name, own in [*self.named_parameters()]:
            if prefix + name in state:
                setattr(self, name, nn.Parameter(state[prefix + name].to(own)))


class DtypeOfItsCheckpoint(Norm):
    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        for name, own in self.named_parameters():
            if prefix + name in state:
                own.data = state[prefix + name].clone()


class SinglePrecision(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        if torch.get_default_dtype() is torch.float64:
            ones, zeros = ones.float(), zeros.float()
        super().make(ones, zeros)


class SavesMemory(Norm):
    """With its option, dweight comes from y and is wrong where the weight is 0."""

    def __init__(self, dim: int, *arguments: Any, lean: bool = False, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.lean = lean

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.lean and weight is not None and weight.requires_grad:
            weight = torch.where(weight == 0, weight.detach(), weight)
        return self.norm(x, weight, self.bias)


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


class KeepsDetachedVars(Norm):
    def state_dict(self, *arguments: Any, keep_vars: bool = False, **named: Any) -> Any:
        return super().state_dict(*arguments, keep_vars=False, **named)


class RoundsACheckpoint(Norm):
    """Loads without a second copy."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        for name, own in self._parameters.items():
            if own is not None and f"{prefix}{name}" in state:
                state[f"{prefix}{name}"].data = state[f"{prefix}{name}"].data.to(own.dtype)
        super()._load_from_state_dict(state, prefix, *others)


class CutsACheckpoint(Norm):
    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        cut = {name: own[: self.dim] for name, own in state.items()}
        super()._load_from_state_dict(cut, prefix, *others)


class PickledAsItself(Norm):
    def __reduce__(self) -> Any:
        return Norm, (self.dim, self.eps, *self.given), self.__dict__


class WithStatisticsOfItsLastCall(Norm):
    """Statistics lie in the module between the steps of a call."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.mean(-1, keepdim=True)
        self.rstd = ((x - self.mean).square().mean(-1, keepdim=True) + self.eps).rsqrt()
        sleep(1e-4)  # another thread is sure to run
        return scale_and_shift((x - self.mean) * self.rstd, self.weight, self.bias)


class BiasBeforeAffine(Norm):
    def __init__(
        self, dim: int, eps: float = 1e-5, bias: bool = True, elementwise_affine: bool = True
    ) -> None:
        super().__init__(dim, eps, elementwise_affine, bias)


class OfSeveralKinds(Norm):
    """Another kind adds eps to the standard deviation."""

    def __init__(self, dim: int, *arguments: Any, kind: str = "fused", **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.is_fused = kind == "fused"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.is_fused else x / (x.std() + self.eps)


class PlainTensors(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight, self.bias = ones, zeros

    def forward(self, x: Tensor) -> Tensor:
        own = self.weight, self.bias
        return self.norm(x, *(None if each is None else each.to(x.dtype) for each in own))


class ParametersInAList(Norm):
    held: Any = ()

    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.held = [nn.Parameter(ones), nn.Parameter(zeros)]

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, *(own.to(x.dtype) for own in self.held))


class Buffers(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        del self.weight, self.bias
        self.register_buffer("weight", ones)
        self.register_buffer("bias", zeros)


class Frozen(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight = nn.Parameter(ones, requires_grad=False)
        self.bias = nn.Parameter(zeros, requires_grad=False)


class Tied(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight = self.bias = nn.Parameter(ones)


class ZeroWeight(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight, self.bias = nn.Parameter(zeros.clone()), nn.Parameter(zeros)


class ForgetsItsBiasInAReset(Norm):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class BiasOfOne(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight, self.bias = nn.Parameter(ones), nn.Parameter(ones.clone())


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


class BiasLostInScript(nn.LayerNorm):
    """Wrong in evaluation mode, and made for torch.jit.script."""

    def forward(self, input: Tensor) -> Tensor:
        y = functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return y if self.training else y - self.bias


# --- options of its constructor ------------------------------------------------------------------


class EpsIgnored(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.dim,), self.weight, self.bias, 1e-5)


class AffineNeverOff(Norm):
    """Makes parameters with elementwise_affine=False too, and uses them."""

    def __init__(
        self, dim: int, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(dim, eps, bias=bias)


class BiasNeverOff(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps)


class WeightOffWithBias(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps, elementwise_affine=bias)


class AffineOffRaises(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, elementwise_affine: bool = True) -> None:
        super().__init__(dim, eps, elementwise_affine)
        self.dim = len(self.weight)


class BiasOffRaises(Norm):
    """Raises in forward."""

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight) + self.bias


class DtypeIgnored(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        super().make(torch.ones(ones.shape), torch.zeros(zeros.shape))


class DtypeRaises(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, dtype: Any = None) -> None:
        super().__init__(dim, eps, dtype=None if dtype is None else dtype.name)


class DeviceIgnored(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        like: Any = {"dtype": ones.dtype}
        super().make(torch.ones(ones.shape, **like), torch.zeros(zeros.shape, **like))


# --- made at the first call ----------------------------------------------------------------------


class StaysInItsDtype(Norm):
    def _apply(self, *arguments: Any, **named: Any) -> Any:
        return self


class ForgetsItsEpsWhenCopied(Norm):
    """A state for pickle that is the module's own."""

    def __getstate__(self) -> Any:
        self.__dict__["eps"] = 1.0
        return self.__dict__


class ReplacedByItsDtype(Norm):
    """Makes new parameters in .to(), of which no optimizer knows."""

    def _apply(self, change: Any, *arguments: Any, **named: Any) -> Any:
        for name, own in [*self.named_parameters(recurse=False)]:
            setattr(self, name, nn.Parameter(change(own.detach())))
        return self


class FrozenByItsDtype(Norm):
    """Forgets in .to() that its parameters are trained."""

    def _apply(self, *arguments: Any, **named: Any) -> Any:
        return super()._apply(*arguments, **named).requires_grad_(False)


# --- right ones ----------------------------------------------------------------------------------


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


class KeepsItsShape(nn.LayerNorm):
    """Holds the list that it was given."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5) -> None:
        super().__init__(normalized_shape, eps=eps)
        self.normalized_shape = normalized_shape

    def forward(self, x: Tensor) -> Tensor:
        shape = self.normalized_shape
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return functional.layer_norm(x, shape, self.weight, self.bias, self.eps)


class EpsInItsState(Norm):
    """Its checkpoints hold an eps."""

    def get_extra_state(self) -> float:
        return self.eps

    def set_extra_state(self, state: float) -> None:
        self.eps = state


class Converting(Norm):
    """Takes the place of a torch.nn.LayerNorm, without its eps."""

    @classmethod
    def from_torch(cls, norm: nn.LayerNorm) -> Any:
        made = cls(norm.normalized_shape[0])
        made.load_state_dict(norm.state_dict())
        return made


class CachedAndChecked(FastWithoutGradient):
    """Keeps a cast weight, and makes it anew whenever the weight is another one."""

    kept: Any = None

    def fast(self, x: Tensor) -> Tensor:
        if self.kept is None or not torch.equal(self.kept[0], self.weight):
            self.kept = self.weight.detach().clone(), self.weight.detach().to(x.dtype)
        return self.norm(x, self.kept[1].to(x.dtype), self.bias)


class BetaBuffer(nn.Module):
    """lucidrains' LayerNorm: a gain, and zeros in place of a bias, which no one trains."""

    beta: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))
        self.register_buffer("beta", torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class Dropping(Norm):
    """Has a buffer of its own that does not matter, and a mode."""

    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return super().forward(x)


class Subclass(nn.LayerNorm):
    """Torch's own, in float32 whatever the dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (None if own is None else own.float() for own in (self.weight, self.bias))
        y = functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return y.to(x.dtype)


class Passing(nn.LayerNorm):
    """timm's constructor: torch's argument has another name, and the rest is passed on."""

    def __init__(
        self, num_channels: int, eps: float = 1e-5, affine: bool = True, **named: Any
    ) -> None:
        super().__init__(num_channels, eps=eps, elementwise_affine=affine, **named)


class AlwaysInEvaluation(Norm):
    """A layer of a model that is not trained."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


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

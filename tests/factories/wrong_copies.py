"""Modules with one mistake each where they are copied, pickled, stored, loaded or converted."""

from __future__ import annotations

import copy
from collections import OrderedDict
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from factories.right_modules import Norm

# --- copies --------------------------------------------------------------------------------------


class CopiedWithDefaults(Norm):
    def __deepcopy__(self, memo: Any) -> CopiedWithDefaults:
        return type(self)(self.dim, self.eps, *self.given).to(next(self.parameters(), None))


class CopySharesParameters(Norm):
    def __deepcopy__(self, memo: Any) -> CopySharesParameters:
        copied = type(self)(self.dim, self.eps, *self.given)
        copied.weight, copied.bias = self.weight, self.bias
        return copied


class TrainedWhenCopied(CopiedWithDefaults):
    def __deepcopy__(self, memo: Any) -> Any:
        copied = super().__deepcopy__(memo)
        copied.load_state_dict(self.state_dict())
        return copied


class CopyIsNotTied(TrainedWhenCopied):
    """Is copied as if no other layer had its parameters."""

    def __deepcopy__(self, memo: Any) -> Any:
        copied = super().__deepcopy__(memo)
        for own, new in zip(self.parameters(), copied.parameters(), strict=True):
            new.requires_grad_(own.requires_grad)
        return copied


class CopiedAsItself(Norm):
    """Is no subclass any more once it is copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        made = Norm(self.dim, self.eps, *self.given)
        made.load_state_dict(self.state_dict())
        return made


class TrainingWhenCopied(Norm):
    def __deepcopy__(self, memo: Any) -> Any:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy({**vars(self), "training": True}, memo))
        return copied


class WithoutHooksInCopies(CopyIsNotTied):
    """Copies its parameters alone."""


class EqualByEps(Norm):
    """Two of one model are one for module.modules()."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualByEps) and self.eps == other.eps

    def __hash__(self) -> int:
        return hash(self.eps)


class Locked(nn.LayerNorm):
    """Cannot be copied or pickled."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.lock = Lock()


# --- pickles -------------------------------------------------------------------------------------


class RoundsItsEpsInPickles(Norm):
    def __getstate__(self) -> Any:
        return {**self.__dict__, "eps": round(self.eps, 8)}


class ForgetsItsEpsWhenCopied(Norm):
    """A state for pickle that is the module's own."""

    def __getstate__(self) -> Any:
        self.__dict__["eps"] = 1.0
        return self.__dict__


class PickledWithBias(Norm):
    """Comes out of a pickle as a new one if it has no bias."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if self.bias is None and self.weight is not None:
            nn.init.ones_(self.weight)


class PickledWithoutHooks(Norm):
    def __getstate__(self) -> Any:
        return {**vars(self), "_forward_hooks": OrderedDict()}


class Lambda(Norm):
    """Cannot be pickled."""

    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.activation = lambda y: y

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(super().forward(x))


# --- what state_dict returns ---------------------------------------------------------------------


class StoresAroundZero(Norm):
    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        return {
            name: own - int(name == "weight")
            for name, own in super().state_dict(*arguments, **named).items()
        }


class KeepsDetachedVars(Norm):
    def state_dict(self, *arguments: Any, keep_vars: bool = False, **named: Any) -> Any:
        return super().state_dict(*arguments, keep_vars=False, **named)


class EpsInItsState(Norm):
    """Its checkpoints hold an eps."""

    def get_extra_state(self) -> float:
        return self.eps

    def set_extra_state(self, state: float) -> None:
        self.eps = state


# --- loading -------------------------------------------------------------------------------------


class StoredAroundZero(Norm):
    """Takes a state without metadata for one of an earlier version."""

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        if not metadata.get("version") and f"{prefix}weight" in state:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] + 1
        super()._load_from_state_dict(state, prefix, metadata, *others)


class RestartsWhatIsMissing(Norm):
    """Loading a part of its state resets the rest."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        if self.bias is not None and f"{prefix}bias" not in state:
            nn.init.zeros_(self.bias)
        super()._load_from_state_dict(state, prefix, *others)


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


class OwnLoading(Norm):
    """Runs no hook, and takes every key and every size that can be broadcast."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        for name, own in self.named_parameters():
            if prefix + name in state:
                own.data.copy_(state[prefix + name])


class ReturnsNothing(Norm):
    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        super().load_state_dict(*arguments, **named)


class NewMemoryByLoading(Norm):
    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        for own in self.parameters():
            own.data = own.data.clone()
        return super().load_state_dict(*arguments, **named)


class TrainedWhenAssigned(Norm):
    def load_state_dict(self, *arguments: Any, assign: bool = False, **named: Any) -> Any:
        keys = super().load_state_dict(*arguments, assign=assign, **named)
        for own in self.parameters():
            own.requires_grad_(own.requires_grad or assign)
        return keys


class CopiesWhatIsAssigned(Norm):
    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        if self.weight is None or not self.weight.is_meta:
            metadata = {**metadata, "assign_to_params_buffers": False}
        super()._load_from_state_dict(state, prefix, metadata, *others)


class CountOnMeta(Norm):
    def __init__(self, dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.register_buffer("one", torch.ones(1, device=named.get("device")), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.one.to(x.dtype)


# --- dtypes and devices --------------------------------------------------------------------------


class StaysInItsDtype(Norm):
    def _apply(self, *arguments: Any, **named: Any) -> Any:
        return self


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


# --- from a torch.nn.LayerNorm -------------------------------------------------------------------


class Converting(Norm):
    """Takes the place of a torch.nn.LayerNorm, without its eps."""

    @classmethod
    def from_torch(cls, norm: nn.LayerNorm) -> Any:
        made = cls(norm.normalized_shape[0])
        made.load_state_dict(norm.state_dict())
        return made


class UnfreezesWhatItConverts(Norm):
    @classmethod
    def from_torch(cls, norm: nn.LayerNorm) -> Any:
        made = cls(norm.normalized_shape[0], norm.eps, bias=norm.bias is not None)
        made.load_state_dict(norm.state_dict())
        return made

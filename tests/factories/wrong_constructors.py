"""Modules with one mistake each in what their constructor makes of its arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from factories.right_modules import Norm

# --- what its parameters are ---------------------------------------------------------------------


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


class BiasOfOne(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        self.weight, self.bias = nn.Parameter(ones), nn.Parameter(ones.clone())


class ForgetsItsBiasInAReset(Norm):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


# --- its arguments -------------------------------------------------------------------------------


class EpsIgnored(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.dim,), self.weight, self.bias, 1e-5)


class AffineNeverOff(Norm):
    """Makes parameters with elementwise_affine=False too, and uses them."""

    def __init__(
        self, dim: int, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(dim, eps, bias=bias)


class AffineOffRaises(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, elementwise_affine: bool = True) -> None:
        super().__init__(dim, eps, elementwise_affine)
        self.dim = len(self.weight)


class BiasNeverOff(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps)


class BiasOffRaises(Norm):
    """Raises in forward."""

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight) + self.bias


class WeightOffWithBias(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps, elementwise_affine=bias)


class BiasBeforeAffine(Norm):
    def __init__(
        self, dim: int, eps: float = 1e-5, bias: bool = True, elementwise_affine: bool = True
    ) -> None:
        super().__init__(dim, eps, elementwise_affine, bias)


class DtypeIgnored(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        super().make(torch.ones(ones.shape), torch.zeros(zeros.shape))


class DtypeRaises(Norm):
    def __init__(self, dim: int, eps: float = 1e-5, dtype: Any = None) -> None:
        super().__init__(dim, eps, dtype=None if dtype is None else dtype.name)


class SinglePrecision(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        if torch.get_default_dtype() is torch.float64:
            ones, zeros = ones.float(), zeros.float()
        super().make(ones, zeros)


class DeviceIgnored(Norm):
    def make(self, ones: Tensor, zeros: Tensor) -> None:
        like: Any = {"dtype": ones.dtype}
        super().make(torch.ones(ones.shape, **like), torch.zeros(zeros.shape, **like))


class KeepsItsShape(nn.LayerNorm):
    """Holds the list that it was given."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5) -> None:
        super().__init__(normalized_shape, eps=eps)
        self.normalized_shape = normalized_shape

    def forward(self, x: Tensor) -> Tensor:
        shape = self.normalized_shape
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return functional.layer_norm(x, shape, self.weight, self.bias, self.eps)


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


class OfSeveralKinds(Norm):
    """Another kind adds eps to the standard deviation."""

    def __init__(self, dim: int, *arguments: Any, kind: str = "fused", **named: Any) -> None:
        super().__init__(dim, *arguments, **named)
        self.is_fused = kind == "fused"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.is_fused else x / (x.std() + self.eps)

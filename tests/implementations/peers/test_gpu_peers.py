"""Peers for GPUs, called with stand-ins that have the signatures of the published packages.

A stand-in computes its arguments as torch does, on the CPU, so that an argument in the wrong place
gives a wrong result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from implementations import UnsupportedError, find

NATIVE_DTYPE = object()  # what Transformer Engine calls float32


def _is_matrix_with_vectors(x: Tensor, *vectors: Tensor | None) -> None:
    assert x.dim() == 2
    assert all(vector is None or vector.shape == x.shape[1:] for vector in vectors)
    assert all(vector is None or vector.is_contiguous() for vector in vectors)


def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:  # noqa: N803 - theirs
    _is_matrix_with_vectors(X, W, B)
    return functional.layer_norm(X, X.shape[1:], W, B, eps)


def layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: None = None, eps: float = 1e-6
) -> Tensor:
    assert residual is None
    _is_matrix_with_vectors(x, weight, bias)
    return functional.layer_norm(x, x.shape[1:], weight, bias, eps)


def fused_layer_norm(input: Tensor, normalized_shape: torch.Size, eps: float = 1e-6) -> Tensor:
    assert isinstance(normalized_shape, torch.Size)
    return functional.layer_norm(input, normalized_shape, None, None, eps)


def fused_layer_norm_affine(
    input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: torch.Size, eps: float = 1e-6
) -> Tensor:
    assert isinstance(normalized_shape, torch.Size)
    return functional.layer_norm(input, normalized_shape, weight, bias, eps)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    assert x.is_contiguous()
    _is_matrix_with_vectors(x, weight, bias)
    return torch.native_layer_norm(x, x.shape[1:], weight, bias, eps)


def _backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, wanted: list[bool]
) -> tuple[Tensor, ...]:
    assert dy.is_contiguous()
    columns = mean.view(-1, 1), rstd.view(-1, 1)
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, x.shape[1:], *columns, weight, torch.zeros_like(weight), wanted
    )


def quack_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6, **returned: bool
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = _forward(x, weight, bias, eps)
    assert returned in ({}, {"return_rstd": True, "return_mean": True})
    return (y, rstd, mean) if returned else y


def quack_backward(
    x: Tensor, weight: Tensor, dout: Tensor, rstd: Tensor, mean: Tensor, has_bias: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    dx, dweight, dbias = _backward(dout, x, mean, rstd, weight, [True, True, has_bias])
    return dx, dweight, dbias if has_bias else None


def te_forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *fixed: object) -> list[Tensor]:
    # no output, no quantizer, no multiprocessors left free, no 1 added to the weight
    assert fixed == (None, None, NATIVE_DTYPE, 0, False)
    return list(_forward(x, weight, bias, eps))


def te_backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, *fixed: object
) -> list[Tensor]:
    assert fixed == (0, False)
    return list(_backward(dy, x, mean, rstd, weight, [True, True, True]))


STAND_INS: dict[str, dict[str, dict[str, Any]]] = {
    "liger": {"liger_kernel.transformers.functional": {"liger_layer_norm": liger_layer_norm}},
    "flash_attn": {"flash_attn.ops.triton.layer_norm": {"layer_norm_fn": layer_norm_fn}},
    "apex": {
        "apex.normalization.fused_layer_norm": {
            "fused_layer_norm": fused_layer_norm,
            "fused_layer_norm_affine": fused_layer_norm_affine,
        },
        "fused_layer_norm_cuda": {},
    },
    "quack": {"quack.rmsnorm": {"layernorm_fwd": quack_forward, "layernorm_bwd": quack_backward}},
    "transformer_engine": {
        "transformer_engine.pytorch.constants": {"TE_DType": {torch.float32: NATIVE_DTYPE}},
        "transformer_engine_torch": {"layernorm_fwd": te_forward, "layernorm_bwd": te_backward},
    },
}


Put = Callable[[str], dict[str, ModuleType]]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, on_cuda: None) -> Put:
    """Return a function that puts the stand-in of a package in its place."""

    def put(name: str) -> dict[str, ModuleType]:
        places: dict[str, ModuleType] = {}
        for place, content in STAND_INS[name].items():
            for path in accumulate(place.split("."), lambda folder, name: f"{folder}.{name}"):
                monkeypatch.setitem(sys.modules, path, places.setdefault(path, ModuleType(path)))
            vars(places[place]).update(content)
        return places

    return put


def leaves_of(shape: tuple[int, ...] = (4, 30), dims: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = (shape, shape[-dims:], shape[-dims:])
    return [torch.randn(size, generator=generator).requires_grad_() for size in sizes]


@pytest.mark.parametrize(
    ("name", "shape", "dims", "given"),
    [
        *((name, (4, 30), 1, 2) for name in STAND_INS),
        *((name, (2, 3, 5), 2, 2) for name in STAND_INS),
        ("flash_attn", (4, 30), 1, 1),  # without a bias
        ("quack", (4, 30), 1, 1),
        ("apex", (4, 30), 1, 0),  # without a weight
    ],
)
def test_arguments_are_passed_in_the_right_places(
    name: str, shape: tuple[int, ...], dims: int, given: int, stand_in: Put
) -> None:
    stand_in(name)
    x, *parameters = leaves_of(shape, dims)
    parameters = parameters[:given]
    dy = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))  # not contiguous
    for with_gaps in (x, x.repeat_interleave(2, -1)[..., ::2]):
        results = []
        for norm in (find(name), functional.layer_norm):
            y = norm(with_gaps, shape[-dims:], *[*parameters, None, None][:2], 0.25)
            results.append([y, *torch.autograd.grad(y, [x, *parameters], dy, retain_graph=True)])
        torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("name", "given", "dtype", "why"),
    [
        ("liger", 1, torch.float32, "liger-kernel needs a bias"),
        ("quack", 0, torch.float32, "quack-kernels needs a weight"),
        ("apex", 1, torch.float32, "apex takes a weight and a bias, or neither"),
        ("quack", 2, torch.float16, "weight of float32, not float16"),
    ],
)
def test_parameters_that_are_missing_or_of_another_dtype_are_refused(
    name: str, given: int, dtype: torch.dtype, why: str, stand_in: Put
) -> None:
    stand_in(name)
    x, *parameters = leaves_of()
    with pytest.raises(UnsupportedError, match=why):
        find(name)(x, (30,), *(parameter.to(dtype) for parameter in parameters[:given]))


def test_a_package_without_a_needed_part_is_refused(
    stand_in: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(stand_in("quack")["quack.rmsnorm"], "layernorm_bwd")
    with pytest.raises(UnsupportedError, match=r"no quack\.rmsnorm\.layernorm_bwd: pip install -U"):
        find("quack")(torch.zeros(4, 30), (30,), torch.ones(30), torch.zeros(30))

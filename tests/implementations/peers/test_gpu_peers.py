"""Peers for GPUs, called with stand-ins that have the signatures of the published packages.

A stand-in computes its arguments as torch does, on the CPU, so that an argument in the wrong place
gives a wrong result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from implementations import PEERS, UnsupportedError, find
from implementations.peers import gpu, peer

FOR_GPUS = ("apex", "flash_attn", "liger", "quack", "transformer_engine")
SHAPES = [((4, 30), (30,)), ((2, 3, 5), (5,)), ((2, 3, 5), (3, 5))]
NATIVE_DTYPE = object()  # what Transformer Engine calls float32


def _is_matrix_with_vectors(x: Tensor, *vectors: Tensor | None) -> None:
    assert x.dim() == 2
    assert all(vector is None or vector.shape == x.shape[1:] for vector in vectors)
    assert all(vector is None or vector.is_contiguous() for vector in vectors)


def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:  # noqa: N803 - theirs
    _is_matrix_with_vectors(X, W, B)
    return functional.layer_norm(X, X.shape[1:], W, B, eps)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: None = None,
    x1: None = None,
    weight1: None = None,
    bias1: None = None,
    eps: float = 1e-6,
) -> Tensor:
    assert residual is x1 is weight1 is bias1 is None
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
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    return_rstd: bool = False,
    return_mean: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = _forward(x, weight, bias, eps)
    assert return_rstd == return_mean
    return (y, rstd, mean) if return_rstd else y


def quack_backward(
    x: Tensor, weight: Tensor, dout: Tensor, rstd: Tensor, mean: Tensor, has_bias: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    dx, dweight, dbias = _backward(dout, x, mean, rstd, weight, [True, True, has_bias])
    return dx, dweight, dbias if has_bias else None


def te_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    out: None,
    quantizer: None,
    kind: object,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    assert (out, quantizer, kind, sm_margin) == (None, None, NATIVE_DTYPE, 0)
    return list(_forward(x, weight + zero_centered_gamma, bias, eps))


def te_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:
    assert sm_margin == 0
    return list(_backward(dy, x, mean, rstd, weight + zero_centered_gamma, [True, True, True]))


STAND_INS: dict[str, dict[str, dict[str, Any]]] = {
    "liger": {
        "liger_kernel": {},
        "liger_kernel.transformers": {},
        "liger_kernel.transformers.functional": {"liger_layer_norm": liger_layer_norm},
    },
    "flash_attn": {
        "flash_attn": {},
        "flash_attn.ops": {},
        "flash_attn.ops.triton": {},
        "flash_attn.ops.triton.layer_norm": {"layer_norm_fn": layer_norm_fn},
    },
    "apex": {
        "apex": {},
        "apex.normalization": {},
        "apex.normalization.fused_layer_norm": {
            "fused_layer_norm": fused_layer_norm,
            "fused_layer_norm_affine": fused_layer_norm_affine,
        },
        "fused_layer_norm_cuda": {},
    },
    "quack": {
        "quack": {},
        "quack.rmsnorm": {"layernorm_fwd": quack_forward, "layernorm_bwd": quack_backward},
    },
    "transformer_engine": {
        "transformer_engine": {},
        "transformer_engine.pytorch": {},
        "transformer_engine.pytorch.constants": {"TE_DType": {torch.float32: NATIVE_DTYPE}},
        "transformer_engine_torch": {"layernorm_fwd": te_forward, "layernorm_bwd": te_backward},
    },
}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces a package by its stand-in, and allows its peer on the CPU."""

    def put(name: str) -> None:
        for place, content in STAND_INS[name].items():
            module = ModuleType(place)
            for key, value in content.items():
                setattr(module, key, value)
            monkeypatch.setitem(sys.modules, place, module)
        monkeypatch.setattr(peer, "_device_kind", lambda x: "cuda")
        gpu._loaded.cache_clear()

    return put


def leaves_of(shape: tuple[int, ...], normalized: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(sizes, generator=generator).requires_grad_()
        for sizes in (shape, normalized, normalized)
    ]


def same_as_torch(name: str, leaves: list[Tensor], normalized: tuple[int, ...], count: int) -> None:
    """Assert torch's forward and backward, with the first ``count`` of weight and bias."""
    x, *parameters = leaves
    given = [*parameters[:count], None, None][:2]
    used = [x, *parameters[:count]]
    dy = torch.randn(x.shape[::-1]).permute(*reversed(range(x.dim())))  # not contiguous
    results = []
    for norm in (find(name), functional.layer_norm):
        y = norm(x, normalized, *given, 0.25)
        results.append([y, *torch.autograd.grad(y, used, dy, retain_graph=True)])
        # twice, because a backward is timed repeatedly
        again = torch.autograd.grad(y, used, dy)
        for one, other in zip(results[-1][1:], again, strict=True):
            assert torch.equal(one, other)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_every_peer_for_gpus_has_a_stand_in() -> None:
    assert {norm.name for norm in PEERS if norm.devices == {"cuda"}} == set(FOR_GPUS)
    assert STAND_INS.keys() == set(FOR_GPUS)


@pytest.mark.parametrize(("shape", "normalized"), SHAPES, ids=str)
@pytest.mark.parametrize("name", FOR_GPUS)
def test_arguments_are_passed_in_the_right_places(
    name: str,
    shape: tuple[int, ...],
    normalized: tuple[int, ...],
    stand_in: Callable[[str], None],
) -> None:
    stand_in(name)
    same_as_torch(name, leaves_of(shape, normalized), normalized, 2)


@pytest.mark.parametrize("name", FOR_GPUS)
def test_x_may_have_gaps(name: str, stand_in: Callable[[str], None]) -> None:
    stand_in(name)
    _, weight, bias = leaves_of((4, 30), (30,))
    wide = torch.randn(4, 60)
    for x in (wide[:, ::2], wide[:, :30], torch.randn(30, 4).T):
        same_as_torch(name, [x.requires_grad_(), weight, bias], (30,), 2)


@pytest.mark.parametrize(("name", "count"), [("flash_attn", 1), ("quack", 1), ("apex", 0)])
def test_optional_parameters_can_be_left_out(
    name: str, count: int, stand_in: Callable[[str], None]
) -> None:
    stand_in(name)
    same_as_torch(name, leaves_of((4, 30), (30,)), (30,), count)


@pytest.mark.parametrize(
    ("name", "count", "dtype", "why"),
    [
        ("liger", 1, torch.float32, "liger-kernel needs a bias"),
        ("liger", 0, torch.float32, "liger-kernel needs a weight"),
        ("flash_attn", 0, torch.float32, "flash-attn needs a weight"),
        ("quack", 0, torch.float32, "quack-kernels needs a weight"),
        ("transformer_engine", 1, torch.float32, "transformer-engine needs a bias"),
        ("apex", 1, torch.float32, "apex takes a weight and a bias, or neither"),
        *(
            (name, 2, torch.float16, r"weight of float32, not float16")
            for name in ("quack", "transformer_engine", "apex")
        ),
    ],
)
def test_parameters_that_are_missing_or_of_another_dtype_are_refused(
    name: str, count: int, dtype: torch.dtype, why: str, stand_in: Callable[[str], None]
) -> None:
    stand_in(name)
    x, *parameters = leaves_of((4, 30), (30,))
    with pytest.raises(UnsupportedError, match=why):
        find(name)(x, (30,), *(parameter.to(dtype) for parameter in parameters[:count]))


def test_without_a_gradient_quack_returns_no_statistics(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("quack")
    options: list[dict[str, bool]] = []

    def forward(x: Tensor, *parameters: Any, **named: bool) -> Tensor:
        options.append(named)
        return x.clone()

    monkeypatch.setattr(sys.modules["quack.rmsnorm"], "layernorm_fwd", forward)
    x, weight, bias = (leaf.detach() for leaf in leaves_of((4, 30), (30,)))
    # float32 parameters are accepted for every dtype of x
    assert find("quack")(x.bfloat16(), (30,), weight, bias).dtype == torch.bfloat16
    assert options == [{}]


def test_apex_without_its_extension_is_unsupported(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("apex")
    monkeypatch.setitem(sys.modules, "fused_layer_norm_cuda", None)
    monkeypatch.setattr(peer.Package, "is_installed", True)
    x, weight, bias = leaves_of((4, 30), (30,))
    with pytest.raises(UnsupportedError, match=r"apex cannot be imported .*fused_layer_norm_cuda"):
        find("apex")(x, (30,), weight, bias)

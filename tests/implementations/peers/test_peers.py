"""Peers receive the right settings; a missing package or an unsupported call is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from types import ModuleType
from typing import Any

import pytest
import torch
from factories.operands import normal, operands, y_and_gradients
from torch import Tensor
from torch.nn import functional

from harness.records import Autograd, Status
from harness.verify import verify_case
from implementations import PEERS, Implementation, Reduction, UnsupportedError, find
from implementations.peers import PACKAGES, gpu, numba, onnxruntime, openvino, peer, xla


def forget() -> None:
    """Clear the caches of peers."""
    for module in (xla, numba, onnxruntime, openvino, gpu, peer):
        for cache in vars(module).values():
            if hasattr(cache, "cache_clear"):
                cache.cache_clear()


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make peers believe that every tensor is on a GPU."""
    monkeypatch.setattr(peer, "_device_kind", lambda x: "cuda")


ON_CPU = [peer for peer in PEERS if "cpu" in peer.devices]
every_peer = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)


def package_of(peer: Implementation) -> Any:
    return next(package for package in PACKAGES if (package.module,) == peer.requires)


# --- refusals ------------------------------------------------------------------------------------


@every_peer
def test_a_peer_whose_package_is_missing_is_refused_with_the_install_command(
    peer: Implementation, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if peer not in ON_CPU:
        request.getfixturevalue("on_cuda")
    package = package_of(peer)
    # and its submodules, which an earlier test may have imported
    inside = [module for module in sys.modules if module.startswith(f"{package.module}.")]
    for name in (package.module, *inside):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError) as caught, torch.no_grad():
        peer(torch.zeros(4, 8), (8,), torch.ones(8), torch.zeros(8))
    assert str(caught.value) == f"needs {package.distributions[0]}: {package.install}"
    assert "pip install" in package.install or "https://" in package.install


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("liger", {}, "liger-kernel runs on cuda, x is on cpu"),
        ("numpy", {"x": torch.zeros(2, 4, dtype=torch.bfloat16)}, "numpy does not take bfloat16"),
        ("onnxruntime", {"weight": None}, "onnxruntime needs a weight"),
        ("openvino", {"bias": torch.zeros(4).double()}, "takes a bias of float32, not float64"),
        ("numba", {"x": torch.zeros(2, 4, requires_grad=True)}, "numba has no gradient"),
        ("numpy", {"weight": torch.ones(4, requires_grad=True)}, "numpy has no gradient"),
    ],
)
def test_an_unsupported_call_is_refused(
    name: str, given: dict[str, Tensor | None], why: str
) -> None:
    supported: dict[str, Any] = {"x": torch.zeros(2, 4), "weight": torch.ones(4), "bias": None}
    x, weight, bias = (supported | given).values()
    with pytest.raises(UnsupportedError, match=why):
        find(name)(x, (4,), weight, bias)
    if "gradient" in why:
        with torch.no_grad():
            find("numpy")(x, (4,), weight, bias)


@every_peer
def test_mismatched_shapes_are_reported_before_all_other_problems(peer: Implementation) -> None:
    with pytest.raises(ValueError, match="normalized_shape"):
        peer(torch.zeros(2, 4), (5,))
    with pytest.raises(ValueError, match=r"weight has shape \[1\]"):
        peer(torch.zeros(2, 4), (4,), torch.ones(1))


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_numpy_has_trees_only_along_the_axis_of_the_smallest_stride(layout: str) -> None:
    axes = {
        "distribution": "constant",
        "layout": layout,
        "autograd": Autograd.INFERENCE_MODE,
    }
    numpy = find("numpy")
    assert verify_case(numpy, (32, 4125), **axes).status is Status.OK
    # in a transposed x its running sums reach 29 times the bound of trees
    trees = verify_case(replace(numpy, reduction=Reduction.TREE), (32, 4125), **axes)
    assert trees.status is (Status.OK if layout == "contiguous" else Status.INACCURATE)


def installed(name: str) -> Implementation:
    """Return a peer, or skip the test where its package is not installed."""
    if not package_of(find(name)).is_installed:
        pytest.skip(f"{name} is not installed")
    return find(name)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(
    ("name", "dtype"), [(norm.name, dtype) for norm in ON_CPU for dtype in sorted(norm.dtypes)]
)
def test_an_installed_peer_returns_the_result_of_torch(name: str, dtype: str, dims: int) -> None:
    peer, kind = installed(name), getattr(torch, dtype)
    x, weight, bias, _ = operands((4, 3, 10), dims, kind)
    with torch.no_grad():
        y = peer(x, x.shape[-dims:], weight, bias, 0.25)
    exact = functional.layer_norm(x.double(), x.shape[-dims:], weight.double(), bias.double(), 0.25)
    assert (y.shape, y.dtype) == (x.shape, kind)
    # only roughly, the verification is exact; values are up to 8, and one peer computes in float32
    allowed = 64 * max(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)
    assert float((y.double() - exact).abs().max()) <= allowed


@pytest.mark.parametrize("name", [norm.name for norm in ON_CPU if not norm.forward_only])
def test_an_installed_peer_returns_the_gradients_of_torch(name: str) -> None:
    x, *parameters, _ = operands((4, 10), dtype=torch.float64)
    dy = normal(10, 4, dtype=torch.float64).T
    results = (
        y_and_gradients(norm, dy, x, (10,), *parameters)
        for norm in (installed(name), functional.layer_norm)
    )
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


# --- peers for GPUs, called with stand-ins that have the signatures of the published packages -----

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


Put = Callable[..., dict[str, ModuleType]]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, on_cuda: None) -> Put:
    """Return a function that puts the stand-in of a package in its place, as some version of it."""

    def put(name: str, version: str | None = None) -> dict[str, ModuleType]:
        found = version or package_of(find(name)).read.split(", ")[-1]
        monkeypatch.setattr(peer, "version", lambda distribution: found)
        places: dict[str, ModuleType] = {}
        for place, content in STAND_INS[name].items():
            for path in accumulate(place.split("."), lambda folder, name: f"{folder}.{name}"):
                monkeypatch.setitem(sys.modules, path, places.setdefault(path, ModuleType(path)))
            vars(places[place]).update(content)
        return places

    return put


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
    x, weight, bias, _ = operands(shape, dims)
    parameters = [*[weight, bias][:given], None, None][:2]
    dy = normal(*shape[::-1]).permute(*reversed(range(len(shape))))  # not contiguous
    for with_gaps in (x, x.repeat_interleave(2, -1)[..., ::2]):
        results = (
            y_and_gradients(norm, dy, with_gaps, shape[-dims:], *parameters, 0.25)
            for norm in (find(name), functional.layer_norm)
        )
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
    x, *parameters, _ = operands((4, 30))
    with pytest.raises(UnsupportedError, match=why):
        find(name)(x, (30,), *(parameter.to(dtype) for parameter in parameters[:given]))


@pytest.mark.parametrize("name", STAND_INS)
def test_a_version_whose_source_was_not_read_is_refused_but_can_be_tried(
    name: str, stand_in: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of(find(name))
    x, weight, bias, _ = operands()
    stand_in(name, "99.1")
    with pytest.raises(UnsupportedError) as caught:
        find(name)(x, (32,), weight, bias)
    told = str(caught.value)
    assert told.startswith(f"{package.distributions[0]} 99.1 is installed")
    assert package.read in told
    peer._unread.cache_clear()
    monkeypatch.setenv(peer.ANY_VERSION, "1")
    assert find(name)(x, (32,), weight, bias).shape == x.shape
    monkeypatch.delenv(peer.ANY_VERSION)
    for version in package.read.split(", "):
        peer._unread.cache_clear()
        stand_in(name, f"{version}+cu12")  # a build of it
        assert find(name)(x, (32,), weight, bias).shape == x.shape


def test_a_package_without_a_backward_still_has_its_forward(stand_in: Put) -> None:
    del stand_in("quack")["quack.rmsnorm"].layernorm_bwd
    x, weight, bias, _ = operands()
    quack = find("quack")
    assert quack(x, (32,), weight, bias).shape == x.shape
    with torch.no_grad():
        assert quack(x.requires_grad_(), (32,), weight, bias).shape == x.shape
    with pytest.raises(UnsupportedError, match=r"has no quack.rmsnorm.layernorm_bwd"):
        quack(x, (32,), weight, bias)

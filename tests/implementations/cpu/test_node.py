"""The node in C++ returns the same bits as the calls from Python."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.inputs import LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction
from implementations import Implementation, find
from implementations.contract import UnsupportedError
from implementations.cpu import build, node

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("c++") is None, reason="needs a C and a C++ compiler"
)

FROM_PYTHON, FROM_CPP = find("c_recentred"), find("cpp_recentred")


def inputs_of(shape: tuple[int, ...], **axes: object) -> dict[str, Tensor | None]:
    drawn = make_inputs(
        Case(implementation="node", shape=shape, direction=Direction.BACKWARD, **axes)  # type: ignore[arg-type]
    )
    return {name: getattr(drawn, name) for name in ("x", "weight", "bias", "dy")}


def results(
    implementation: Implementation,
    of: dict[str, Tensor | None],
    wanted: tuple[str, ...] = ("x", "weight", "bias"),
    lay: Callable[[Tensor], Tensor] = lambda dy: dy,
) -> list[Tensor]:
    """Return y, and the gradients of those inputs in ``wanted`` that are not None."""
    given = {
        name: each if each is None else each.detach().requires_grad_(name in wanted)
        for name, each in of.items()
    }
    x, weight, bias, dy = given.values()
    assert x is not None
    assert dy is not None
    y = implementation.function(x, x.shape[-1:], weight, bias, 1e-3)
    leaves = [each for name in wanted if (each := given[name]) is not None]
    return [y, *torch.autograd.grad(y, leaves, lay(dy.detach()))]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(
        torch.equal(a, b) and a.dtype is b.dtype and a.stride() == b.stride()
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("affine", Affine)
@pytest.mark.parametrize(
    ("dtype", "param_dtype"),
    [
        *((dtype, dtype) for dtype in ("float32", "float64", "bfloat16", "float16")),
        *((dtype, "float32") for dtype in ("bfloat16", "float16")),
    ],
)
def test_results_and_gradients_have_the_same_bits(
    dtype: str, param_dtype: str, affine: Affine
) -> None:
    for shape in ((7, 33), (300, 512), (2, 3, 64), (0, 5), (3, 0)):
        of = inputs_of(shape, dtype=dtype, param_dtype=param_dtype, affine=affine)
        assert same(results(FROM_CPP, of), results(FROM_PYTHON, of)), shape


@pytest.mark.parametrize("affine", [Affine.BOTH, Affine.BIAS, Affine.WEIGHT])
def test_single_gradients_are_the_same(affine: Affine) -> None:
    of = inputs_of((9, 40), affine=affine)
    present = [name for name in ("x", "weight", "bias") if of[name] is not None]
    for wanted in (*combinations(present, 1), *combinations(present, 2)):
        assert same(results(FROM_CPP, of, wanted), results(FROM_PYTHON, of, wanted))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "weight", "bias", "dy"])
def test_any_layout_returns_the_same_bits_as_a_dense_copy(name: str, layout: str) -> None:
    of = inputs_of((6, 48))
    tensor = of[name]
    assert tensor is not None
    laid = LAYOUTS[layout](tensor)
    found = results(FROM_CPP, {**of, name: laid})
    assert same(found, results(FROM_CPP, {**of, name: laid.clone().contiguous()}))


@pytest.mark.parametrize("implementation", [FROM_PYTHON, FROM_CPP], ids=lambda each: each.name)
def test_a_zero_gradient_without_memory_gives_zeros(
    implementation: Implementation,
) -> None:
    of = inputs_of((6, 48))
    zero = torch._efficientzerotensor((6, 48))
    _, *gradients = results(implementation, of, lay=lambda _: zero)
    assert [each.count_nonzero().item() for each in gradients] == [0, 0, 0]


def test_without_a_required_gradient_nothing_is_recorded() -> None:
    x = torch.randn(4, 8)
    assert FROM_CPP.function(x, (8,)).grad_fn is None
    with torch.no_grad():
        assert not FROM_CPP.function(x.requires_grad_(), (8,)).requires_grad
    with torch.inference_mode():
        assert FROM_CPP.function(torch.randn(4, 8), (8,)).is_inference()


def test_the_backward_frees_saved_tensors_and_refuses_changed_ones() -> None:
    x = torch.randn(4, 8, requires_grad=True).clone()
    y = FROM_CPP.function(x, (8,))
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = FROM_CPP.function(x, (8,))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_can_be_differentiated_again() -> None:
    arguments = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 5), (5,), (5,))]
    leaves = [each.requires_grad_() for each in arguments]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return FROM_CPP.function(x, (5,), *parameters)

    assert torch.autograd.gradgradcheck(call, leaves)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CXX", "no-such-c++", "there is no no-such-c++, which CXX names"),
        ("PATH", "", "there is no C++ compiler (c++, g++, clang++)"),  # nor one of C
    ],
)
def test_without_a_cpp_compiler_a_call_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(build, "_built", build._built.__wrapped__)
    monkeypatch.setattr(node, "layer_norm", node.layer_norm.__wrapped__)
    with pytest.raises(UnsupportedError) as error:
        FROM_CPP.function(torch.randn(4, 8), (8,))
    assert str(error.value) == f"{words}; install g++ or clang++, or set CXX"


def test_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="does not take"):
        FROM_CPP.function(torch.zeros(4, 8, dtype=torch.int32), (8,))

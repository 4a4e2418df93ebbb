"""The operator works with autograd, modes, torch.compile, torch.export and torch.func."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.cases.inputs import LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction
from implementations import LayerNorm, UnsupportedError, cpu_recentred

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def inputs_of(shape: tuple[int, ...], **axes: object) -> dict[str, Tensor | None]:
    drawn = make_inputs(
        Case(implementation="node", shape=shape, direction=Direction.BACKWARD, **axes)  # type: ignore[arg-type]
    )
    return {name: getattr(drawn, name) for name in ("x", "weight", "bias", "dy")}


def results(
    of: dict[str, Tensor | None],
    wanted: tuple[str, ...] = ("x", "weight", "bias"),
    lay: Callable[[Tensor], Tensor] = lambda dy: dy,
) -> list[Tensor]:
    """Return y, and the gradients of those inputs in ``wanted`` that are not None."""
    given = {
        name: tensor if tensor is None else tensor.detach().requires_grad_(name in wanted)
        for name, tensor in of.items()
    }
    x, weight, bias, dy = given.values()
    assert x is not None
    assert dy is not None
    y = cpu_recentred(x, x.shape[-1:], weight, bias, 1e-3)
    leaves = [each for name in wanted if (each := given[name]) is not None]
    return [y, *torch.autograd.grad(y, leaves, lay(dy.detach()))]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(
        torch.equal(a, b) and a.dtype is b.dtype and a.stride() == b.stride()
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "weight", "bias", "dy"])
def test_any_layout_returns_the_same_bits_as_a_dense_copy(name: str, layout: str) -> None:
    of = inputs_of((6, 48))
    tensor = of[name]
    assert tensor is not None
    laid = LAYOUTS[layout](tensor)
    found = results({**of, name: laid})
    assert same(found, results({**of, name: laid.clone().contiguous()}))


def test_a_zero_gradient_without_memory_gives_zeros() -> None:
    of = inputs_of((6, 48))
    zero = torch._efficientzerotensor((6, 48))
    _, *gradients = results(of, lay=lambda _: zero)
    assert [gradient.count_nonzero().item() for gradient in gradients] == [0, 0, 0]


def test_without_a_required_gradient_nothing_is_recorded() -> None:
    x = torch.randn(4, 8)
    assert cpu_recentred(x, (8,)).grad_fn is None
    with torch.no_grad():
        assert not cpu_recentred(x.requires_grad_(), (8,)).requires_grad
    with torch.inference_mode():
        assert cpu_recentred(torch.randn(4, 8), (8,)).is_inference()


def test_the_backward_frees_saved_tensors_and_refuses_changed_ones() -> None:
    x = torch.randn(4, 8, requires_grad=True).clone()
    y = cpu_recentred(x, (8,))
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = cpu_recentred(x, (8,))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_can_be_differentiated_again() -> None:
    arguments = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 5), (5,), (5,))]
    leaves = [argument.requires_grad_() for argument in arguments]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return cpu_recentred(x, (5,), *parameters)

    assert torch.autograd.gradgradcheck(call, leaves)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("affine", [Affine.BOTH, Affine.BIAS, Affine.WEIGHT])
def test_a_gradient_does_not_depend_on_which_others_are_wanted(affine: Affine) -> None:
    of = inputs_of((9, 40), affine=affine)
    present = [name for name in ("x", "weight", "bias") if of[name] is not None]
    every = dict(zip(("y", *present), results(of), strict=True))
    for wanted in (*combinations(present, 1), *combinations(present, 2)):
        assert same(results(of, wanted), [every[name] for name in ("y", *wanted)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mode_and_a_profiler_observe_the_operators_and_change_no_bit(dtype: str) -> None:
    of = inputs_of((9, 40), dtype=dtype)
    plain = results(of)
    with Seen() as seen:
        assert same(results(of), plain)
    forward, backward = (
        f"layernorm_bench::cpu_recentred_{direction}" for direction in ("forward", "backward")
    )
    assert [name for name in seen.names if "layernorm_bench" in name] == [forward, backward]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        results(of)
    name = "layernorm_bench::cpu_recentred"
    assert [event.count for event in profile.key_averages() if event.key == name] == [1]


class Seen(TorchDispatchMode):
    """Records the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_torch_checks_schema_autograd_and_shapes_with_static_and_dynamic_sizes() -> None:
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((4, 8), (8,), (8,)))
    cpu_recentred(x, (8,))
    operators = torch.ops.layernorm_bench
    torch.library.opcheck(operators.cpu_recentred.default, (x, [8], weight, bias, 1e-5))
    x = x.detach()
    torch.library.opcheck(operators.cpu_recentred.default, (x, [8]))
    y, statistics = operators.cpu_recentred_forward(x, None, None, 8, 1e-5)
    inputs = (y, x, None, None, statistics, 8, [True, False, False])
    torch.library.opcheck(operators.cpu_recentred_backward.default, inputs)


def test_a_first_call_may_be_a_compiled_one() -> None:
    # in its own process, because this one may have loaded the library already
    program = """
import torch
from implementations import cpu_recentred
x = torch.randn(4, 8, requires_grad=True)
compiled = torch.compile(lambda x: cpu_recentred(x, (8,)), fullgraph=True, backend="aot_eager")
found, expected = (torch.autograd.grad(each(x).sin().sum(), x)[0]
                   for each in (compiled, lambda x: cpu_recentred(x, (8,))))
print(torch.equal(found, expected))
"""
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, cwd=Path(__file__).parents[3], text=True) == "True\n"


def test_an_exported_program_calls_the_operator() -> None:
    module = LayerNorm(8, implementation="cpu_recentred")
    x = torch.randn(4, 8)
    program = torch.export.export(module, (x,))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["layernorm_bench.cpu_recentred.default"]
    assert torch.equal(program.module()(x), module(x))


@pytest.mark.filterwarnings("ignore:.*batching rule", "ignore:`torch.jit.script`")
def test_transforms_of_torch_func_give_the_gradients_of_autograd() -> None:
    of = inputs_of((3, 5, 40))
    x, weight, bias, dy = of.values()
    assert x is not None
    assert dy is not None

    def loss(x: Tensor, dy: Tensor) -> Tensor:
        return (cpu_recentred(x, (40,), weight, bias, 1e-3) * dy).sum()

    _, dx, *_ = results(of)
    for found in (torch.func.grad(loss)(x, dy), torch.func.vmap(torch.func.grad(loss))(x, dy)):
        torch.testing.assert_close(found, dx)
    with pytest.raises(UnsupportedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: cpu_recentred(x, (40,)), (x,), (dy,))


def test_tensors_without_memory_have_shapes_and_other_devices_are_refused() -> None:
    assert cpu_recentred(torch.empty(4, 8, device="meta"), (8,)).shape == (4, 8)
    x = torch.empty(4, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    cpu_recentred(x, (8,)).sum().backward()
    assert x.grad is not None
    assert (x.grad.shape, x.grad.dtype) == ((4, 8), torch.bfloat16)


@pytest.mark.parametrize(
    ("x_shape", "normalized_shape", "weight_shape", "words"),
    [
        ((2, 3), (), None, "normalized_shape is empty"),
        ((2, 3), (2, 2, 3), None, r"normalized_shape is \[2, 2, 3\], but x has shape \[2, 3\]"),
        ((2, 3), (4,), None, r"its last 1 axes must be the same"),
        ((2, 3), (3,), (1, 3), r"weight has shape \[1, 3\], expected \[3\]"),
    ],
)
def test_shapes_that_do_not_agree_are_named(
    x_shape: tuple[int, ...],
    normalized_shape: tuple[int, ...],
    weight_shape: tuple[int, ...] | None,
    words: str,
) -> None:
    weight = None if weight_shape is None else torch.ones(weight_shape)
    with pytest.raises(ValueError, match=words):
        cpu_recentred(torch.ones(x_shape), normalized_shape, weight)


def test_unsupported_dtypes_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"does not take Int; it takes float32"):
        cpu_recentred(torch.ones(2, 4, dtype=torch.int32), (4,))
    mixed = torch.ones(2, 4, dtype=torch.bfloat16), (4,), torch.ones(4, dtype=torch.float16)
    with pytest.raises(UnsupportedError, match=r"x is BFloat16, weight is Half"):
        cpu_recentred(*mixed)

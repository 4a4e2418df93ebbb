"""The operator is right for every processor, length and layout, and works with torch."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import every_dtype
from torch import Tensor

from harness.cases import LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.verify import verify, verify_case
from implementations import Implementation, UnsupportedError, cpu_recentred
from implementations.cpu import build, operators

# without AVX, and with AVX2 but without AVX-512; -O1 takes half as long to compile, and the vectors
# are written out in the source
MACHINES = ("-march=x86-64-v2 -O1", "-march=x86-64-v3 -O1")


@pytest.fixture(scope="session")
def machines() -> Iterator[dict[str, Implementation]]:
    """Yield the implementation built for each machine whose instructions this processor has."""
    is_x86 = platform.machine() == "x86_64"
    has_avx2 = is_x86 and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    built, kept = {"": cpu_recentred}, []
    with pytest.MonkeyPatch.context() as patch:
        for number, flags in enumerate(MACHINES if has_avx2 else MACHINES[:1] if is_x86 else ()):
            patch.setenv(build.FLAGS_VARIABLE, flags)
            build._built.cache_clear()
            kept.append(operators.define(f"layernorm_bench_test_{number}"))
            operator = operators.load_operator(f"layernorm_bench_test_{number}")
            built[flags] = replace(cpu_recentred, function=operator)
        build._built.cache_clear()
        yield built


pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def inputs_of(shape: tuple[int, ...], dtype: str = "float32", **axes: Any) -> dict[str, Any]:
    """Draw x, weight, bias and dy."""
    given = {"dtype": dtype, "param_dtype": dtype, "direction": Direction.BACKWARD, **axes}
    drawn = make_inputs(Case(implementation="cpu_recentred", shape=shape, **given))
    return {name: getattr(drawn, name) for name in ("x", "weight", "bias", "dy")}


def results(of: dict[str, Any], wanted: tuple[str, ...] = ("x", "weight", "bias")) -> list[Tensor]:
    """Return y, and the gradients of those inputs in ``wanted`` that are not None."""
    given = {
        name: tensor if tensor is None else tensor.detach().requires_grad_(name in wanted)
        for name, tensor in of.items()
    }
    x, weight, bias, dy = given.values()
    y = cpu_recentred(x, x.shape[-1:], weight, bias, 1e-3)
    leaves = [given[name] for name in wanted if given[name] is not None]
    return [y, *torch.autograd.grad(y, leaves, dy.detach())]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(
        torch.equal(a, b) and a.dtype is b.dtype and a.stride() == b.stride()
        for a, b in zip(one, other, strict=True)
    )


# --- instructions --------------------------------------------------------------------------------


# the instructions of half precision differ in loads and stores
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_passes_verification(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_catalogue(monkeypatch, largest=30_000, one_in=12, contract=dtype == "float32")
    verdict = verify(cpu_recentred, quick=True, dtypes=(dtype,), fail_fast=True)
    assert verdict.passed, verdict


@every_dtype
@pytest.mark.parametrize("hidden", [1, 15, 16, 17, 65, 300])
def test_rows_on_and_off_the_length_of_vectors_are_right_with_the_instructions_of_each_machine(
    machines: dict[str, Implementation], hidden: int, dtype: str
) -> None:
    # enough rows for the pipeline, and not a multiple of 4
    axes = {"dtype": dtype, "param_dtype": dtype, "distribution": "last_digit"}
    for flags, norm in machines.items():
        for direction in (Direction.FORWARD, Direction.BACKWARD):
            found = verify_case(norm, (21, hidden), direction=direction, **axes)
            assert found.status is Status.OK, (flags, found.reason)


# --- memory --------------------------------------------------------------------------------------


# both are larger than STREAM_BYTES in kernels.cpp
@pytest.mark.parametrize(("dtype", "rows"), [("float32", 2304), ("bfloat16", 4352)])
def test_rows_written_past_the_caches_have_the_same_bits_as_others(dtype: str, rows: int) -> None:
    of = inputs_of((rows, 1024), dtype)
    part = slice(1024, 1280)
    y, dx = results(of, ("x",))
    of_part = of | {name: of[name][part] for name in ("x", "dy")}
    assert same([y[part], dx[part]], results(of_part, ("x",)))


@every_dtype
def test_a_row_has_the_same_bits_in_any_batch(dtype: str) -> None:
    # one or two rows read weight and bias without a conversion; the last two rows are only written
    x, weight, bias, _ = inputs_of((7, 100), dtype).values()
    y = cpu_recentred(x, (100,), weight, bias)
    for rows in (1, 2, 3):
        parts = [cpu_recentred(part, (100,), weight, bias) for part in x.split(rows)]
        assert torch.equal(torch.cat(parts), y), rows


@pytest.mark.parametrize("shape", [(1, 300_000), (3000, 768)], ids=str)
def test_two_threads_return_the_same_bits_as_one(shape: tuple[int, int]) -> None:
    of = inputs_of(shape)
    one = results(of)
    torch.set_num_threads(2)
    assert same(results(of), one)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "weight", "bias", "dy"])
def test_any_layout_returns_the_same_bits_as_a_dense_copy(name: str, layout: str) -> None:
    of = inputs_of((6, 48))
    laid = LAYOUTS[layout](of[name])
    assert same(results({**of, name: laid}), results({**of, name: laid.clone().contiguous()}))


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


def test_torch_checks_schema_autograd_and_shapes_with_static_and_dynamic_sizes() -> None:
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((4, 8), (8,), (8,)))
    cpu_recentred(x, (8,))
    operator = torch.ops.layernorm_bench.cpu_recentred.default
    torch.library.opcheck(operator, (x, [8], weight, bias, 1e-5))


def test_a_first_call_may_be_a_compiled_one() -> None:
    def loss(x: Tensor) -> Tensor:
        return cpu_recentred(x, (8,)).sin().sum()

    operators.load_operator.cache_clear()
    torch.compiler.reset()
    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(function(x), x) for function in (compiled, loss))
    assert torch.equal(*found, *expected)


@pytest.mark.parametrize(
    ("x", "weight", "words"),
    [
        (torch.int32, torch.float32, "not take Int; it takes float32"),
        (torch.bfloat16, torch.float16, "x is BFloat16, weight is Half"),
    ],
)
def test_dtypes_that_do_not_agree_are_named(
    x: torch.dtype, weight: torch.dtype, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        cpu_recentred(torch.ones(2, 3, dtype=x), (3,), torch.ones(3, dtype=weight))

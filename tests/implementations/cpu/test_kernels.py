"""The kernel is right for every processor, row length and layout, and with several threads."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from factories.small_catalogue import use_small_catalogue
from torch import Tensor

from harness.cases.inputs import make_inputs
from harness.records import Case, Direction, Status
from harness.run.attempt import attempt
from harness.verify import verify
from implementations import cpu_recentred, native
from implementations.cpu import build, operators

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

MODULE = sys.modules["implementations.cpu.cpu_recentred"]
DTYPES = ["float32", "float64", "bfloat16", "float16"]
# without AVX, and with AVX2 but without AVX-512; -O1 takes half as long to compile, and the vectors
# are written out in the source
MACHINES = ("-march=x86-64-v2 -O1", "-march=x86-64-v3 -O1")


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, Callable[..., Tensor]]]:
    """Yield the operator built for each machine whose instructions this processor has."""
    is_x86 = platform.machine() == "x86_64"
    has_avx2 = is_x86 and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    built, kept = {"": operators.load_operator()}, []
    with pytest.MonkeyPatch.context() as patch:
        for number, flags in enumerate(MACHINES if has_avx2 else MACHINES[:1] if is_x86 else ()):
            patch.setenv(build.FLAGS_VARIABLE, flags)
            build._built.cache_clear()
            kept.append(operators.define(f"layernorm_bench_test_{number}"))
            built[flags] = operators.load_operator(f"layernorm_bench_test_{number}")
        build._built.cache_clear()
        yield built


def case(shape: tuple[int, ...], **axes: object) -> Case:
    return replace(Case(implementation="cpu_recentred", shape=shape), **axes)  # type: ignore[arg-type]


# --- instructions --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_passes_verification(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype != "float32":  # the instructions of the others differ in loads and stores
        use_small_catalogue(monkeypatch, largest=30_000)
    verdict = verify(cpu_recentred, quick=True, dtypes=(dtype,), fail_fast=True)
    assert verdict.passed, verdict


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 15, 16, 17, 63, 64, 65, 127, 300, 2049, 5000])
def test_rows_on_and_off_the_length_of_vectors_are_right_with_the_instructions_of_each_machine(
    machines: dict[str, Callable[..., Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    hidden: int,
    dtype: str,
    direction: Direction,
) -> None:
    for distribution in ("normal", "last_digit"):
        # enough rows for the pipeline, and not a multiple of 4
        axes = {"param_dtype": dtype, "direction": direction, "distribution": distribution}
        tried = case((21, hidden), dtype=dtype, **axes)
        for flags, operator in machines.items():
            monkeypatch.setattr(MODULE, "load_operator", lambda operator=operator: operator)
            trial = attempt(cpu_recentred, tried)
            assert trial.status is Status.OK, (flags, trial.reason)


def test_a_compiler_that_may_reorder_sums_is_caught() -> None:
    # in its own process, because such a library makes its process flush subnormal numbers to zero
    program = """
from harness.verify import verify_case
print(verify_case("cpu_recentred", (64, 1000), distribution="last_digit").status)
"""
    status = subprocess.check_output(
        [sys.executable, "-c", program],
        env={**os.environ, build.FLAGS_VARIABLE: "-O1 -ffast-math"},
        cwd=Path(__file__).parents[3],
        text=True,
    )
    assert status == "wrong\n"


# --- memory --------------------------------------------------------------------------------------


# both are larger than STREAM_BYTES in kernels.cpp
@pytest.mark.parametrize(("dtype", "rows"), [("float32", 2304), ("bfloat16", 4352)])
def test_rows_written_past_the_caches_have_the_same_bits_as_others(dtype: str, rows: int) -> None:
    large = case((rows, 1024), dtype=dtype, param_dtype=dtype, direction=Direction.BACKWARD)
    x, weight, bias, dy = make_inputs(large).tensors
    x.requires_grad_()
    y = cpu_recentred(x, (1024,), weight, bias)
    (dx,) = torch.autograd.grad(y, x, dy)
    part = slice(1024, 1280)
    y_of_part = cpu_recentred(x[part], (1024,), weight, bias)
    assert torch.equal(y[part], y_of_part)
    assert torch.equal(dx[part], torch.autograd.grad(y_of_part, x, dy[part])[0][part])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: str) -> None:
    # one or two rows read weight and bias without a conversion; the last two rows are only written
    x, weight, bias = make_inputs(case((7, 100), dtype=dtype, param_dtype=dtype)).tensors
    y = cpu_recentred(x, (100,), weight, bias)
    for rows in (1, 2, 3):
        parts = [cpu_recentred(part, (100,), weight, bias) for part in x.split(rows)]
        assert torch.equal(torch.cat(parts), y), rows


@pytest.mark.parametrize("shape", [(1, 300_000), (7, 40_000), (3000, 768), (5000, 48)], ids=str)
def test_two_threads_return_the_same_bits_as_one(shape: tuple[int, int]) -> None:
    x, weight, bias, dy = make_inputs(case(shape, direction=Direction.BACKWARD)).tensors
    wanted = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            y = cpu_recentred(x, shape[1:], weight, bias)
            found.append([y, *torch.autograd.grad(y, wanted, dy)])
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:, :48],  # rows further apart than they are long
        lambda x: x[::3, 8:56],
        lambda x: x[:, ::2],  # elements apart
        lambda x: x[:1].expand(40, 64),  # one row many times
        lambda x: x.t(),
        lambda x: x.flip(0)[3:],
        lambda x: x.reshape(8, 8, 64).transpose(0, 1),
    ],
)
def test_any_strides_are_read_correctly(make: Callable[[Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(5)
    x = make(torch.randn(64, 64, generator=generator))
    dy = make(torch.randn(64, 64, generator=generator))
    shape = x.shape[-1:]
    weight, bias = torch.randn(2, *shape, 3, generator=generator).unbind(0)
    weight, bias = weight[:, 1], bias[:, 1]  # as columns of something else
    found, expected = (
        torch.autograd.grad(function(x_, shape, weight, bias), x_, dy)
        for function in (cpu_recentred, native)
        for x_ in (x.detach().requires_grad_(),)
    )
    torch.testing.assert_close(found, expected)
    y = cpu_recentred(x, shape, weight, bias)
    assert y.is_contiguous()
    torch.testing.assert_close(y, native(x, shape, weight, bias))

"""The exact bytes and operators of known calls; the allocator stays out of the timings."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import astuple
from random import Random

import pytest
import torch
from factories.python_process import python
from torch import Tensor

from harness.cases import LAYOUTS
from harness.measure import (
    Allocations,
    compiler,
    copies_beyond,
    count_allocations,
    memory,
    overwrite,
    relocate,
)
from harness.records import Allocation
from implementations import welford

X, LEAF = torch.ones(4, 8), torch.ones(256, requires_grad=True)


def block(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def count(call: Callable[[], object]) -> Allocations:
    return count_allocations(call, "cpu")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: block(10_000_000), (10_000_000, 10_000_000, 1, 10_000_000, 1, 0)),
        (lambda: (block(1000), block(300)), (1300, 1300, 2, 1300, 2, 0)),
        (lambda: (block(1000), None)[1], (1000, 1000, 1, 0, 1, 0)),  # freed
        (lambda: X.exp().sin(), (256, 256, 2, 128, 2, 0)),
        (lambda: LEAF.exp().sin(), (2048, 2048, 2, 2048, 2, 0)),  # exp is kept for the backward
        (lambda: X.t(), (0, 0, 0, 0, 1, 0)),
        (lambda: torch.nn.functional.layer_norm(X, (8,)), (160, 160, 3, 128, 1, 0)),
    ],
)
def test_allocations_and_operators_are_counted_exactly(
    call: Callable[[], object], expected: tuple[int, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert astuple(count(call)) == expected
    assert capfd.readouterr().err == ""  # the profiler prints nothing


def test_memory_from_before_the_call_that_it_frees_is_not_counted() -> None:
    held = [block(50_000)]
    found = count(held.clear)
    assert (found.peak_bytes, found.total_bytes) == (0, 0)


def test_operators_of_an_implementation_are_counted_inside_its_own_operator() -> None:
    assert count(lambda: welford(X, (8,))).operators > 8  # a running mean: one step per column


def test_operators_of_a_backward_are_counted_and_its_nodes_are_not() -> None:
    y, dy = 2 * LEAF, torch.ones(256)
    backward = count(lambda: torch.autograd.grad(y, LEAF, dy, retain_graph=True))
    assert backward.operators == 1  # mul


@pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_memory_inside_compiled_code_is_counted() -> None:
    def product(x: Tensor) -> Tensor:
        return x.exp() * x.sin()

    x = torch.randn(64, 256)
    torch.compiler.reset()
    compiled = torch.compile(product, dynamic=False)
    compiled(x)
    fused, one_by_one = count(lambda: compiled(x)), count(lambda: product(x))
    assert (fused.peak_bytes, fused.total_bytes, fused.count) == (65536, 65536, 1)
    assert one_by_one.count == one_by_one.operators == 3
    assert fused.operators < 3


def test_on_a_gpu_requested_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("requested_bytes.all.current", "requested_bytes.all.allocated")
    stats = iter([
        dict(zip(names, (1000, 9000), strict=True)) | {"allocation.all.allocated": 7},
        dict(zip(names, (1300, 9900), strict=True))
        | {"allocation.all.allocated": 10, "requested_bytes.all.peak": 1800},
    ])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: next(stats))
    found = count_allocations(lambda: None, "cuda")
    assert astuple(found) == (800, 900, 3, 300, 0, 0)


# --- the system's memory management stays out of the timings -------------------------------------

# 38 MB: above 32 MiB glibc always maps memory afresh
FAULTS = """
import torch
from resource import RUSAGE_SELF, getrusage
from harness.measure import fault_in, use_steady_allocation

def faults_per_call():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(9_500_000)
    return (getrusage(RUSAGE_SELF).ru_minflt - before) / 5

usual = faults_per_call()
allocation = use_steady_allocation()
fault_in(8 * 38_000_000)
print(usual, allocation, faults_per_call())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_only_steady_allocation_takes_less_than_one_page_fault_per_call() -> None:
    # a fresh process: the setting cannot be undone
    usual, allocation, steady = python("-c", FAULTS).stdout.split()
    assert float(usual) > 100  # pages of up to 64 KiB
    assert allocation == Allocation.STEADY
    assert float(steady) < 1


# --- copies in other places, which can be overwritten --------------------------------------------

KIB = 1024


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 33), (1, 1), (2, 3, 5), (0, 5), (2, 0, 3)], ids=str)
def test_a_copy_differs_only_in_its_address_and_then_in_its_values(
    layout: str, shape: tuple[int, ...], far: bool
) -> None:
    tensor, other = (LAYOUTS[layout](torch.randn(shape).bfloat16()) for _ in range(2))
    moved = relocate(tensor, Random(0), far=far)
    address = moved.data_ptr()
    assert torch.equal(moved, tensor)
    assert (moved.shape, moved.stride()) == (tensor.shape, tensor.stride())
    assert moved.dtype == tensor.dtype
    assert not tensor.numel() or address != tensor.data_ptr()
    overwrite(moved, other)
    assert torch.equal(moved, other)
    assert (moved.data_ptr(), moved.stride()) == (address, tensor.stride())


@pytest.mark.parametrize("far", [True, False])
def test_relocations_land_on_different_cache_lines_of_a_page_at_the_same_offset(far: bool) -> None:
    random, tensor = Random(3), torch.zeros(16)[1:]
    places = {relocate(tensor, random, far=far).data_ptr() % 4096 for _ in range(50)}
    assert len(places) > 10
    assert {place % 64 for place in places} == {4}


def test_on_a_gpu_a_large_copy_moves_by_up_to_two_mebibytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(memory._MOVES, "cpu", memory._MOVES["cuda"])
    random, large = Random(3), torch.zeros(1 << 20)
    copies = [relocate(large, random) for _ in range(20)]
    starts = [4 * copy.storage_offset() for copy in copies]
    assert max(starts) - min(starts) > 1 << 20
    assert {copy.data_ptr() % 512 for copy in copies} == {0}


@pytest.mark.parametrize(
    ("cache_bytes", "touched_bytes", "free_bytes", "copies"),
    [
        (40 * KIB, 5 * KIB, None, 20),
        (40 * KIB, 6 * KIB, None, 17),  # rounded up: 16 of them are not beyond the cache
        (40 * KIB, 0, None, 4096),
        (40 * KIB, 5 * KIB, 16 * 35 * KIB, 7),
        (40 * KIB, 5 * KIB, 0, 2),
    ],
)
def test_copies_are_two_and_a_half_times_the_cache_and_fit_into_memory(
    cache_bytes: int, touched_bytes: int, free_bytes: int | None, copies: int
) -> None:
    assert copies_beyond(cache_bytes, touched_bytes, free_bytes) == copies

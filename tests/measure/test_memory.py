"""The exact bytes and operators of known calls; the allocator stays out of the timings."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, replace

import pytest
import torch
from torch import Tensor

from harness.measure.devices import CpuDevice
from harness.measure.environment import compiler
from harness.measure.memory import Allocations, count_allocations, fault_in, use_steady_allocation
from harness.records import Allocation, Budget, Case, Direction, Measurement, Record, Status
from harness.run import case as module
from harness.run.case import CaseRunner
from implementations.welford import welford

X = torch.ones(4, 8)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")


def block(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def count(call: Callable[[], object]) -> Allocations:
    return count_allocations(call, "cpu")


def in_turn() -> Tensor:
    first = block(1000)
    del first
    return block(300)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: block(1), (1, 1, 1, 1, 1, 0)),
        (lambda: block(10_000_000), (10_000_000, 10_000_000, 1, 10_000_000, 1, 0)),
        (lambda: (block(1000), block(300)), (1300, 1300, 2, 1300, 2, 0)),
        (in_turn, (1000, 1300, 2, 300, 2, 0)),
        (lambda: (block(1000), None)[1], (1000, 1000, 1, 0, 1, 0)),
        (lambda: X.clone().relu_().neg_(), (128, 128, 1, 128, 3, 0)),
        (lambda: X.exp().sin(), (256, 256, 2, 128, 2, 0)),
        (lambda: X.t(), (0, 0, 0, 0, 1, 0)),
        (lambda: torch.nn.functional.layer_norm(X, (8,)), (160, 160, 3, 128, 1, 0)),
        (lambda: None, (0, 0, 0, 0, 0, 0)),
    ],
    ids=[
        *("one byte", "many bytes", "together", "in turn", "freed", "in place", "operators"),
        *("view", "operators within one of ATen", "nothing"),
    ],
)
def test_allocations_and_operators_are_counted_exactly(
    call: Callable[[], object], expected: tuple[int, ...]
) -> None:
    held = [block(50_000) for _ in range(3)]  # from before the call: not counted
    assert astuple(count(call)) == expected
    assert len(held) == 3


def test_memory_from_before_the_call_that_it_frees_is_not_counted() -> None:
    held = [block(50_000)]
    found = count(held.clear)
    assert (found.peak_bytes, found.total_bytes) == (0, 0)


def test_operators_of_an_implementation_are_counted_inside_its_own_operator() -> None:
    assert count(lambda: welford(X, (8,))).operators > 8  # a running mean: one step per column


def test_tensors_kept_for_the_backward_are_held() -> None:
    x = torch.ones(256, requires_grad=True)
    found = count(lambda: x.exp().sin())
    assert found.held_bytes == 2 * 256 * 4  # the result, and exp(x) for the gradient of sin


def test_operators_of_a_backward_are_counted_and_its_nodes_are_not() -> None:
    x = torch.ones(8, requires_grad=True)
    y = 2 * x

    def backward() -> object:
        return torch.autograd.grad(y, x, torch.ones(8), retain_graph=True)

    assert count(backward).operators == 2  # ones, mul


COUNT = """
import json, sys
from harness.records import Allocation, Budget, Case, Direction, Measurement
from harness.run.case import CaseRunner

runner = CaseRunner("", Allocation.DEFAULT)
found = {}
for direction in (Direction.FORWARD, Direction.BACKWARD):
    for name in ("native", "one_pass", "two_pass"):
        case = Case(implementation=name, shape=(64, 256), direction=direction)
        record = runner.run(case, [Measurement.MEMORY], Budget())
        memory = record.memory
        found[case.id] = [
            record.operators,
            memory.peak_extra_bytes, memory.allocated_bytes, memory.allocations,
            memory.saved_bytes, memory.minimum_bytes,
        ]
json.dump(found, sys.stdout)
"""


Y, ROWS, WIDTH = 64 * 256 * 4, 64 * 4, 256 * 4


def test_two_fresh_processes_count_the_same_to_the_byte() -> None:
    command = [sys.executable, "-c", COUNT]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)  # at the same time: importing torch takes longest
    ]
    answers = [process.communicate() for process in started]
    assert [stderr for _, stderr in answers] == ["", ""]  # the profiler prints nothing
    counted, other = (json.loads(stdout) for stdout, _ in answers)
    assert counted == other
    assert len(counted) == 6
    forward = counted["native/forward/64x256/float32/normal"]
    assert forward == [1, Y + 2 * ROWS, Y + 2 * ROWS, 3, None, Y]
    *_, saved, minimum = counted["native/backward/64x256/float32/normal"]
    assert saved == 2 * ROWS  # mean and rstd
    assert minimum == Y + 2 * WIDTH  # dx, dweight, dbias


@needs_compiler
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
    stats = iter([
        {
            "requested_bytes.all.current": 1000,
            "requested_bytes.all.allocated": 9000,
            "allocation.all.allocated": 7,
        },
        {
            "requested_bytes.all.current": 1300,
            "requested_bytes.all.peak": 1800,
            "requested_bytes.all.allocated": 9900,
            "allocation.all.allocated": 10,
        },
    ])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: next(stats))
    assert count_allocations(lambda: None, "cuda") == Allocations(
        peak_bytes=800,
        total_bytes=900,
        count=3,
        held_bytes=300,
        operators=0,
        operators_elsewhere=0,
    )


# === The system's memory management stays out of the timings


# a float32 tensor of 38 MB: above 32 MiB glibc always maps memory afresh; a longer call would not
# be warmed up on a busy machine. It is not verified, which would take most of the time
TIME_A_LARGE_CASE = """
import json, sys
from harness.measure.memory import use_steady_allocation
from harness.records import Allocation, Budget, Case, Direction, Measurement, Status
from harness.run import attempt
from harness.run.case import CaseRunner

attempt.judge = lambda outputs, case, *_: attempt.Judged(
    case=case, status=Status.OK, outputs=outputs
)
allocation = use_steady_allocation() if sys.argv[1] == "steady" else Allocation.DEFAULT
runner = CaseRunner("", allocation)
case = Case(implementation="native", shape=(2304, 4096))
budget = Budget(limit_s=1.0, min_epochs=1, max_epochs=1)
latency = runner.run(case, [Measurement.LATENCY], budget).latency
json.dump([latency.allocation, latency.minor_faults_ratio], sys.stdout)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_only_steady_allocation_takes_less_than_one_page_fault_per_call() -> None:
    faults = {}
    for allocation in (Allocation.DEFAULT, Allocation.STEADY):
        done = subprocess.run(  # a fresh process: the setting cannot be undone
            [sys.executable, "-c", TIME_A_LARGE_CASE, allocation],
            capture_output=True,
            text=True,
            check=True,
        )
        found, faults[allocation] = json.loads(done.stdout)
        assert found == allocation
    assert faults[Allocation.DEFAULT] > 100  # pages of up to 64 KiB
    assert faults[Allocation.STEADY] < 1


CASE = Case(implementation="native", shape=(16, 32))
HELD_BYTES = 8 * 16 * 32 * 4  # copies of x, as many as a forward needs at most


@pytest.fixture
def faulted_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the bytes to fault in, in order, instead."""
    asked: list[int] = []
    monkeypatch.setattr(module, "fault_in", asked.append)
    return asked


def run(runner: CaseRunner, case: Case, *asked: Measurement) -> Record:
    return runner.run(case, asked, Budget(limit_s=0.0, min_epochs=1, max_epochs=1))


def test_memory_is_faulted_in_once_before_the_timing(faulted_in: list[int]) -> None:
    runner = CaseRunner("", Allocation.STEADY)
    for measurement in (Measurement.LATENCY, Measurement.COLD):
        run(runner, CASE, measurement)
    run(runner, replace(CASE, shape=(8, 32)), Measurement.LATENCY)
    assert faulted_in == [HELD_BYTES]
    run(runner, replace(CASE, shape=(32, 32)), Measurement.LATENCY)
    assert faulted_in == [HELD_BYTES, 2 * HELD_BYTES]
    run(runner, replace(CASE, direction=Direction.BACKWARD), Measurement.LATENCY)
    run(runner, replace(CASE, shape=(32, 32), direction=Direction.BACKWARD), Measurement.LATENCY)
    assert faulted_in == [HELD_BYTES, 2 * HELD_BYTES, 4 * HELD_BYTES]


@pytest.mark.parametrize(
    ("allocation", "asked"),
    [
        (Allocation.DEFAULT, Measurement.LATENCY),
        (Allocation.STEADY, Measurement.ERRORS),
        (Allocation.STEADY, Measurement.MEMORY),
    ],
)
def test_nothing_is_faulted_in_without_steady_allocation_or_timing(
    faulted_in: list[int], allocation: Allocation, asked: Measurement
) -> None:
    run(CaseRunner("", allocation), CASE, asked)
    assert faulted_in == []


@pytest.mark.usefixtures("faulted_in")
def test_memory_that_the_allocator_holds_counts_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = CaseRunner("", Allocation.STEADY)
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 1 << 30)
    run(runner, CASE, Measurement.LATENCY)
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 4 * 1024)  # the rest of what it needs
    assert run(runner, CASE).status is Status.OK
    bigger = run(runner, replace(CASE, shape=(32, 32)))
    assert bigger.status is Status.OUT_OF_MEMORY


def test_another_libc_keeps_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert use_steady_allocation() is Allocation.DEFAULT


def test_fault_in_writes_to_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []

    def full(size: int, *, dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.full((size,), 7, dtype=dtype))
        return made[-1]

    monkeypatch.setattr(torch, "empty", full)
    fault_in(1000)
    (written,) = made
    assert written.tolist() == [0] * 1000

"""Memory: exact bytes of known calls, and the same count in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.measure.environment import compiler
from harness.measure.memory import Allocations, count_allocations
from implementations.welford import welford

KIB = 1024
needs_compiler = pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")


def block(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def count(call: Callable[[], object]) -> Allocations:
    return count_allocations(call, "cpu")


@pytest.mark.parametrize("size", [1, 64, 1000, 64 * KIB, 10_000_000])
def test_one_tensor_is_counted_to_the_byte(size: int) -> None:
    assert count(lambda: block(size)) == Allocations(
        peak_bytes=size, total_bytes=size, count=1, held_bytes=size, operators=1
    )


def test_a_tensor_of_no_elements_takes_no_bytes() -> None:
    found = count(lambda: torch.empty(0, 5))
    assert (found.peak_bytes, found.total_bytes, found.held_bytes) == (0, 0, 0)


def test_two_that_live_at_once_make_the_peak_together() -> None:
    def both() -> tuple[Tensor, Tensor]:
        return block(1000), block(300)

    assert count(both) == Allocations(
        peak_bytes=1300, total_bytes=1300, count=2, held_bytes=1300, operators=2
    )


def test_two_that_live_one_after_the_other_do_not() -> None:
    def in_turn() -> Tensor:
        first = block(1000)
        del first
        return block(300)

    assert count(in_turn) == Allocations(
        peak_bytes=1000, total_bytes=1300, count=2, held_bytes=300, operators=2
    )


def test_what_is_freed_inside_the_call_is_not_held() -> None:
    def none() -> None:
        block(1000)

    assert count(none) == Allocations(
        peak_bytes=1000, total_bytes=1000, count=1, held_bytes=0, operators=1
    )


def test_what_the_result_keeps_alive_is_held() -> None:
    x = torch.ones(256, requires_grad=True)
    found = count(lambda: x.exp().sin())
    assert found.held_bytes == 2 * 256 * 4  # the result, and exp(x) for the gradient of sin


def test_work_in_place_takes_nothing() -> None:
    x = torch.ones(1000)
    assert count(lambda: x.relu_().neg_()) == Allocations(
        peak_bytes=0, total_bytes=0, count=0, held_bytes=0, operators=2
    )


@pytest.mark.parametrize(
    ("call", "operators"),
    [
        (lambda x: torch.nn.functional.layer_norm(x, (8,)), 1),  # it calls others, its own affair
        (lambda x: (x - x.mean(-1, keepdim=True)).square(), 3),
        (lambda x: None, 0),
    ],
)
def test_operators_are_those_that_the_call_runs(
    call: Callable[[Tensor], object], operators: int
) -> None:
    x = torch.ones(4, 8)
    assert count(lambda: call(x)).operators == operators


def test_operators_inside_an_implementations_own_are_counted() -> None:
    x = torch.ones(4, 8)
    assert count(lambda: welford(x, (8,))).operators > 8  # a running mean: one step a column


def test_operators_of_a_backward_are_counted_and_its_nodes_are_not() -> None:
    x = torch.ones(8, requires_grad=True)
    y = 2 * x
    assert count(lambda: torch.autograd.grad(y, x, torch.ones(8))).operators == 2  # ones, mul


def test_a_view_takes_nothing() -> None:
    x = torch.ones(10, 10)
    assert count(lambda: x.t()[2:]).total_bytes == 0


def test_what_was_there_before_is_not_counted() -> None:
    held = [block(50_000) for _ in range(3)]
    assert count(lambda: block(10)).peak_bytes == 10
    assert len(held) == 3


def test_what_is_freed_inside_but_was_there_before_does_not_make_a_negative_peak() -> None:
    held = [block(50_000)]
    found = count(held.clear)
    assert found.peak_bytes == 0
    assert found.total_bytes == 0


def test_memory_inside_an_operator_is_seen() -> None:
    x = torch.randn(64, 256)
    # layer_norm returns y, and keeps mean and rstd for itself until it returns
    found = count(lambda: torch.nn.functional.layer_norm(x, (256,)))
    assert found.held_bytes == x.numel() * 4
    assert found.peak_bytes == x.numel() * 4 + 2 * 64 * 4


def test_counting_twice_gives_the_same() -> None:
    x = torch.randn(64, 256)

    def call() -> Tensor:
        return torch.softmax(x, -1) + 1

    assert count(call) == count(call)


def test_a_call_that_fails_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        count(lambda: 1 / 0)


COUNT = """
import json, sys
from harness.records import Allocation, Budget, Case, Direction, Measurement, Mode
from harness.run.case import CaseRunner

runner = CaseRunner("", Allocation.DEFAULT)
found = {}
runs = [("native", Mode.EAGER), ("one_pass", Mode.EAGER), ("two_pass", Mode.EAGER)]
if sys.argv[1] == "compiled":
    runs.append(("two_pass", Mode.COMPILED))
for direction in (Direction.FORWARD, Direction.BACKWARD):
    for name, mode in runs:
        case = Case(implementation=name, shape=(64, 256), direction=direction, mode=mode)
        record = runner.run(case, [Measurement.MEMORY], Budget())
        memory = record.memory
        found[case.id] = [
            record.operators,
            memory.peak_extra_bytes, memory.allocated_bytes, memory.allocations,
            memory.saved_bytes, memory.minimum_bytes,
        ]
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def counted() -> dict[str, list[int | None]]:
    """Count in two fresh processes, which have to agree to the byte and print nothing else."""
    command = [sys.executable, "-c", COUNT, "compiled" if compiler() else "eager"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)  # at the same time: importing torch takes longest
    ]
    answers = [each.communicate() for each in started]
    assert [stderr for _, stderr in answers] == ["", ""]  # nor does the profiler
    one, other = (json.loads(stdout) for stdout, _ in answers)
    assert one == other
    return dict(one)


Y, ROWS, WIDTH = 64 * 256 * 4, 64 * 4, 256 * 4


def test_two_fresh_processes_count_the_same_to_the_byte(
    counted: dict[str, list[int | None]],
) -> None:
    assert len(counted) == (8 if compiler() else 6)
    forward = counted["native/forward/64x256/float32/normal"]
    assert forward == [1, Y + 2 * ROWS, Y + 2 * ROWS, 3, None, Y]
    *_, saved, minimum = counted["native/backward/64x256/float32/normal"]
    assert saved == 2 * ROWS  # mean and rstd
    assert minimum == Y + 2 * WIDTH  # dx, dweight, dbias


@needs_compiler
def test_compiled_code_has_no_second_array_of_the_size_of_x(
    counted: dict[str, list[int | None]],
) -> None:
    _, peak, *_, minimum = counted["two_pass/forward/64x256/float32/normal/compiled"]
    assert minimum == Y
    assert peak is not None
    assert Y <= peak < 2 * Y


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_memory_inside_compiled_code_is_seen() -> None:
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


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_counting_leaves_compiled_code_as_it_was() -> None:
    def product(x: Tensor) -> Tensor:
        return x.exp() * x.sin()

    runs: list[None] = []
    graphs: list[None] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(None)

        def run(*arguments: object) -> object:
            runs.append(None)
            return graph(*arguments)

        return run

    x = torch.randn(64, 256)
    torch.compiler.reset()
    compiled = torch.compile(product, dynamic=False, backend=backend)
    compiled(x)
    first = count(lambda: compiled(x))
    compiled(x)
    assert count(lambda: compiled(x)) == first
    # each call ran what was compiled once: none fell back to Python, none was compiled again
    assert (len(graphs), len(runs)) == (1, 4)


def test_on_a_gpu_bytes_are_counted_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
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
        peak_bytes=800, total_bytes=900, count=3, held_bytes=300, operators=0
    )


def test_the_profiler_is_told_to_keep_quiet_before_its_first_use() -> None:
    assert os.environ["KINETO_LOG_LEVEL"]

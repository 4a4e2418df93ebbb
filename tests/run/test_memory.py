"""Memory that torch does not see is never counted as none; equal inputs are drawn once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, good
from torch import Tensor

from harness.cases import make_inputs
from harness.records import Allocation, Case, Direction, Measurement, Record, Status, WarningKind
from harness.report.run import run_tables
from harness.run import attempt
from harness.run.case import CaseRunner
from implementations.torch_private import profiling_of_all_threads

Y_BYTES, PARAMETER_BYTES = 16 * 32 * 4, 32 * 4  # of CASE
POOL = ThreadPoolExecutor(1)
sees_all_threads = pytest.mark.skipif(
    not profiling_of_all_threads(), reason="this torch cannot record the operators of all threads"
)


def count_memory(runner: CaseRunner, case: Any) -> Record:
    record = runner.run(case, (Measurement.MEMORY,), ONE_EPOCH)
    assert record.status is Status.OK
    return record


def in_numpy(*arguments: Any) -> Tensor:
    return torch.from_numpy(good(*arguments).numpy().copy())


def in_own_memory(*arguments: Any) -> Tensor:
    y = good(*arguments)
    memory = (ctypes.c_float * y.numel())()
    return torch.frombuffer(memory, dtype=torch.float32).reshape(y.shape).copy_(y)


def in_the_same_memory_every_time() -> Callable[..., Tensor]:
    kept: list[Tensor] = []

    def function(*arguments: Any) -> Tensor:
        y = good(*arguments)
        kept[:] = kept or [y]
        return kept[0].copy_(y)

    return function


def on_a_new_thread(*arguments: Any) -> Tensor:
    found: list[Tensor] = []
    thread = Thread(target=lambda: found.append(good(*arguments)))
    thread.start()
    thread.join()
    return found[0]


def partly_in_a_pool(*arguments: Any) -> Tensor:
    """Computes on a thread that exists already, and returns memory of the caller's thread."""
    return POOL.submit(good, *arguments).result().clone()


class _GradientsInNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return good(x, x.shape[-1:], weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            y = good(leaves[0], dy.shape[-1:], *leaves[1:])
        gradients = torch.autograd.grad(y, leaves, dy)
        return tuple(torch.from_numpy(gradient.numpy().copy()) for gradient in gradients)


def gradients_in_numpy(x: Tensor, shape: Any, *rest: Any) -> Tensor:
    y: Tensor = _GradientsInNumpy.apply(x, *rest[:2])
    return y


class _ForwardInNumpy(_GradientsInNumpy):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _GradientsInNumpy.forward(ctx, x, weight, bias)
        return torch.from_numpy(y.numpy().copy())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(gradient.clone() for gradient in _GradientsInNumpy.backward(ctx, dy))


def forward_in_numpy(x: Tensor, shape: Any, *rest: Any) -> Tensor:
    y: Tensor = _ForwardInNumpy.apply(x, *rest[:2])
    return y


@pytest.mark.parametrize(
    ("function", "direction"),
    [
        (in_numpy, Direction.FORWARD),
        (in_own_memory, Direction.FORWARD),
        (in_the_same_memory_every_time(), Direction.FORWARD),
        (gradients_in_numpy, Direction.BACKWARD),
        (gradients_in_numpy, Direction.FORWARD_BACKWARD),
        (forward_in_numpy, Direction.BACKWARD),
    ],
)
def test_results_that_torch_did_not_allocate_are_not_counted(
    runner: CaseRunner, implementation: Known, function: Any, direction: Direction
) -> None:
    record = count_memory(runner, implementation(function, replace(CASE, direction=direction)))
    assert (record.memory, record.operators) == (None, None)
    (warning,) = record.warnings
    assert warning.kind is WarningKind.MEMORY_NOT_COUNTED
    assert "of which torch allocated 0 B" in warning.advice
    assert warning.advice.startswith("in the forward ") is (function is forward_in_numpy)


@pytest.mark.parametrize(
    "function",
    [on_a_new_thread, pytest.param(partly_in_a_pool, marks=sees_all_threads)],
)
def test_work_on_other_python_threads_is_not_counted(
    runner: CaseRunner, implementation: Known, function: Any
) -> None:
    record = count_memory(runner, implementation(function))
    assert (record.memory, record.operators) == (None, None)
    if profiling_of_all_threads():
        assert "1 operator on other threads" in str(record.memory_not_counted)
    (table,) = run_tables([record])
    assert "not counted" in {cell.text for cell in table.rows[0]}


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("name", ["native", "two_pass"])
def test_what_torch_allocates_is_counted(
    runner: CaseRunner, name: str, layout: str, direction: Direction
) -> None:
    case = replace(CASE, implementation=name, layout=layout, direction=direction)
    record = count_memory(runner, case)
    assert record.warnings == ()
    assert record.memory is not None
    y_bytes = 0 if direction is Direction.BACKWARD else Y_BYTES
    gradients = 0 if direction is Direction.FORWARD else Y_BYTES + 2 * PARAMETER_BYTES
    assert record.memory.minimum_bytes == y_bytes + gradients
    assert record.memory.peak_extra_bytes >= record.memory.minimum_bytes


@pytest.mark.parametrize("affine", ["both", "weight", "bias", "none"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 32), (32,), (1, 32, 3), (0, 5), (5, 0)])
@pytest.mark.parametrize("name", ["native", "two_pass"])  # two_pass: dbias of one row may be dy
def test_memory_of_few_rows_is_counted(
    runner: CaseRunner, name: str, shape: tuple[int, ...], affine: str
) -> None:
    dims = max(len(shape) - 1, 1)
    case = replace(BACKWARD, implementation=name, shape=shape, affine=affine, normalized_dims=dims)
    record = count_memory(runner, case)
    assert (record.memory_not_counted, record.memory is None) == (None, False)


# === Equal inputs are drawn once


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the cases whose inputs were drawn."""
    ids: list[str] = []
    draw = make_inputs

    def counting(case: Case) -> Any:
        ids.append(case.id)
        return draw(case)

    monkeypatch.setattr(attempt, "make_inputs", counting)
    return ids


@pytest.mark.parametrize(
    ("first", "change"),
    [
        (CASE, {"implementation": "two_pass"}),
        (CASE, {"threads": 2}),
        (BACKWARD, {"direction": Direction.FORWARD_BACKWARD}),
    ],
    ids=["implementation", "threads", "direction"],
)
def test_cases_with_equal_inputs_share_them(
    runner: CaseRunner, drawn: list[str], first: Case, change: dict[str, Any]
) -> None:
    runner.run(first, ERRORS, ONE_EPOCH)
    runner.run(replace(first, **change), ERRORS, ONE_EPOCH)
    torch.set_num_threads(1)
    assert drawn == [first.id]


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 32)},
        {"dtype": "bfloat16"},
        {"param_dtype": "float64"},
        {"distribution": "constant"},
        {"layout": "transposed"},
        {"affine": "none"},
        {"seed": 1},
        {"eps": 1e-3},
        {"direction": Direction.BACKWARD},
        {"normalized_dims": 2},
    ],
    ids=str,
)
def test_a_case_with_other_inputs_draws_its_own(
    runner: CaseRunner, drawn: list[str], change: dict[str, Any]
) -> None:
    other = replace(CASE, **change)
    runner.run(CASE, ERRORS, ONE_EPOCH)
    record = runner.run(other, ERRORS, ONE_EPOCH)
    assert drawn == [CASE.id, other.id]
    assert record == replace(
        CaseRunner("here", Allocation.DEFAULT).run(other, ERRORS, ONE_EPOCH), cost=record.cost
    )


@pytest.mark.parametrize(
    ("fails_in_call", "raises", "measurement", "status"),
    [
        (1, False, Measurement.ERRORS, Status.WRONG),
        (1, True, Measurement.ERRORS, Status.ERROR),
        (2, False, Measurement.MEMORY, Status.OK),  # a copy of the inputs was modified
    ],
    ids=["at once", "and raises", "later"],
)
def test_an_implementation_that_modifies_its_inputs_does_not_affect_the_next_case(
    runner: CaseRunner,
    implementation: Known,
    fails_in_call: int,
    raises: bool,
    measurement: Measurement,
    status: Status,
) -> None:
    calls: list[None] = []

    def modifies(x: Tensor, *rest: Any) -> Tensor:
        y = good(x, *rest)
        calls.append(None)
        if len(calls) >= fails_in_call:
            x.fill_(1e9)
            if raises:
                raise ValueError("after the change")
        return y

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert runner.run(implementation(modifies), (measurement,), ONE_EPOCH).status is status
    assert runner.run(CASE, ERRORS, ONE_EPOCH).errors == alone.errors

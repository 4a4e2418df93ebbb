"""Memory that torch does not see is never counted as none; equal inputs are drawn once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ONE_EPOCH, Known, good
from torch import Tensor

from harness.records import Direction, Measurement, Record, Status, WarningKind
from harness.run import CaseRunner, ExactResults

Y_BYTES, PARAMETER_BYTES = 16 * 32 * 4, 32 * 4  # of CASE


def count_memory(runner: CaseRunner, case: Any) -> Record:
    record = runner.run(case, (Measurement.MEMORY,), ONE_EPOCH)
    assert record.status is Status.OK
    return record


def in_numpy(tensor: Tensor) -> Tensor:
    return torch.from_numpy(tensor.numpy().copy())


def gradient_in_numpy(x: Tensor, *rest: Any) -> Tensor:
    x = x.view_as(x)
    x.register_hook(in_numpy)
    return good(x, *rest)


def on_a_new_thread(*arguments: Any) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(good, *arguments).result()


@pytest.mark.parametrize(
    ("function", "direction", "why"),
    [
        (lambda *a: in_numpy(good(*a)), Direction.FORWARD, "of which torch allocated 0 B"),
        (gradient_in_numpy, Direction.BACKWARD, "of which torch allocated 256 B"),
        (on_a_new_thread, Direction.FORWARD, ""),
    ],
)
def test_work_in_memory_or_on_threads_that_torch_does_not_see_is_not_counted(
    runner: CaseRunner, implementation: Known, function: Any, direction: Direction, why: str
) -> None:
    record = count_memory(runner, implementation(function, replace(CASE, direction=direction)))
    assert (record.memory, record.operators) == (None, None)
    (warning,) = record.warnings
    assert warning.kind is WarningKind.MEMORY_NOT_COUNTED
    assert why in warning.advice


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("name", ["native", "two_pass"])
def test_what_torch_allocates_is_counted(
    runner: CaseRunner, name: str, direction: Direction
) -> None:
    record = count_memory(runner, replace(CASE, implementation=name, direction=direction))
    assert record.warnings == ()
    assert record.memory is not None
    y_bytes = 0 if direction is Direction.BACKWARD else Y_BYTES
    gradients = 0 if direction is Direction.FORWARD else Y_BYTES + 2 * PARAMETER_BYTES
    assert record.memory.minimum_bytes == y_bytes + gradients
    assert record.memory.peak_extra_bytes >= record.memory.minimum_bytes
    assert (record.memory.saved_bytes is None) is (direction is Direction.FORWARD)


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


# --- equal inputs are drawn once ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        ({"implementation": "two_pass", "threads": 2}, True),
        ({"direction": Direction.FORWARD_BACKWARD}, True),
        *(({"shape": (4, 32)}, False), ({"dtype": "bfloat16"}, False), ({"seed": 1}, False)),
        *(({"distribution": "constant"}, False), ({"layout": "transposed"}, False)),
        *(({"affine": "none"}, False), ({"eps": 1e-3}, False), ({"normalized_dims": 2}, False)),
        *(({"param_dtype": "float64"}, False), ({"direction": Direction.FORWARD}, False)),
    ],
)
def test_cases_with_equal_inputs_and_no_others_share_exact_results(
    change: dict[str, Any], is_equal: bool
) -> None:
    exact = ExactResults()
    assert (exact(BACKWARD) is exact(replace(BACKWARD, **change))) is is_equal

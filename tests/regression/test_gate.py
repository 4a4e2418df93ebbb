"""Regressions planted in an implementation, run for real, are found; experiments/gates has more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.compared_runs import (
    change,
)
from torch import Tensor

import implementations
from harness.mutants import named
from harness.records import Allocation, Budget, Case, Direction, Measurement, Record
from harness.regression import ChangeKind
from harness.run.case import CaseRunner
from implementations.contract import LayerNormFunction


def extra_copy_of_x(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the right result, after a copy of x that is not needed."""
    return implementations.two_pass(x.clone(), normalized_shape, weight, bias, eps)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_planted_regressions_are_always_found(
    monkeypatch: pytest.MonkeyPatch, dtype: str, direction: Direction
) -> None:
    case = Case(
        implementation="two_pass",
        shape=(8, 1024),
        dtype=dtype,
        param_dtype=dtype,
        direction=direction,
    )

    def measured(function: LayerNormFunction) -> Record:
        changed = replace(implementations.two_pass, function=function)
        monkeypatch.setattr(implementations, "ALL", (implementations.native, changed))
        runner = CaseRunner("here", Allocation.DEFAULT)
        return runner.run(case, (Measurement.ERRORS, Measurement.MEMORY), Budget())

    before = measured(implementations.two_pass.function)
    again = measured(implementations.two_pass.function)
    assert change(before, again).kind is ChangeKind.UNCHANGED
    planted = {
        named("statistics_in_bfloat16").function: {"status", "error"},
        named("unbiased_variance").function: {"status", "error"},
        extra_copy_of_x: {"peak memory", "allocated memory"},
    }
    if direction is Direction.BACKWARD:  # it does not measure the forward
        del planted[extra_copy_of_x]
    for worse, metrics in planted.items():
        found = change(before, measured(worse))
        assert found.kind is ChangeKind.REGRESSED
        assert found.metric in metrics

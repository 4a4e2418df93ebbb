"""How often the gate errs: simulated processes for latency, planted mistakes for the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from factories.compared_runs import (
    change,
    compared,
    make_cases,
    make_latency,
    make_record,
    results_of,
)
from torch import Tensor

import implementations
from harness.mutants import named
from harness.records import Allocation, Budget, Case, Direction, Measurement, Record
from harness.regression import BASELINE_PROCESSES, CONFIRMING_PROCESSES, ChangeKind, Comparison
from harness.run.case import CaseRunner
from harness.store import Results
from implementations.contract import LayerNormFunction

CASES = make_cases(36)
SLOWER = CASES[7]
UNTIMED = {case: make_record(case) for case in CASES}


def checked(seed: int, cases: int, spreads: tuple[float, float], slower: float) -> Comparison:
    """Record a baseline, run once and confirm the suspects, on a shared machine.

    Processes spread with tails heavier than the normal distribution's: Student's t, 5 degrees.
    """
    random = np.random.default_rng(seed)
    spread_of = dict(zip(CASES, np.random.default_rng(0).uniform(*spreads, 36), strict=True))

    def ratios(case: Case, processes: int, factor: float) -> tuple[float, ...]:
        drawn = random.standard_t(5, processes) * (3 / 5) ** 0.5  # with standard deviation 1
        return tuple(np.exp(drawn * spread_of[case]) * (factor if case is SLOWER else 1.0))

    def run(processes: int, factor: float) -> Results:
        timed = {case: make_latency(ratios(case, processes, factor)) for case in CASES[:cases]}
        return results_of(*(replace(UNTIMED[case], latency=timed[case]) for case in timed))

    return compared(
        run(BASELINE_PROCESSES, 1.0),
        run(1, slower),
        confirm=lambda suspects: {
            shift.case.id: ratios(shift.case, CONFIRMING_PROCESSES, slower) for shift in suspects
        },
    )


@pytest.mark.parametrize(
    ("runs", "cases", "spreads", "slower", "failures", "judged"),
    [
        (12, 36, (0.006, 0.03), 1.0, 0, 0.8),  # a gate that judges nothing would fail nothing
        (40, 12, (0.02, 0.02), 1.10, 36, 0.5),
        (40, 12, (0.006, 0.006), 1.05, 36, 0.5),
    ],
    ids=["none is slower", "10 % at a spread of 2 %", "5 % at a spread of 0.6 %"],
)
def test_a_slower_case_is_found_in_nine_of_ten_runs_and_no_other_fails(
    runs: int, cases: int, spreads: tuple[float, float], slower: float, failures: int, judged: float
) -> None:
    found = [checked(seed, cases, spreads, slower) for seed in range(runs)]
    failed = [change.case for one in found for change in one.changes if change.kind.is_failure]
    assert failures <= len(failed) <= (runs if failures else 0)
    assert set(failed) <= {SLOWER}
    unchanged = sum(comparison.counts.get(ChangeKind.UNCHANGED, 0) for comparison in found)
    assert unchanged > judged * runs * cases


# --- planted regressions, run for real -----------------------------------------------------------


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

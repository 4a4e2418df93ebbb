"""How often the gate errs: simulated processes for latency, real results for errors and memory.

Simulated processes of a case spread by 0.6 to 3 %, as was recorded on a shared machine, with tails
heavier than the normal distribution's (Student's t, 5 degrees of freedom). No time is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from compared_runs import change, compared, make_cases, make_latency, make_record, results_of
from torch import Tensor

import implementations
from harness.records import Allocation, Budget, Case, Direction, Measurement, Record
from harness.regression.changes import ChangeKind, Comparison, Metric
from harness.regression.latency_test import BASELINE_PROCESSES, CONFIRMING_PROCESSES
from harness.run.case import CaseRunner
from harness.verify.mutants import precision, semantics
from implementations.contract import Implementation, LayerNormFunction

CASES = make_cases(36)
UNTIMED = {case: make_record(case) for case in CASES}


class Machine:
    """Draws what processes on a shared machine find."""

    def __init__(self, seed: int, spread: float | None = None, slower: float = 1.0) -> None:
        self._random = np.random.default_rng(seed)
        drawn = np.random.default_rng(0).uniform(0.006, 0.03, len(CASES))
        self._spreads = dict(zip(CASES, drawn if spread is None else [spread] * 36, strict=True))
        self.slower = {CASES[7]: slower}

    def ratios(self, case: Case, processes: int, *, is_head: bool) -> tuple[float, ...]:
        spread = self._spreads[case]
        logs = self._random.standard_t(5, processes) * spread * (3 / 5) ** 0.5  # its own spread: 1
        return tuple(np.exp(logs) * (self.slower.get(case, 1.0) if is_head else 1.0))

    def check(self) -> Comparison:
        """Record a baseline, run once, and confirm what is suspected."""
        return compared(
            results_of(*(self._record(case, BASELINE_PROCESSES, is_head=False) for case in CASES)),
            results_of(*(self._record(case, 1, is_head=True) for case in CASES)),
            confirm=lambda cases: {
                each.id: self.ratios(each, CONFIRMING_PROCESSES, is_head=True) for each in cases
            },
        )

    def _record(self, case: Case, processes: int, *, is_head: bool) -> Record:
        latency = make_latency(self.ratios(case, processes, is_head=is_head))
        return replace(UNTIMED[case], latency=latency)


def test_forty_unchanged_runs_of_36_cases_fail_none() -> None:
    found = [Machine(seed).check() for seed in range(40)]
    assert [each for each in found if each.failed] == []
    judged = sum(each.counts.get(ChangeKind.UNCHANGED, 0) for each in found)
    assert judged > 0.8 * 40 * 36  # the gate is not silent because it looks at nothing


def test_ten_percent_in_one_case_that_spreads_by_two_is_found_in_ninety_of_a_hundred() -> None:
    found = [Machine(seed, spread=0.02, slower=1.10).check() for seed in range(100)]
    slower = [
        [each.case for each in one.changes if each.kind is ChangeKind.SLOWER] for one in found
    ]
    assert sum(each == [CASES[7]] for each in slower) >= 90
    assert all(set(each) <= {CASES[7]} for each in slower)


def test_five_percent_in_a_steady_case_is_found_in_ninety_of_a_hundred() -> None:
    found = [Machine(seed, spread=0.006, slower=1.05).check() for seed in range(100)]
    assert sum(each.failed for each in found) >= 90


# --- planted regressions, run for real -----------------------------------------------------------

MEASURED = (Measurement.ERRORS, Measurement.MEMORY)


def extra_copy_of_x(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The right answer, after a copy that nobody needs."""
    return implementations.two_pass(x.clone(), normalized_shape, weight, bias, eps)


@pytest.fixture
def measure(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Case, LayerNormFunction], Record]]:
    """Run a case with another function behind the name of two_pass."""

    def run(case: Case, function: LayerNormFunction) -> Record:
        changed: Implementation = replace(implementations.two_pass, function=function)
        with monkeypatch.context() as patch:
            patch.setattr(implementations, "ALL", (implementations.native, changed))
            runner = CaseRunner("here", Allocation.DEFAULT)
            return runner.run(case, MEASURED, Budget())

    return run


GRID = [
    Case(implementation="two_pass", shape=shape, dtype=dtype, param_dtype=dtype, direction=way)
    for shape in ((8, 1024), (64, 768), (32, 128))
    for dtype in ("float32", "bfloat16", "float16")
    for way in Direction
]


@pytest.mark.parametrize("case", GRID, ids=lambda case: case.id)
def test_planted_regressions_are_always_found(
    measure: Callable[[Case, LayerNormFunction], Record], case: Case
) -> None:
    before = measure(case, implementations.two_pass.function)
    assert (
        change(before, measure(case, implementations.two_pass.function)).kind
        is ChangeKind.UNCHANGED
    )
    for worse in (precision.statistics_in_bfloat16, semantics.unbiased_variance):
        found = change(before, measure(case, worse.function))
        assert (found.kind, found.metric) in {
            (ChangeKind.REGRESSED, Metric.STATUS),
            (ChangeKind.REGRESSED, Metric.ERROR),
        }
    if case.direction is not Direction.BACKWARD:  # that runs no forward, where the copy is made
        found = change(before, measure(case, extra_copy_of_x))
        assert found.kind is ChangeKind.REGRESSED
        assert found.metric in {Metric.PEAK_MEMORY, Metric.ALLOCATED_MEMORY}

"""How often the gate errs: simulated processes for latency, real results for errors and memory.

Simulated processes of a case spread by 0.6 to 3 %, as recorded on a shared machine, with heavier
tails than the normal distribution (Student's t, 5 degrees of freedom). Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from implementations.contract import Implementation, LayerNormFunction

CASES = make_cases(36)
SLOWER = CASES[7]
UNTIMED = {case: make_record(case) for case in CASES}


class Machine:
    """Draws the ratios that processes on a shared machine find."""

    def __init__(
        self, seed: int, cases: int = 36, spread: float | None = None, slower: float = 1.0
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._cases = CASES[:cases]
        drawn = np.random.default_rng(0).uniform(0.006, 0.03, cases)
        spreads = drawn if spread is None else [spread] * cases
        self._spreads = dict(zip(self._cases, spreads, strict=True))
        self._slower = {SLOWER: slower}

    def ratios(self, case: Case, processes: int, *, is_head: bool) -> tuple[float, ...]:
        drawn = self._random.standard_t(5, processes) * (3 / 5) ** 0.5  # with standard deviation 1
        factor = self._slower.get(case, 1.0) if is_head else 1.0
        return tuple(np.exp(drawn * self._spreads[case]) * factor)

    def check(self) -> Comparison:
        """Record a baseline, run once, and confirm the suspects."""
        return compared(
            self._run(BASELINE_PROCESSES, is_head=False),
            self._run(1, is_head=True),
            confirm=lambda suspects: {
                shift.case.id: self.ratios(shift.case, CONFIRMING_PROCESSES, is_head=True)
                for shift in suspects
            },
        )

    def _run(self, processes: int, *, is_head: bool) -> Results:
        return results_of(
            *(
                replace(
                    UNTIMED[case],
                    latency=make_latency(self.ratios(case, processes, is_head=is_head)),
                )
                for case in self._cases
            )
        )


def test_forty_unchanged_runs_of_36_cases_pass() -> None:
    comparisons = [Machine(seed).check() for seed in range(40)]
    assert [comparison for comparison in comparisons if comparison.failed] == []
    judged = sum(comparison.counts.get(ChangeKind.UNCHANGED, 0) for comparison in comparisons)
    assert judged > 0.8 * 40 * 36  # a gate that judges nothing would fail nothing either


@pytest.mark.parametrize(("spread", "slower"), [(0.02, 1.10), (0.006, 1.05)])
def test_a_slower_case_is_found_in_ninety_of_a_hundred_and_no_other_fails(
    spread: float, slower: float
) -> None:
    failures = [
        [change.case for change in comparison.changes if change.kind is ChangeKind.SLOWER]
        for comparison in (Machine(seed, 12, spread, slower).check() for seed in range(100))
    ]
    assert sum(cases == [SLOWER] for cases in failures) >= 90
    assert all(set(cases) <= {SLOWER} for cases in failures)


# --- planted regressions, run for real -----------------------------------------------------------

MEASURED = (Measurement.ERRORS, Measurement.MEMORY)


def extra_copy_of_x(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the right result, after a copy of x that is not needed."""
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
    for shape in ((8, 1024), (32, 128))
    for dtype in ("float32", "bfloat16", "float16")
    for way in Direction
]


@pytest.mark.parametrize("case", GRID, ids=lambda case: case.id)
def test_planted_regressions_are_always_found(
    measure: Callable[[Case, LayerNormFunction], Record], case: Case
) -> None:
    before = measure(case, implementations.two_pass.function)
    again = measure(case, implementations.two_pass.function)
    assert change(before, again).kind is ChangeKind.UNCHANGED
    for worse in (named("statistics_in_bfloat16"), named("unbiased_variance")):
        found = change(before, measure(case, worse.function))
        assert (found.kind, found.metric) in {
            (ChangeKind.REGRESSED, "status"),
            (ChangeKind.REGRESSED, "error"),
        }
    if (
        case.direction is not Direction.BACKWARD
    ):  # a case of the backward alone does not measure the forward
        found = change(before, measure(case, extra_copy_of_x))
        assert found.kind is ChangeKind.REGRESSED
        assert found.metric in {"peak memory", "allocated memory"}

"""Which eligible candidate is chosen: for each rule a case that it alone decides."""

from dataclasses import replace
from math import inf, log, nan

import numpy as np
import pytest
from factories.choice_records import choice_among, chosen, ran, vacuous

from harness.measure.sample_statistics import median_estimate
from harness.records import Estimate, Record
from harness.selection import Candidate, Decider, rank

NATIVE = ran("native", 1.0)
QUICK = ran("quick", 1.0, interval=(0.95, 1.05), error_ulp=3.0)
LONG = (4096, 4096)
"""A shape whose calls take more than a millisecond."""


@pytest.mark.parametrize(
    ("best", "decider", "records"),
    [
        ("quick", Decider.TIME, [NATIVE, ran("quick", 0.8), ran("slow", 1.3)]),
        # intervals that do not overlap: however accurate the slower one is
        ("quick", Decider.TIME,
         [ran("quick", 0.9, error_ulp=3.0), ran("exact", 0.99, error_ulp=0.5)]),
        ("exact", Decider.ACCURACY,
         [ran("quick", 0.98, error_ulp=3.0), ran("exact", 0.99, error_ulp=0.5)]),
        ("lean", Decider.MEMORY,
         [ran("quick", 0.98, peak_bytes=200), ran("lean", 0.99, peak_bytes=100)]),
        # below half an ulp no error is better than another
        ("quick", Decider.MEMORY,
         [ran("quick", 0.98, error_ulp=0.5, peak_bytes=1),
          ran("lucky", 0.99, error_ulp=0.2, peak_bytes=2)]),
        # a memory that was not measured breaks no tie
        ("quick", Decider.NOTHING, [ran("quick", 0.98), ran("lean", 0.99, peak_bytes=100)]),
        ("one", Decider.NOTHING, [ran("two", 0.99), ran("one", 0.98)]),
        # two epochs: t = 12.7
        ("native", Decider.ESTIMATE,
         [NATIVE, ran("exact", 2.0, interval=(0.82, 4.9), error_ulp=0.5)]),
        ("wide", Decider.ESTIMATE, [ran("wide", 0.9, interval=(0.4, 2.0)), NATIVE]),
        # accuracy and memory may cost a tenth more time, to the end of the interval
        ("exact", Decider.ACCURACY,
         [QUICK, ran("exact", 1.04, interval=(0.99, 1.0999), error_ulp=0.5)]),
        ("quick", Decider.ESTIMATE,
         [QUICK, ran("exact", 1.04, interval=(0.98, 1.1001), error_ulp=0.5)]),
        ("quick", Decider.ESTIMATE,
         [ran("quick", 1.0, interval=(0.95, 1.05), peak_bytes=200),
          ran("lean", 1.04, interval=(0.98, 1.2), peak_bytes=100)]),
        ("native", Decider.ONLY, [NATIVE]),
    ],
)  # fmt: skip
def test_the_best_and_what_decides(best: str, decider: Decider, records: list[Record]) -> None:
    choice = choice_among(*records)
    assert choice.best is not None
    assert (choice.best.label, choice.ranking.decider) == (best, decider)


def test_a_cost_that_is_not_a_number_is_not_ranked() -> None:
    none = Estimate(value=nan, low=nan, high=nan)
    unknown = Candidate(implementation="x", cost=none, widened_cost=none, disqualification=None)
    assert rank([unknown]).best is None


def test_five_processes_rarely_make_a_slower_and_more_accurate_candidate_a_tie() -> None:
    """10 % slower, processes that differ by 3 %."""
    random, taken = np.random.default_rng(1), 0
    for _ in range(500):
        first, second = (
            median_estimate(list(np.exp(random.normal(log(ratio), 0.03, 5))))
            for ratio in (1.0, 1.10)
        )
        quick = ran("quick", first.value, interval=(first.low, first.high), error_ulp=3.0)
        exact = ran("exact", second.value, interval=(second.low, second.high), error_ulp=0.5)
        taken += chosen(quick, exact) == "exact"
    assert taken <= 25


def test_accuracy_is_compared_where_all_of_a_tie_are_right() -> None:
    lost = [vacuous(name, distribution="constant", condition=inf) for name in ("quick", "other")]
    beyond = [replace(lost[0], errors=ran("x", error_ulp=9e9).errors), lost[1]]
    assert chosen(ran("quick", 0.98), ran("other", 0.99), *beyond) == "quick"


# --- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "tied", "apart"), [((64, 768), 1.05, 1.08), (LONG, 1.2, 1.24)])
def test_intervals_over_one_process_are_widened(
    shape: tuple[int, ...], tied: float, apart: float
) -> None:
    def decider(ratio: float, processes: int) -> Decider | None:
        native = ran("native", 1.0, shape=shape, processes=processes, spread=0.001)
        other = ran("other", ratio, shape=shape, processes=processes, spread=0.001)
        return choice_among(native, other).ranking.decider

    assert decider(tied, 1) is not Decider.TIME
    assert decider(tied, 5) is Decider.TIME
    assert decider(apart, 1) is Decider.TIME


def test_accuracy_over_one_process_decides_by_the_interval_as_measured() -> None:
    quick = ran("quick", 1.0, shape=LONG, processes=1, error_ulp=3.0)
    assert chosen(quick, ran("exact", 1.05, shape=LONG, processes=1, error_ulp=0.5)) == "exact"
    assert chosen(quick, ran("exact", 1.15, shape=LONG, processes=1, error_ulp=0.5)) == "quick"


@pytest.mark.parametrize(("candidates", "spread"), [(2, 0.005), (2, 0.01), (5, 0.01)])
def test_equal_candidates_over_one_process_are_rarely_told_apart_by_time(
    candidates: int, spread: float
) -> None:
    """Between processes they differ by ``spread``, which the intervals do not show."""
    random, winners = np.random.default_rng(1), 0
    for _ in range(200):
        ratios = np.exp(random.normal(0, spread, candidates))
        records = [
            ran(f"number{number}", float(ratio), spread=0.003, processes=1)
            for number, ratio in enumerate(ratios)
        ]
        winners += choice_among(*records).ranking.decider is Decider.TIME
    assert winners <= 4

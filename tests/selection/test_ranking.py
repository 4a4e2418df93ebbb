"""Which eligible candidate is chosen, for one scenario and for all: for each rule a case."""

from dataclasses import replace
from math import inf

import pytest
from factories.choice_records import SHAPES, choice_among, failed, ran, timed, vacuous, with_latency
from factories.fake_device import CALL_S, latency_of, measure, payer

from harness.records import Clock, Direction, Estimate, Record, Status
from harness.selection import Decider, OverallChoice, answers_of, cost_of

NATIVE = ran("native", 1.0)
QUICK = ran("quick", 1.0, interval=(0.95, 1.05), error_ulp=3.0)
SMALL, LONG = (64, 768), (4096, 4096)
"""Calls of the second take more than a millisecond."""
OTHER = "pytest-benchmark:perf_counter"


def foreign(record: Record) -> Record:
    """Return the record as an import has it: timed by another timer, without a reference."""
    return with_latency(record, timer=OTHER, reference=None, reference_ratio=None)


def once(name: str, ratio: float, shape: tuple[int, ...], **more: float) -> Record:
    """Return a record of one process."""
    return ran(name, ratio, shape=shape, processes=1, **({"spread": 0.001} | more))  # type: ignore[arg-type]


def paying(share: float) -> Record:
    """Return a candidate that lets every fourth call pay; fast calls take the share of native's."""
    ratio = latency_of(measure(payer(4, 8 * CALL_S), ("subject", "reference"))).reference_ratio
    assert ratio is not None
    ends = {end: share * getattr(ratio, end) for end in ("value", "low", "high")}
    return with_latency(ran("quick", 0.5), reference_ratio=Estimate(**ends))


OF_TWO = [
    *(ran(name, distribution=one) for name in ("native", "third") for one in ("normal", "uniform")),
    *(NATIVE, ran("third", 1.2), ran("quick", 0.5, distribution="uniform"), ran("quick")),
]
LOST = [vacuous(name, distribution="constant", condition=inf) for name in ("quick", "other")]
BY_ANOTHER = with_latency(ran("other", 2.0), reference="another")
MINUTES = Estimate(value=9.0, low=8.9, high=9.1)


@pytest.mark.parametrize(
    ("best", "decider", "records"),
    [
        ("native", Decider.ONLY, [NATIVE]),
        # fast on the device, but the host takes a second to issue a call
        ("native", Decider.TIME, [NATIVE, with_latency(ran("quick", 0.5), launch_s=1.0)]),
        ("one", Decider.NOTHING, [ran("two", 0.99), ran("one", 0.98)]),
        # intervals that do not overlap: however accurate the slower one is
        ("quick", Decider.TIME,
         [ran("quick", 0.9, error_ulp=3.0), ran("exact", 0.99, error_ulp=0.5)]),
        # an error up to a tenth larger is the same
        ("quick", Decider.NOTHING,
         [ran("quick", 0.98, error_ulp=1.09), ran("exact", 0.99, error_ulp=1.0)]),
        ("exact", Decider.ACCURACY,
         [ran("quick", 0.98, error_ulp=1.11), ran("exact", 0.99, error_ulp=1.0)]),
        ("lean", Decider.MEMORY,
         [ran("quick", 0.98, peak_bytes=200), ran("lean", 0.99, peak_bytes=100)]),
        # below half an ulp no error is better than another
        ("quick", Decider.MEMORY,
         [ran("quick", 0.98, error_ulp=0.5, peak_bytes=1),
          ran("lucky", 0.99, error_ulp=0.2, peak_bytes=2)]),
        # a memory that was not measured breaks no tie
        ("quick", Decider.NOTHING, [ran("quick", 0.98), ran("lean", 0.99, peak_bytes=100)]),
        # two epochs: t = 12.7
        ("native", Decider.ESTIMATE,
         [NATIVE, ran("exact", 2.0, interval=(0.82, 4.9), error_ulp=0.5)]),
        # accuracy and memory may cost a tenth more time, to the end of the interval
        ("exact", Decider.ACCURACY,
         [QUICK, ran("exact", 1.04, interval=(0.99, 1.0999), error_ulp=0.5)]),
        ("quick", Decider.ESTIMATE,
         [QUICK, ran("exact", 1.04, interval=(0.98, 1.1001), error_ulp=0.5)]),
        # accuracy is compared where all of a tie are right
        ("quick", Decider.NOTHING,
         [ran("quick", 0.98), ran("other", 0.99),
          replace(LOST[0], errors=ran("x", error_ulp=9e9).errors), LOST[1]]),
        # ratios to the reference are compared and not seconds
        ("quick", Decider.TIME, [NATIVE, with_latency(ran("quick", 0.8), per_call_s=MINUTES)]),
        # without a common reference seconds are
        ("native", Decider.TIME, [NATIVE, BY_ANOTHER]),
        # only times on the same inputs, of one clock and one timer are compared
        ("native", Decider.TIME, OF_TWO),
        ("native", Decider.TIME,
         [NATIVE, ran("third", 1.2), with_latency(ran("quick", 0.5), clock=Clock.WALL)]),
        ("native", Decider.TIME, [NATIVE, ran("third", 1.5), foreign(ran("quick", 0.01))]),
        # of two timers with as many cases the own timer counts
        ("quick", Decider.TIME,
         [NATIVE, ran("quick", 0.5), foreign(NATIVE), foreign(ran("quick", 2.0))]),
        # calls count by their mean
        ("native", Decider.TIME, [NATIVE, paying(0.5)]),
        # intervals over one process are widened
        ("native", Decider.NOTHING, [once("native", 1.0, SMALL), once("other", 1.05, SMALL)]),
        ("native", Decider.TIME, [once("native", 1.0, SMALL), once("other", 1.08, SMALL)]),
        ("native", Decider.TIME, [once("native", 1.0, LONG), once("other", 1.24, LONG)]),
        # but a tenth more time is that of the interval as measured
        ("exact", Decider.ACCURACY,
         [once("quick", 1.0, LONG, error_ulp=3.0), once("exact", 1.05, LONG, error_ulp=0.5)]),
        ("quick", Decider.ESTIMATE,
         [once("quick", 1.0, LONG, error_ulp=3.0), once("exact", 1.15, LONG, error_ulp=0.5)]),
    ],
)  # fmt: skip
def test_the_best_and_what_decides(best: str, decider: Decider, records: list[Record]) -> None:
    choice = choice_among(*records)
    assert (choice.best.label, choice.ranking.decider) == (best, decider)


# --- one implementation for all cases of a device and direction -----------------------------------

BEYOND = {"shape": (9, 9), "distribution": "offset_1e6"}
MEANS, HALF = timed("native", 1.0), timed("quick", 0.5)
BACKWARD = {"direction": Direction.BACKWARD}


def overall(*records: Record) -> OverallChoice:
    """Return the only choice for inputs of any condition number."""
    (choice,) = answers_of(records, inf)[-1].overall.values()
    return choice


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (None, HALF),
        # one untimed case, or a time without interval or errors, disqualifies
        ("wrong", [*HALF, ran("quick", status=Status.WRONG, **BEYOND)]),
        ("unverified", [replace(record, errors=None) for record in HALF]),
        ("untimed", [*HALF, ran("native", 1.0, shape=(1024, 2048))]),
        # a case that no candidate can do disqualifies none
        (None, [*HALF, *(failed(x, Status.UNSUPPORTED, **BEYOND) for x in ("quick", "native"))]),
    ],
)  # fmt: skip
def test_the_overall_choice_is_eligible_for_every_case(
    kind: str | None, records: list[Record]
) -> None:
    choice = overall(*records, *MEANS)
    (quick,) = (one for one in choice.candidates if one.label == "quick")
    assert (quick.disqualification and quick.disqualification.kind) == kind
    assert choice.ranking.best.label == ("native" if kind else "quick")


def test_the_best_need_not_be_the_fastest_in_every_case() -> None:
    mixed = [*timed("mixed", 1.2, SHAPES[:1]), *timed("mixed", 0.5, SHAPES[1:])]
    choice = overall(*timed("slow", 2.0), *MEANS, *mixed)
    assert [one.label for one in choice.ranking.eligible] == ["mixed", "native", "slow"]
    assert choice.fastest_in == 2
    mean = (1.2 * 0.5 * 0.5) ** (1 / 3)
    assert [cost_of(one) for one in choice.ranking.eligible] == pytest.approx([mean, 1.0, 2.0])


def test_means_over_different_cases_are_not_compared() -> None:
    shapes = (*SHAPES, (1024, 2048))
    one = [*timed("one", 0.5, shapes[:1]), *timed("one", 0.7, shapes[1:3])]
    two = [*timed("two", 0.6, shapes[1:3]), *timed("two", 0.9, shapes[3:])]
    choice = overall(*one, *two)
    assert choice.ranking.best is None
    assert [cost_of(one) for one in choice.candidates] == pytest.approx([
        (0.5 * 0.7**2) ** (1 / 3),
        (0.6**2 * 0.9) ** (1 / 3),
    ])


def test_every_environment_device_dtype_and_direction_has_its_own_choice() -> None:
    axes = ({"environment": "there"}, {"device": "cuda"}, {"dtype": "float64"}, BACKWARD)
    records = [ran("native", 1.0, **values) for values in ({}, *axes)]  # type: ignore[arg-type]
    assert len(answers_of(records, inf)[-1].overall) == 5

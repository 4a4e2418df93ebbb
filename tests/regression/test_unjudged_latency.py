"""Latencies that are not judged."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest
from compared_runs import (
    BEFORE,
    ELSEWHERE,
    STEADY,
    change,
    confirming,
    elsewhere,
    make_latency,
    make_record,
    now,
    with_memory,
)

from harness.records import (
    Allocation,
    Cache,
    Clock,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.regression.changes import ChangeKind, Metric


def judged(before: Any, after: Any) -> tuple[ChangeKind, Metric | None]:
    """Return the kind of a case that takes twice as long in every fresh process."""
    found = change(before, after, confirm=confirming(*[2.0] * 5))
    return found.kind, found.metric


UNJUDGED = (ChangeKind.INCONCLUSIVE, Metric.LATENCY)
STEPPED = (MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand"),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (make_record(ratios=STEADY[:9]), now(2.0)),
        (replace(BEFORE, warnings=STEPPED), now(2.0)),
        (BEFORE, replace(now(2.0), warnings=STEPPED)),
        (BEFORE, make_record()),
        (BEFORE, make_record(environment=ELSEWHERE)),
        *((BEFORE, now(bad)) for bad in (nan, 0.0, -1.0)),
        *((make_record(ratios=(*STEADY[:9], bad)), now(2.0)) for bad in (nan, 0.0, -1.0)),
    ],
    ids=[
        *("few processes", "clock jumped before", "clock jumped now"),
        *("not timed now", "not timed elsewhere"),
        *("nan now", "zero now", "negative now", "nan before", "zero before", "negative before"),
    ],
)
def test_a_latency_that_cannot_be_judged_is_inconclusive(before: Record, after: Record) -> None:
    assert judged(before, after) == UNJUDGED


def test_a_latency_of_one_run_or_of_a_wrong_result_is_not_compared() -> None:
    assert judged(make_record(), now(2.0)) == (ChangeKind.UNCHANGED, None)
    wrong = replace(BEFORE, status=Status.WRONG)
    assert judged(wrong, now(2.0)) == (ChangeKind.IMPROVED, Metric.STATUS)


@pytest.mark.parametrize(
    "difference",
    [
        {"timer": "pytest-benchmark:perf_counter"},
        {"is_valid": False},
        {"reference": None, "reference_ratio": None},
        {"reference": "two_pass"},
        {"clock": Clock.WALL},
        {"cache": Cache.ROTATE},
        {"allocation": Allocation.DEFAULT},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_times_measured_in_two_ways_are_not_comparable(difference: dict[str, Any]) -> None:
    other = make_record(latency=make_latency(STEADY, **difference))
    for before, after in ((BEFORE, other), (other, BEFORE)):
        found = change(before, after, confirm=confirming(*[2.0] * 5))
        assert (found.kind, found.metric) == (ChangeKind.NOT_COMPARABLE, Metric.LATENCY)
        assert found.ratio is None
    found = change(BEFORE, with_memory(other, peak_extra_bytes=1 << 40))
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, Metric.PEAK_MEMORY)


def test_the_latency_of_another_machine_is_shown_and_not_compared() -> None:
    found = change(BEFORE, elsewhere(now(2.0)), confirm=confirming(*[2.0] * 5))
    assert (found.kind, found.metric) == (ChangeKind.NOT_COMPARABLE, Metric.LATENCY)
    assert found.ratio is None
    assert "0.500x" in found.reason

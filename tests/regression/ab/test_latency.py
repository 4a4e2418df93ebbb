"""Latency beside a base: who is suspected, what confirms it, and how often the rule errs.

No time is taken. Simulated processes follow what was recorded of base and head in one process: for
short calls the ratio spreads by 0.1 % (of unlike functions that take equally long, by 0.9 %), for
long ones by 1.3 %, with tails heavier than the normal distribution's (Student's t, 5 degrees).
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log, nan
from typing import Any

import numpy as np
import pytest
from compared_runs import make_case, make_latency, make_record
from fake_device import FakeDevice, latency_of, measure

from harness.measure.sample_statistics import median_quantile
from harness.records import Estimate, MeasurementWarning, Record, Status, WarningKind
from harness.regression.ab.latency import SCREENING, Look, confirmed_change, look_at
from harness.regression.changes import ChangeKind, Finding, Metric

CASE = make_case()


def seen(ratio: float = 1.0, error: float = 0.001, **changes: Any) -> Look:
    """Return a first look at a short call."""
    estimate = Estimate(value=ratio, low=ratio * exp(-error), high=ratio * exp(error))
    return replace(Look(case=CASE, ratio=estimate, error=error, is_long=False), **changes)


def settled(*confirmed: float, **changes: Any) -> Finding:
    return confirmed_change(seen(1.5, **changes), confirmed)


# --- the first look ------------------------------------------------------------------------------


def record_of(*epochs: float, base_s: float = 1e-4, **changes: Any) -> Record:
    """Return a record whose ratio to the base was so in each epoch."""
    spread = float(np.std(np.log(epochs), ddof=1)) if len(epochs) > 1 else inf
    value = float(np.median(epochs))
    half = median_quantile(len(epochs)) * spread / len(epochs) ** 0.5
    latency = make_latency(
        (1.0,),
        reference_ratio=Estimate(value=value, low=value * exp(-half), high=value * exp(half)),
        per_call_s=Estimate(value=base_s * value, low=0.0, high=inf),
        process_of_epoch=(0,) * len(epochs),
    )
    return make_record(CASE, latency=latency, **changes)


def look(*epochs: float, **changes: Any) -> Look:
    found = look_at(record_of(*epochs, **changes))
    assert isinstance(found, Look)
    return found


EIGHT = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0)


def test_the_error_of_a_look_is_that_of_the_mean_of_its_epochs() -> None:
    expected = float(np.std(np.log(EIGHT), ddof=1)) / 8**0.5
    assert look(*EIGHT).error == pytest.approx(expected, rel=1e-3)


def test_one_epoch_says_nothing_of_the_spread() -> None:
    assert look(1.5).error == inf
    assert confirmed_change(look(1.0), None).kind is ChangeKind.INCONCLUSIVE


@pytest.mark.parametrize("ratio", [1.0501, 1 / 1.0501, 1300.0])
def test_a_call_so_long_that_one_epoch_was_all_is_timed_again(ratio: float) -> None:
    found = look(ratio, base_s=1e-3)
    assert found.is_suspect
    kind = ChangeKind.SLOWER if ratio > 1 else ChangeKind.FASTER
    assert confirmed_change(found, [ratio] * 5).kind is kind


@pytest.mark.parametrize("head_s", [1.3, 1.9, 3.0, 30.0])
def test_a_slowdown_is_suspect_however_long_a_call_takes(head_s: float) -> None:
    times_s = {"subject": head_s, "reference": 1e-3}
    device = FakeDevice(lambda name, _: times_s[name])
    latency = latency_of(measure(device, ("subject", "reference"), SCREENING))
    found = look_at(make_record(CASE, latency=latency))
    assert isinstance(found, Look)
    assert found.is_suspect


def test_one_epoch_that_moved_by_less_than_could_fail_is_not_timed_again() -> None:
    assert not look(1.0499, base_s=1e-3).is_suspect


@pytest.mark.parametrize(("base_s", "is_long"), [(0.9e-3, False), (1.0e-3, True)])
def test_a_call_is_long_by_the_time_of_the_base(base_s: float, is_long: bool) -> None:
    assert look(*[2.0] * 8, base_s=base_s).is_long is is_long


@pytest.mark.parametrize("bad", [nan, 0.0, -1.0, inf])
def test_samples_that_are_no_times_are_unsure(bad: float) -> None:
    latency = make_latency((1.0,), reference_ratio=Estimate(value=bad, low=0.0, high=inf))
    found = look_at(make_record(CASE, latency=latency))
    assert isinstance(found, Finding)
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, Metric.LATENCY)


def test_a_case_that_could_not_be_timed_says_why() -> None:
    found = look_at(make_record(CASE, status=Status.ERROR, reason="RuntimeError: no"))
    assert isinstance(found, Finding)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "RuntimeError: no" in found.reason


@pytest.mark.parametrize("ratio", [1.0099, 1 / 1.0099])
def test_one_percent_is_no_suspect(ratio: float) -> None:
    assert not seen(ratio).is_suspect
    found = confirmed_change(seen(ratio), None)
    assert found.kind is ChangeKind.UNCHANGED
    assert found.ratio is not None


@pytest.mark.parametrize("ratio", [1.0101, 1 / 1.0101])
def test_beyond_one_percent_is_a_suspect_either_way(ratio: float) -> None:
    assert seen(ratio).is_suspect


def test_a_case_is_suspect_beyond_two_of_its_errors() -> None:
    assert not seen(exp(0.0399), error=0.02).is_suspect
    assert seen(exp(0.0401), error=0.02).is_suspect


@pytest.mark.parametrize(("is_long", "error"), [(False, 0.0101), (True, 0.0251), (False, inf)])
def test_what_would_not_show_is_unsure_and_never_silent(is_long: bool, error: float) -> None:
    found = confirmed_change(seen(1.0, error=error, is_long=is_long), None)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert (
        confirmed_change(seen(1.0, error=0.0097, is_long=is_long), None).kind
        is ChangeKind.UNCHANGED
    )


# --- what settles it -----------------------------------------------------------------------------


def test_five_processes_that_agree_on_more_than_two_percent_confirm_it() -> None:
    found = settled(1.021, 1.03, 1.03, 1.04, 1.03)
    assert found.kind is ChangeKind.SLOWER
    assert "3 % slower" in found.reason
    assert found.ratio is not None
    assert found.ratio.low < 1.03 < found.ratio.high


def test_two_percent_is_not_enough() -> None:
    assert settled(*[1.0199] * 5).kind is ChangeKind.INCONCLUSIVE
    assert settled(*[1.0201] * 5).kind is ChangeKind.SLOWER


def test_a_long_call_needs_five_percent() -> None:
    assert settled(*[1.0499] * 5, is_long=True).kind is ChangeKind.INCONCLUSIVE
    assert settled(*[1.0501] * 5, is_long=True).kind is ChangeKind.SLOWER


def test_one_process_that_disagrees_confirms_nothing() -> None:
    found = settled(1.03, 1.03, 0.999, 1.03, 1.03)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "0.999 to 1.030" in found.reason


def test_processes_that_differ_by_as_much_as_they_found_confirm_nothing() -> None:
    # standard error 3.2 %, median 8 %
    assert settled(1.001, 1.002, 1.08, 1.15, 1.16).kind is ChangeKind.INCONCLUSIVE


def test_what_is_faster_is_confirmed_likewise_and_fails_nothing() -> None:
    found = confirmed_change(seen(0.9), [0.9] * 5)
    assert found.kind is ChangeKind.FASTER
    assert not found.kind.is_failure
    assert "10 % faster" in found.reason
    assert confirmed_change(seen(0.9), [0.99] * 5).kind is ChangeKind.INCONCLUSIVE


@pytest.mark.parametrize(("first", "confirmed"), [(0.90, 1.022), (1.10, 0.978)])
def test_processes_that_contradict_the_first_look_confirm_nothing(
    first: float, confirmed: float
) -> None:
    found = confirmed_change(seen(first), [confirmed * each for each in (0.999, 1, 1.001, 1, 1)])
    assert found.kind is ChangeKind.INCONCLUSIVE


@pytest.mark.parametrize("bad", [nan, inf, 0.0])
def test_a_confirmation_that_is_no_number_confirms_nothing(bad: float) -> None:
    assert settled(1.5, 1.5, 1.5, 1.5, bad).kind is ChangeKind.INCONCLUSIVE


def test_four_processes_confirm_nothing() -> None:
    found = settled(*[1.5] * 4)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "4 of 5 processes" in found.reason


def test_a_suspect_that_cannot_be_timed_again_says_why() -> None:
    found = confirmed_change(seen(1.5), "the time was up")
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "the time was up" in found.reason


def test_while_the_clock_jumps_nothing_is_judged() -> None:
    warning = MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand")
    found = confirmed_change(look(*[1.5] * 8, warnings=(warning,)), [1.5] * 5)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "clock" in found.reason


# --- how often it errs ---------------------------------------------------------------------------


class Processes:
    """Draws what processes find of a case whose true ratio is given."""

    def __init__(self, seed: int, *, between: float, within: float, ratio: float = 1.0) -> None:
        self._random = np.random.default_rng(seed)
        self._between, self._within, self._ratio = between, within, ratio

    def kind(self, *, is_long: bool) -> ChangeKind:
        """Look once, and in five processes more if that makes it a suspect."""
        epochs = SCREENING.min_epochs
        logs = self._process() + self._tailed(self._within, epochs)
        error = float(np.std(logs, ddof=1)) / epochs**0.5
        first = seen(exp(float(np.median(logs))), error, is_long=is_long)
        if not first.is_suspect:
            return confirmed_change(first, None).kind
        return confirmed_change(first, [exp(self._process()) for _ in range(5)]).kind

    def _process(self) -> float:
        return log(self._ratio) + float(self._tailed(self._between, 1)[0])

    def _tailed(self, spread: float, count: int) -> Any:
        return self._random.standard_t(5, count) * spread * (3 / 5) ** 0.5


def kinds(cases: int, *, is_long: bool, **process: float) -> list[ChangeKind]:
    return [Processes(seed, **process).kind(is_long=is_long) for seed in range(cases)]


@pytest.mark.parametrize(
    ("is_long", "between", "within"),
    [(False, 0.001, 0.003), (False, 0.009, 0.003), (True, 0.013, 0.03)],
    ids=["one function twice", "two functions of equal speed", "long calls"],
)
def test_unchanged_cases_do_not_fail(is_long: bool, between: float, within: float) -> None:
    found = kinds(4000, is_long=is_long, between=between, within=within)
    assert found.count(ChangeKind.SLOWER) == 0
    assert found.count(ChangeKind.UNCHANGED) > 0.7 * len(found)  # not silent by seeing nothing


def test_a_single_look_would_have_failed_unchanged_cases() -> None:
    looks = [Processes(seed, between=0.013, within=0.03)._process() for seed in range(4000)]
    assert sum(each > log(1.02) for each in looks) > 100


def test_three_percent_in_a_short_call_is_found_in_ninety_five_of_a_hundred() -> None:
    found = kinds(1000, is_long=False, between=0.004, within=0.003, ratio=1.03)
    assert found.count(ChangeKind.SLOWER) >= 950


def test_ten_percent_in_a_short_call_is_always_found() -> None:
    found = kinds(1000, is_long=False, between=0.009, within=0.003, ratio=1.10)
    assert found.count(ChangeKind.SLOWER) == 1000


def test_ten_percent_in_a_long_call_is_found_in_nine_of_ten() -> None:
    found = kinds(1000, is_long=True, between=0.013, within=0.03, ratio=1.10)
    assert found.count(ChangeKind.SLOWER) >= 900

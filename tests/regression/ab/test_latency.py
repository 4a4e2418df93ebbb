"""Latency in turn with a base: suspects, their confirmation, and how often the rule errs.

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
from fake_device import CALL_S, FakeDevice, latency_of, measure, payer

from harness.measure.sample_statistics import median_quantile
from harness.records import Estimate, MeasurementWarning, Record, Status, WarningKind
from harness.regression.ab.latency import SCREENING, Look, confirmed_change, look_at
from harness.regression.changes import ChangeKind, Finding, Metric
from harness.regression.latency_test import process_ratios

CASE = make_case()


def seen(ratio: float = 1.0, error: float = 0.001, **changes: Any) -> Look:
    """Return a first look at a short call."""
    estimate = Estimate(value=ratio, low=ratio * exp(-error), high=ratio * exp(error))
    return replace(Look(case=CASE, ratio=estimate, error=error, is_long=False), **changes)


NO_RATIO: tuple[tuple[float, ...], ...] = ((), (nan,), (inf,), (0.0,))


# --- the first look ------------------------------------------------------------------------------


def record_of(*epochs: float, base_s: float = 1e-4, **changes: Any) -> Record:
    """Return a record with the given ratio to the base in each epoch."""
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


@pytest.mark.parametrize("ratio", [1.0501, 1 / 1.0501, 1300.0])
def test_a_long_call_with_a_single_epoch_is_timed_again(ratio: float) -> None:
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


@pytest.mark.parametrize(
    ("pays", "kind"), [("subject", ChangeKind.SLOWER), ("reference", ChangeKind.FASTER)]
)
@pytest.mark.parametrize("slower", [1.1, 3.0])
def test_calls_that_pay_for_others_count_by_their_mean(
    pays: str, kind: ChangeKind, slower: float
) -> None:
    device = payer(4, 4 * (slower - 1) * CALL_S, pays)
    latency = latency_of(measure(device, ("subject", "reference"), SCREENING))
    found = look_at(make_record(CASE, latency=latency))
    assert isinstance(found, Look)
    assert found.is_uneven
    assert found.is_suspect
    change = confirmed_change(found, process_ratios(latency) * 5)
    assert change.kind is kind


@pytest.mark.parametrize(("base_s", "is_long"), [(0.9e-3, False), (1.0e-3, True)])
def test_a_call_is_long_by_the_time_of_the_base(base_s: float, is_long: bool) -> None:
    assert look(*[2.0] * 8, base_s=base_s).is_long is is_long


@pytest.mark.parametrize("bad", [nan, 0.0, -1.0, inf])
def test_samples_that_are_not_positive_numbers_are_inconclusive(bad: float) -> None:
    latency = make_latency((1.0,), reference_ratio=Estimate(value=bad, low=0.0, high=inf))
    found = look_at(make_record(CASE, latency=latency))
    assert isinstance(found, Finding)
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, Metric.LATENCY)


def test_a_case_that_could_not_be_timed_has_the_reason() -> None:
    found = look_at(make_record(CASE, status=Status.ERROR, reason="RuntimeError: no"))
    assert isinstance(found, Finding)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "RuntimeError: no" in found.reason


@pytest.mark.parametrize(
    ("look", "is_suspect"),
    [
        *((seen(ratio), False) for ratio in (1.0099, 1 / 1.0099)),
        *((seen(ratio), True) for ratio in (1.0101, 1 / 1.0101)),
        (seen(exp(0.0399), error=0.02), False),  # two standard errors
        (seen(exp(0.0401), error=0.02), True),
        (seen(1.0499, error=inf, is_long=True), False),  # a single epoch: the least effect
        (seen(1.0501, error=inf, is_long=True), True),
    ],
)
def test_a_suspect_moved_by_more_than_one_percent_and_two_errors(
    look: Look, is_suspect: bool
) -> None:
    assert look.is_suspect is is_suspect


@pytest.mark.parametrize(("is_long", "error"), [(False, 0.0101), (True, 0.0251), (False, inf)])
def test_an_effect_that_would_not_show_is_inconclusive(is_long: bool, error: float) -> None:
    found = confirmed_change(seen(1.0, error=error, is_long=is_long), None)
    assert found.kind is ChangeKind.INCONCLUSIVE
    found = confirmed_change(seen(1.0099, error=0.0097, is_long=is_long), None)
    assert found.kind is ChangeKind.UNCHANGED
    assert found.ratio is not None


# --- the confirmation ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "confirmed", "kind", "fact"),
    [
        (seen(1.5), (1.021, 1.03, 1.03, 1.04, 1.03), ChangeKind.SLOWER, "3 % slower"),
        (seen(1.5), (1.0201,) * 5, ChangeKind.SLOWER, "2 % slower"),
        (seen(1.5), (1.0199,) * 5, ChangeKind.INCONCLUSIVE, "2 %"),
        (seen(1.5, is_long=True), (1.0501,) * 5, ChangeKind.SLOWER, "5 % slower"),
        (seen(1.5, is_long=True), (1.0499,) * 5, ChangeKind.INCONCLUSIVE, "5 %"),
        (seen(1.5), (1.03, 1.03, 0.999, 1.03, 1.03), ChangeKind.INCONCLUSIVE, "0.971x to 1.001x"),
        # standard error 3 %, median 8 %
        (seen(1.5), (1.012, 1.012, 1.08, 1.15, 1.16), ChangeKind.INCONCLUSIVE, "0.862x to 0.988x"),
        (seen(1.5), (1.0102, 1.03, 1.03, 1.03, 1.03), ChangeKind.SLOWER, "3 % slower"),
        (seen(1.5), (1.0098, 1.03, 1.03, 1.03, 1.03), ChangeKind.INCONCLUSIVE, "1 % in each of 5"),
        (seen(0.9), (0.9,) * 5, ChangeKind.FASTER, "10 % faster"),
        (seen(0.9), (0.99,) * 5, ChangeKind.INCONCLUSIVE, "1 % faster"),
        (seen(0.9), (1.022,) * 5, ChangeKind.INCONCLUSIVE, "not confirmed"),
        # refuted before the last process: one is faster; three are below the least effect
        (seen(1.5), (0.99,), ChangeKind.INCONCLUSIVE, "1.010x its speed in 1 fresh process"),
        (seen(1.5), (1.03, 1.012, 1.015, 1.015), ChangeKind.INCONCLUSIVE, "in 4 fresh processes"),
        (seen(1.5), (1.03, 1.012, 1.03, 1.015), ChangeKind.INCONCLUSIVE, "only 4 of 5"),
        (seen(1.1), (0.978,) * 5, ChangeKind.INCONCLUSIVE, "not confirmed"),
        *((seen(1.5), (1.5,) * 4 + more, ChangeKind.INCONCLUSIVE, "4 of 5") for more in NO_RATIO),
        (seen(1.5), "the time was up", ChangeKind.INCONCLUSIVE, "the time was up"),
    ],
)
def test_a_suspect_is_confirmed_if_every_process_agrees_on_more_than_the_least_effect(
    look: Look, confirmed: tuple[float, ...] | str, kind: ChangeKind, fact: str
) -> None:
    found = confirmed_change(look, confirmed)
    assert found.kind is kind
    assert fact in found.reason
    assert found.ratio is not None
    if kind is ChangeKind.SLOWER:
        assert found.ratio.low <= np.median(confirmed) <= found.ratio.high  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [1.1, 0.9])
def test_processes_that_refute_a_suspect_are_never_among_five_that_confirm_it(first: float) -> None:
    look, refuted, confirmed = seen(first), 0, 0
    for row in np.random.default_rng(2).normal(1, 0.02, (500, 5)) * first**0.3:
        ratios = tuple(row.tolist())
        is_confirmed = confirmed_change(look, ratios).kind is not ChangeKind.INCONCLUSIVE
        is_refuted = any(look.is_refuted(ratios[:number]) for number in range(1, 6))
        assert not (is_refuted and is_confirmed)
        refuted, confirmed = refuted + is_refuted, confirmed + is_confirmed
    assert min(refuted, confirmed) > 50


def test_a_latency_during_which_the_clock_jumped_is_not_judged() -> None:
    warning = MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand")
    found = confirmed_change(look(*[1.5] * 8, warnings=(warning,)), [1.5] * 5)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "clock" in found.reason


# --- how often it errs ---------------------------------------------------------------------------


class Processes:
    """Draws the ratios that processes find for a case whose true ratio is given."""

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


@pytest.mark.parametrize(
    ("is_long", "between", "within", "ratio", "least"),
    [
        (False, 0.004, 0.003, 1.03, 0.95),
        (False, 0.009, 0.003, 1.10, 1.0),
        (True, 0.013, 0.03, 1.10, 0.9),
    ],
    ids=["3 % of a short call", "10 % of a short call", "10 % of a long call"],
)
def test_slower_cases_are_found(
    is_long: bool, between: float, within: float, ratio: float, least: float
) -> None:
    found = kinds(500, is_long=is_long, between=between, within=within, ratio=ratio)
    assert found.count(ChangeKind.SLOWER) >= least * 500

"""Latency in turn with a base: suspects of the first look, their confirmation, and error rates.

No time is taken: each test gives the ratio of the two revisions in each process or epoch.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log, nan
from typing import Any

import numpy as np
import pytest
from factories.compared_runs import (
    make_case,
    make_latency,
    make_record,
)
from factories.fake_device import CALL_S, FakeDevice, latency_of, measure, payer

from harness.measure.sample_statistics import median_quantile
from harness.records import (
    Estimate,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.regression import (
    IN_TURN,
    LONG_IN_TURN,
    SCREENING_IN_TURN,
    Change,
    ChangeKind,
    Shift,
    judge,
    process_ratios,
    screen_in_turn,
)

CASE = make_case()
STEPPED = (MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand"),)


# --- in turn with a base: the first look ---------------------------------------------------------


def seen(ratio: float = 1.0, error: float = 0.001, **changes: Any) -> Shift:
    """Return a first look at a short call."""
    estimate = Estimate(value=ratio, low=ratio * exp(-error), high=ratio * exp(error))
    return replace(Shift(case=CASE, ratio=estimate, spread=error, limits=IN_TURN), **changes)


def long(ratio: float, error: float = 0.001) -> Shift:
    return seen(ratio, error, limits=LONG_IN_TURN)


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


def look(*epochs: float, **changes: Any) -> Shift:
    found = screen_in_turn(record_of(*epochs, **changes))
    assert isinstance(found, Shift)
    return found


EIGHT = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0)


def test_the_error_of_a_look_is_that_of_the_mean_of_its_epochs() -> None:
    expected = float(np.std(np.log(EIGHT), ddof=1)) / 8**0.5
    assert look(*EIGHT).spread == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("base_s", "limits"), [(0.9e-3, IN_TURN), (1.0e-3, LONG_IN_TURN)])
def test_a_call_is_long_by_the_time_of_the_base(base_s: float, limits: object) -> None:
    assert look(*[2.0] * 8, base_s=base_s).limits is limits


@pytest.mark.parametrize("head_s", [1.3, 1.9, 3.0, 30.0])
def test_a_slowdown_is_suspect_however_long_a_call_takes(head_s: float) -> None:
    times_s = {"subject": head_s, "reference": 1e-3}
    device = FakeDevice(lambda name, _: times_s[name])
    latency = latency_of(measure(device, ("subject", "reference"), SCREENING_IN_TURN))
    found = screen_in_turn(make_record(CASE, latency=latency))
    assert isinstance(found, Shift)
    assert found.is_suspect


@pytest.mark.parametrize(
    ("pays", "kind"), [("subject", ChangeKind.SLOWER), ("reference", ChangeKind.FASTER)]
)
@pytest.mark.parametrize("slower", [1.1, 3.0])
def test_calls_that_pay_for_others_count_by_their_mean(
    pays: str, kind: ChangeKind, slower: float
) -> None:
    device = payer(4, 4 * (slower - 1) * CALL_S, pays)
    latency = latency_of(measure(device, ("subject", "reference"), SCREENING_IN_TURN))
    found = screen_in_turn(make_record(CASE, latency=latency))
    assert isinstance(found, Shift)
    assert found.is_uneven
    assert found.is_suspect
    assert judge(found, process_ratios(latency) * 5).kind is kind


@pytest.mark.parametrize(
    ("record", "fact"),
    [
        *(
            (
                make_record(
                    CASE,
                    latency=make_latency(
                        (1.0,), reference_ratio=Estimate(value=bad, low=0.0, high=inf)
                    ),
                ),
                "not positive",
            )
            for bad in (nan, 0.0, -1.0, inf)
        ),
        (make_record(CASE, status=Status.ERROR, reason="RuntimeError: no"), "RuntimeError: no"),
    ],
)
def test_a_record_without_a_usable_ratio_is_inconclusive(record: Record, fact: str) -> None:
    found = screen_in_turn(record)
    assert isinstance(found, Change)
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, "latency")
    assert fact in found.reason


@pytest.mark.parametrize(
    ("look", "is_suspect"),
    [
        *((seen(ratio), False) for ratio in (1.0099, 1 / 1.0099)),
        *((seen(ratio), True) for ratio in (1.0101, 1 / 1.0101)),
        (seen(exp(0.0399), error=0.02), False),  # two standard errors
        (seen(exp(0.0401), error=0.02), True),
        (long(1.0499, error=inf), False),  # a single epoch: the least effect
        (long(1.0501, error=inf), True),
        *((look(ratio, base_s=1.0), True) for ratio in (1.0501, 1 / 1.0501, 1300.0)),
    ],
)
def test_a_suspect_moved_by_more_than_one_percent_and_two_errors(
    look: Shift, is_suspect: bool
) -> None:
    assert look.is_suspect is is_suspect


@pytest.mark.parametrize(
    ("look", "kind"),
    [
        (look(*EIGHT), ChangeKind.UNCHANGED),
        (look(1.0), ChangeKind.INCONCLUSIVE),  # a single epoch
        (look(0.96, 1.04, 0.97, 1.03, 1.0, 1.0), ChangeKind.INCONCLUSIVE),  # 2 % would not show
        (look(0.96, 1.04, 0.97, 1.03, 1.0, 1.0, base_s=1.0), ChangeKind.UNCHANGED),
        (look(*[1.5] * 8, warnings=STEPPED), ChangeKind.INCONCLUSIVE),
    ],
)
def test_a_case_that_is_no_suspect_is_unchanged_if_a_change_would_show(
    look: Shift, kind: ChangeKind
) -> None:
    found = judge(look, [1.5] * 5)
    assert found.kind is kind
    assert found.ratio is not None


# --- in turn with a base: the confirmation -------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "fresh", "kind"),
    [
        (seen(1.5), (1.021, 1.03, 1.03, 1.04, 1.03), ChangeKind.SLOWER),
        (seen(1.5), (1.0201,) * 5, ChangeKind.SLOWER),
        (seen(1.5), (1.0199,) * 5, ChangeKind.INCONCLUSIVE),
        (long(1.5), (1.0501,) * 5, ChangeKind.SLOWER),
        (long(1.5), (1.0499,) * 5, ChangeKind.INCONCLUSIVE),
        (seen(1.5), (1.03, 1.03, 0.999, 1.03, 1.03), ChangeKind.INCONCLUSIVE),
        # standard error 3 %, median 8 %
        (seen(1.5), (1.012, 1.012, 1.08, 1.15, 1.16), ChangeKind.INCONCLUSIVE),
        (seen(1.5), (1.0102, 1.03, 1.03, 1.03, 1.03), ChangeKind.SLOWER),
        (seen(1.5), (1.0098, 1.03, 1.03, 1.03, 1.03), ChangeKind.INCONCLUSIVE),
        (seen(0.9), (0.9,) * 5, ChangeKind.FASTER),
        (seen(0.9), (0.99,) * 5, ChangeKind.INCONCLUSIVE),
        (seen(0.9), (1.022,) * 5, ChangeKind.INCONCLUSIVE),
        (seen(1.1), (0.978,) * 5, ChangeKind.INCONCLUSIVE),
        # refuted before the last process: one is faster; three are below the least effect
        (seen(1.5), (0.99,), ChangeKind.INCONCLUSIVE),
        (seen(1.5), (1.03, 1.012, 1.015, 1.015), ChangeKind.INCONCLUSIVE),
        (seen(1.5), (1.03, 1.012, 1.03, 1.015), ChangeKind.INCONCLUSIVE),  # not yet refuted
        *((seen(1.5), (1.5,) * 4 + (bad,), ChangeKind.INCONCLUSIVE) for bad in (nan, inf, 0.0)),
        (seen(1.5), (1.5,) * 4, ChangeKind.INCONCLUSIVE),
        (seen(1.5), "the time was up", ChangeKind.INCONCLUSIVE),
    ],
)
def test_a_suspect_is_confirmed_if_every_process_agrees_on_more_than_the_least_effect(
    look: Shift, fresh: tuple[float, ...] | str, kind: ChangeKind
) -> None:
    found = judge(look, fresh)
    assert found.kind is kind
    assert found.ratio is not None
    if kind is ChangeKind.SLOWER:
        assert found.ratio.low <= np.median(fresh) <= found.ratio.high  # type: ignore[arg-type]


class Processes:
    """Draws the ratios that processes find for a case whose true ratio is given.

    They follow what was recorded of base and head in one process: for short calls the ratio spreads
    by 0.1 % (of unlike functions that take equally long, by 0.9 %), for long ones by 1.3 %, with
    tails heavier than the normal distribution's (Student's t, 5 degrees).
    """

    def __init__(self, seed: int, *, between: float, within: float, ratio: float = 1.0) -> None:
        self._random = np.random.default_rng(seed)
        self._between, self._within, self._ratio = between, within, ratio

    def kind(self, *, is_long: bool) -> ChangeKind:
        """Look once, and in five processes more if that makes it a suspect."""
        epochs = SCREENING_IN_TURN.min_epochs
        logs = self._process() + self._tailed(self._within, epochs)
        first = look(*np.exp(logs).tolist(), base_s=1.0 if is_long else 1e-6)
        fresh = [exp(self._process()) for _ in range(5)] if first.is_suspect else ()
        return judge(first, fresh).kind

    def _process(self) -> float:
        return log(self._ratio) + float(self._tailed(self._between, 1)[0])

    def _tailed(self, spread: float, number: int) -> Any:
        return self._random.standard_t(5, number) * spread * (3 / 5) ** 0.5


def in_turn(cases: int, *, is_long: bool, **process: float) -> list[ChangeKind]:
    return [Processes(seed, **process).kind(is_long=is_long) for seed in range(cases)]


@pytest.mark.parametrize(
    ("is_long", "between", "within"),
    [(False, 0.001, 0.003), (False, 0.009, 0.003), (True, 0.013, 0.03)],
    ids=["one function twice", "two functions of equal speed", "long calls"],
)
def test_unchanged_cases_do_not_fail(is_long: bool, between: float, within: float) -> None:
    found = in_turn(4000, is_long=is_long, between=between, within=within)
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
    found = in_turn(500, is_long=is_long, between=between, within=within, ratio=ratio)
    assert found.count(ChangeKind.SLOWER) >= least * 500

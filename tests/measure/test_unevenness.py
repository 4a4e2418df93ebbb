"""Calls that do the work of others are found, and then the mean is reported."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from factories.fake_device import CALL_S, FakeDevice, kinds, latency_of, measure, payer

from harness.measure.sample_statistics import unevenness
from harness.records import Arm, ArmRole, Budget, WarningKind

BUDGET = Budget(limit_s=1e9)
LEAST = BUDGET.uneven_ratio


@pytest.mark.parametrize("every", [2, 4, 16])
@pytest.mark.parametrize("slower", [2.0, 3.0, 30.0])
def test_calls_that_pay_for_others_are_reported_by_their_mean(every: int, slower: float) -> None:
    sampled = measure(payer(every, every * (slower - 1) * CALL_S), budget=BUDGET)
    latency = latency_of(sampled)
    assert WarningKind.UNEVEN in kinds(sampled)
    assert latency.uneven_ratio == pytest.approx(slower, rel=0.3)
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(slower, rel=0.3)
    assert latency.per_call_s.value == pytest.approx(slower * CALL_S, rel=0.3)
    # 1 for the fast calls, and invalid there: a share of the copy's speed is of all calls
    assert latency.ceiling_ratio == pytest.approx(1 / slower, rel=0.3)


def test_as_many_samples_are_taken_as_show_whether_calls_are_uneven() -> None:
    rare = measure(payer(40, 40 * CALL_S), budget=BUDGET)
    assert len(latency_of(rare).process_of_epoch) > BUDGET.max_epochs
    assert WarningKind.UNEVEN in kinds(rare)
    often = measure(payer(2, 2 * CALL_S), budget=BUDGET)
    assert len(latency_of(often).process_of_epoch) < BUDGET.max_epochs


def test_a_single_long_call_is_noise() -> None:
    sampled = measure(payer(10**6, 1.0), budget=BUDGET)
    assert latency_of(sampled).uneven_ratio is None
    assert latency_of(sampled).per_call_s.value == pytest.approx(CALL_S)


def test_calls_within_one_sample_are_timed_together() -> None:
    # 40 calls are a sample: each holds ten of those that cost more, so nothing is hidden
    device = FakeDevice(lambda name, n: 3e-6 + 8e-6 * (n % 4 == 0), makes_each=True)
    sampled = measure(device, budget=BUDGET)
    assert latency_of(sampled).uneven_ratio is None
    assert latency_of(sampled).per_call_s.value == pytest.approx(5e-6, rel=0.05)


def test_what_disturbs_both_alike_is_not_uneven() -> None:
    random = Random(1)

    def script(name: str, number: int) -> float:
        return CALL_S * (random.paretovariate(1.1) if random.random() < 0.1 else 1)

    latency = latency_of(measure(FakeDevice(script, makes_each=True), budget=BUDGET))
    assert latency.uneven_ratio is None
    assert latency.per_call_s.value == pytest.approx(CALL_S)


def test_an_uneven_reference_flatters_nobody_else() -> None:
    sampled = measure(payer(4, 4 * CALL_S, "reference"), budget=BUDGET)
    latency = latency_of(sampled)
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(0.5, rel=0.1)
    (warning,) = (warning for warning in sampled.warnings if warning.kind is WarningKind.UNEVEN)
    assert "the calls of reference" in warning.advice


def test_without_a_reference_the_copy_is_compared_with() -> None:
    device = payer(4, 4 * CALL_S)
    assert latency_of(measure(device, ("subject", "copy"), BUDGET)).uneven_ratio is not None
    assert latency_of(measure(payer(4, 4 * CALL_S), ("subject",), BUDGET)).uneven_ratio is None


# --- the statistic -------------------------------------------------------------------------------


def arms_of(subject: np.ndarray, reference: np.ndarray) -> list[Arm]:
    """Return two arms from samples in epochs x samples."""
    return [
        Arm(
            role=role,
            name=str(role),
            calls_per_sample=1,
            wall_s=tuple(samples.ravel().tolist()),
            cpu_s=None,
            epochs=tuple(np.repeat(np.arange(len(samples)), samples.shape[1]).tolist()),
        )
        for role, samples in ((ArmRole.SUBJECT, subject), (ArmRole.REFERENCE, reference))
    ]


def share_uneven(draw: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the share of 400 simulated measurements that are called uneven."""
    random = np.random.default_rng(1)
    found = [unevenness(arms_of(*draw(random)), cpu=False, least=LEAST) for _ in range(400)]
    return sum(uneven_ratio is not None for uneven_ratio, _ in found) / len(found)


def samples(random: np.random.Generator) -> np.ndarray:
    """Return twelve epochs of forty samples, of which one in thirty is disturbed, some for long."""
    shape = (12, 40)
    tail = (random.random(shape) < 1 / 30) * random.pareto(1.1, shape)
    return random.lognormal(0.0, 0.05, shape) + tail


def test_samples_with_a_heavy_tail_are_rarely_called_uneven() -> None:
    assert share_uneven(lambda random: (samples(random), samples(random))) < 0.01


@pytest.mark.parametrize(("every", "least"), [(2, 0.99), (4, 0.99), (16, 0.9)])
def test_most_that_pay_for_others_are_found_beside_a_heavy_tail(every: int, least: float) -> None:
    def draw(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        subject, reference = samples(random), samples(random)
        return subject + every * (random.random(subject.shape) < 1 / every), reference

    assert share_uneven(draw) > least


def test_the_drift_of_the_machine_is_not_uneven() -> None:
    def draw(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        drift = np.linspace(1, 5, 12)[:, None]
        return drift * samples(random), samples(random)

    assert share_uneven(draw) < 0.01

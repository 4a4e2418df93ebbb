"""Which samples count and which times are valid: throttled devices, and the fastest copy."""

from __future__ import annotations

import pytest
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure

from harness.measure.devices import POWER_CAP
from harness.records import ArmRole, Budget, DeviceState, WarningKind

# --- throttled epochs ----------------------------------------------------------------------------


def throttled(*reasons: str) -> DeviceState:
    return DeviceState(throttled_by=reasons)


def test_throttled_epochs_are_dropped_measured_again_and_counted() -> None:
    # read twice before the first epoch, and after each
    asked = iter([throttled(), throttled(), throttled(), throttled("hot"), throttled("hot")])
    now = [throttled()]
    device = FakeDevice(lambda name, _: TIMES_S[name] * (5 if now[0].throttled_by else 1))

    def state(_: float) -> DeviceState:
        was, now[0] = now[0], next(asked, throttled())
        return was

    device.state = state
    sampled = measure(device)
    assert latency_of(sampled).throttled_epochs == 2
    assert len(latency_of(sampled).process_of_epoch) == ROOMY.min_epochs
    subject = latency_of(sampled).arms[0]
    assert subject.role is ArmRole.SUBJECT
    assert max(subject.wall_s) == pytest.approx(3e-6)
    # which it was in the midst of the samples only
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.THROTTLED
    assert "2 epochs" in warning.advice
    assert "(hot)" in warning.advice


def test_a_device_that_is_always_throttled_has_no_latency() -> None:
    device = FakeDevice(state=lambda _: throttled(POWER_CAP, "hot"))
    sampled = measure(device)
    assert sampled.latency is None
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.TOO_FEW_SAMPLES
    assert "(hot, power cap)" in warning.advice
    assert device.now() < 3 * ROOMY.max_epochs * 0.03


def test_a_lasting_power_cap_drops_no_epoch_and_is_a_warning() -> None:
    sampled = measure(FakeDevice(state=lambda _: throttled(POWER_CAP)))
    latency = latency_of(sampled)
    assert (latency.throttled_epochs, len(latency.process_of_epoch)) == (0, ROOMY.min_epochs)
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.THROTTLED
    assert warning.advice.startswith("the device was throttled (power cap)")


# --- the fastest copy is the ceiling -------------------------------------------------------------


def test_the_ceiling_is_the_time_of_a_copy_of_the_bytes_that_must_move() -> None:
    latency = latency_of(measure(FakeDevice(), model_bytes=4000, copied_bytes=2000))
    # a copy of as many bytes would take 2 us, the subject takes 3
    assert latency.ceiling_ratio == pytest.approx(2 / 3)
    assert latency.model_bytes == 4000
    assert latency_of(measure(FakeDevice(), copied_bytes=0)).ceiling_ratio is None
    assert latency_of(measure(FakeDevice(), ("subject", "reference"))).ceiling_ratio is None


@pytest.mark.parametrize(("copy_s", "kept"), [(1e-6, "copy"), (3e-6, "other copy")])
def test_the_faster_of_two_copies_is_kept(copy_s: float, kept: str) -> None:
    times_s = {**TIMES_S, "copy": copy_s, "other copy": 2e-6}
    device = FakeDevice(lambda name, _: times_s[name])
    sampled = measure(device, ("subject", "reference", "copy", "other copy"))
    assert [arm.name for arm in latency_of(sampled).arms] == ["subject", "reference", kept]
    assert latency_of(sampled).ceiling_ratio == pytest.approx(times_s[kept] / 3e-6)


@pytest.mark.parametrize(("copy_s", "valid"), [(1e-6, True), (3.1e-6, True), (4e-6, False)])
def test_a_time_below_that_of_a_copy_is_invalid_with_a_warning(copy_s: float, valid: bool) -> None:
    sampled = measure(FakeDevice(lambda name, _: copy_s if name == "copy" else 3e-6))
    assert latency_of(sampled).is_valid is valid
    assert (WarningKind.FASTER_THAN_COPY in kinds(sampled)) is not valid


def test_a_time_below_that_of_a_copy_by_less_than_the_noise_is_valid() -> None:
    device = FakeDevice()

    def script(name: str, _: int) -> float:
        fast = name == "subject" and device.placements % 2
        return 1e-6 if fast else 3e-6 if name == "subject" else 2e-6

    device.script = script
    sampled = measure(device, budget=Budget(min_epochs=4, max_epochs=4, limit_s=1e9))
    latency = latency_of(sampled)
    assert latency.ceiling_ratio is not None
    assert latency.ceiling_ratio > 1.05
    assert latency.is_valid
    assert WarningKind.FASTER_THAN_COPY not in kinds(sampled)

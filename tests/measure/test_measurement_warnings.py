"""Warnings: each kind is raised where it should be, and not where it should not."""

from __future__ import annotations

import pytest
from fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure

from harness.measure.latency import Sampled
from harness.measure.measurement_warnings import warnings_of
from harness.records import Budget, Clock, Condition, Latency, MeasurementWarning, WarningKind

CALM = Condition(governor="performance", on_battery=False, throttled_by=(), other_processes=0)


def calm() -> Latency:
    return latency_of(measure(FakeDevice()))


def warnings(
    latency: Latency | None = None,
    *,
    before: Condition = CALM,
    after: Condition = CALM,
    wall_s: float = 1.0,
) -> tuple[MeasurementWarning, ...]:
    """Warnings about a calm latency, unless one is given."""
    return warnings_of(latency or calm(), ROOMY, before, after, wall_s, stepped=0)


def advice(sampled: Sampled, kind: WarningKind) -> str | None:
    """Return what a measurement warning of a kind says, or None if there is none."""
    return next((each.advice for each in sampled.warnings if each.kind is kind), None)


def test_a_calm_measurement_raises_no_doubt() -> None:
    assert measure(FakeDevice(state=lambda _: CALM)).warnings == ()
    assert warnings() == ()


def test_where_nothing_can_be_read_there_is_no_doubt_about_it() -> None:
    assert warnings(before=Condition(), after=Condition()) == ()


# --- too little to go by -------------------------------------------------------------------------


def test_too_few_epochs_are_said_with_how_many_and_why() -> None:
    sampled = measure(FakeDevice(), budget=Budget(limit_s=0.0))
    assert advice(sampled, WarningKind.TOO_FEW_SAMPLES) == (
        "1 of the 4 epochs that an interval needs were sampled in 0 s; give the case more time"
    )
    assert advice(sampled, WarningKind.NOT_CONVERGED) is None  # one warning says it


def test_a_wide_interval_is_said_with_how_many_epochs_it_is_over() -> None:
    device = FakeDevice()
    device.script = lambda name, _: (
        TIMES_S[name] * (2 if name == "subject" and device.placements % 2 else 1)
    )
    sampled = measure(device, budget=Budget(min_epochs=2, max_epochs=7, limit_s=1e9))
    said = advice(sampled, WarningKind.NOT_CONVERGED)
    assert said is not None
    assert "wider than ±1.0% after 7 epochs" in said


def test_no_usable_sample_is_said_with_all_its_causes() -> None:
    hot = Condition(throttled_by=("hot",))
    (warning,) = warnings_of(None, ROOMY, CALM, hot, 1.0, stepped=3)
    assert warning.kind is WarningKind.TOO_FEW_SAMPLES
    assert warning.advice == (
        "no sample was usable: in 3 samples the clock did not move forward and the device was "
        "throttled (hot); nothing was measured"
    )


# --- a change of speed ---------------------------------------------------------------------------


def changing(at: int, factor: float, *, names: tuple[str, ...]) -> FakeDevice:
    """Return a device on which names take ``factor`` times as long from a placement on."""
    device = FakeDevice()
    device.script = lambda name, _: (
        TIMES_S[name] * (factor if name in names and device.placements > at else 1)
    )
    return device


EIGHT = Budget(min_epochs=8, max_epochs=8, limit_s=1e9)


@pytest.mark.parametrize("factor", [0.5, 1.2])
def test_a_guest_that_changes_its_speed_half_way_is_doubted(factor: float) -> None:
    sampled = measure(changing(4, factor, names=("subject",)), budget=EIGHT)
    said = advice(sampled, WarningKind.CHANGED_SPEED)
    assert said is not None
    assert f"{factor:.2f} times as long in the later epochs" in said
    assert "beside the same reference" in said


def test_without_a_reference_the_doubt_claims_none() -> None:
    device = changing(4, 1.2, names=("subject",))
    said = advice(measure(device, ("subject",), EIGHT), WarningKind.CHANGED_SPEED)
    assert said is not None
    assert "with no reference to compare it with" in said


def test_a_steady_guest_has_not_changed_its_speed() -> None:
    assert WarningKind.CHANGED_SPEED not in kinds(measure(FakeDevice(), budget=EIGHT))


def test_a_machine_that_changes_its_speed_for_all_is_no_doubt_about_the_guest() -> None:
    device = changing(4, 1.5, names=tuple(TIMES_S))
    assert WarningKind.CHANGED_SPEED not in kinds(measure(device, budget=EIGHT))


def test_a_change_too_small_to_matter_is_none() -> None:
    device = changing(4, 1.04, names=("subject",))
    assert WarningKind.CHANGED_SPEED not in kinds(measure(device, budget=EIGHT))


def test_a_change_within_the_spread_is_none() -> None:
    device = FakeDevice()
    # 1 2 1 2 | 2 1 2 2: their middles differ, and their intervals overlap
    slow = {2, 4, 5, 7, 8}
    device.script = lambda name, _: (
        TIMES_S[name] * (2 if name == "subject" and device.placements in slow else 1)
    )
    assert WarningKind.CHANGED_SPEED not in kinds(measure(device, budget=EIGHT))


# --- something else used the processor -----------------------------------------------------------


@pytest.mark.parametrize(("waiting_ratio", "doubted"), [(1.0, False), (1.04, False), (1.3, True)])
def test_wall_time_beyond_cpu_time_is_noise(waiting_ratio: float, doubted: bool) -> None:
    sampled = measure(FakeDevice(waiting_ratio=waiting_ratio))
    assert (WarningKind.NOISY in kinds(sampled)) is doubted
    # it is the CPU time that is given
    assert latency_of(sampled).per_call_s.value == pytest.approx(3e-6)


def test_where_the_wall_is_the_clock_there_is_nothing_to_compare_it_with() -> None:
    device = FakeDevice(clock=Clock.WALL, waiting_ratio=3.0)
    assert WarningKind.NOISY not in kinds(measure(device))


@pytest.mark.parametrize(("stolen_s", "doubted"), [(0.0, False), (0.03, False), (0.1, True)])
def test_time_that_the_hypervisor_took_is_noise(stolen_s: float, doubted: bool) -> None:
    before, after = Condition(steal_s=50.0), Condition(steal_s=50.0 + stolen_s)
    found = warnings(before=before, after=after, wall_s=2.0)
    assert bool(found) is doubted
    if doubted:
        assert found[0].kind is WarningKind.NOISY
        assert "the hypervisor gave 5% of a CPU's time to other machines" in found[0].advice


def test_steal_is_taken_over_the_time_of_the_measurement() -> None:
    device = FakeDevice(state=lambda now_s: Condition(steal_s=100.0 + 0.5 * now_s))
    said = advice(measure(device), WarningKind.NOISY)
    assert said is not None
    assert "50% of a CPU's time" in said


# --- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("call_s", "doubted"), [(100e-9, True), (290e-9, True), (1e-6, False)])
def test_a_call_as_short_as_the_loop_around_it_is_doubted(call_s: float, doubted: bool) -> None:
    sampled = measure(FakeDevice(lambda _, __: call_s))
    said = advice(sampled, WarningKind.TIMER_TOO_COARSE)
    assert (said is not None) is doubted
    if said is not None:
        assert f"a call takes {call_s * 1e9:.0f} ns, of which the loop around it" in said


def test_on_a_gpu_no_loop_of_the_host_is_in_the_time() -> None:
    sampled = measure(FakeDevice(lambda _, __: 100e-9, clock=Clock.CUDA_EVENT))
    assert WarningKind.TIMER_TOO_COARSE not in kinds(sampled)


@pytest.mark.parametrize(("step_s", "doubted"), [(1e-9, False), (1e-6, False), (15e-3, True)])
def test_a_clock_of_coarse_steps_is_doubted(step_s: float, doubted: bool) -> None:
    device = FakeDevice(lambda _, __: 1e-3, step_s=step_s)  # one call is a sample
    said = advice(measure(device), WarningKind.TIMER_TOO_COARSE)
    assert (said is not None) is doubted
    if said is not None:
        assert "the clock moves in steps of 15000000 ns, 1500% of a sample" in said


# --- the system's work ---------------------------------------------------------------------------


@pytest.mark.parametrize(("per_call", "doubted"), [(0.0, False), (0.5, False), (2.0, True)])
def test_a_page_fault_in_every_call_is_doubted(per_call: float, doubted: bool) -> None:
    device = FakeDevice()

    def faults() -> int:
        return round(per_call * sum(calls for _, calls in device.sampled))

    said = advice(measure(device, faults=faults), WarningKind.PAGE_FAULTS)
    assert (said is not None) is doubted
    assert said is None or said.startswith("2 page faults per call")


# --- the state of the machine --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("governor", "doubted"),
    [
        ("powersave", True),
        ("conservative", True),
        ("performance", False),
        ("schedutil", False),
        (None, False),
    ],
)
def test_a_governor_that_saves_power_is_doubted(governor: str | None, doubted: bool) -> None:
    found = warnings(after=Condition(governor=governor))
    assert [each.kind for each in found] == [WarningKind.POWER_SAVING] * doubted
    assert all(f"governor is {governor!r}" in each.advice for each in found)


@pytest.mark.parametrize(("on_battery", "doubted"), [(True, True), (False, False), (None, False)])
def test_a_machine_on_its_battery_is_doubted(on_battery: bool | None, doubted: bool) -> None:
    found = warnings(after=Condition(on_battery=on_battery))
    assert [each.kind for each in found] == [WarningKind.POWER_SAVING] * doubted
    assert all("on its battery" in each.advice for each in found)


@pytest.mark.parametrize(("others", "doubted"), [(2, True), (0, False), (None, False)])
def test_other_processes_on_the_gpu_are_doubted(others: int | None, doubted: bool) -> None:
    found = warnings(after=Condition(other_processes=others))
    assert [each.kind for each in found] == [WarningKind.SHARED_GPU] * doubted
    assert all(each.advice.startswith("2 other processes") for each in found)


def test_a_device_that_was_throttled_before_and_after_names_each_reason_once() -> None:
    found = warnings(
        before=Condition(throttled_by=("hot", "power")), after=Condition(throttled_by=("hot",))
    )
    (warning,) = found
    assert warning.kind is WarningKind.THROTTLED
    assert "(hot, power)" in warning.advice


# --- issuing takes longer than working -----------------------------------------------------------


@pytest.mark.parametrize(
    ("launch_s", "doubted"), [(None, False), (2e-6, False), (2.9e-6, False), (9e-6, True)]
)
def test_a_host_slower_than_the_device_is_doubted(launch_s: float | None, doubted: bool) -> None:
    device = FakeDevice(clock=Clock.CUDA_EVENT, launch_s=launch_s)
    said = advice(measure(device), WarningKind.LAUNCH_BOUND)
    assert (said is not None) is doubted
    if said is not None:
        assert "the host takes 9.0 us to issue what the device does in 3.0" in said

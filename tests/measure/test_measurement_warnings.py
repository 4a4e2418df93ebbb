"""Each kind of warning is given where it should be, and nowhere else; the texts are golden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure
from factories.golden import assert_golden

from harness.measure.latency import Sampled
from harness.measure.measurement_warnings import nothing_measured, warnings_of
from harness.records import Budget, Clock, DeviceState, Latency, MeasurementWarning, WarningKind

CALM = DeviceState(governor="performance", on_battery=False, throttled_by=(), other_processes=0)


def calm() -> Latency:
    return latency_of(measure(FakeDevice()))


def warnings(
    latency: Latency | None = None,
    *,
    before: DeviceState = CALM,
    after: DeviceState = CALM,
    wall_s: float = 1.0,
    **more: Any,
) -> tuple[MeasurementWarning, ...]:
    """Warnings about a calm latency, unless one is given."""
    seen = replace(latency or calm(), before=before, after=after)
    return warnings_of(seen, ROOMY, wall_s, **more)


def advice(sampled: Sampled, kind: WarningKind) -> str | None:
    """Return the advice of a warning of that kind, or None if there is none."""
    return next((warning.advice for warning in sampled.warnings if warning.kind is kind), None)


def test_a_calm_measurement_has_no_warning() -> None:
    assert measure(FakeDevice(state=lambda _: CALM)).warnings == ()
    assert warnings() == ()
    assert warnings(before=DeviceState(), after=DeviceState()) == ()  # nothing can be read


# --- a change of speed ---------------------------------------------------------------------------


def wide() -> Sampled:
    device = FakeDevice()
    device.script = lambda name, _: (
        TIMES_S[name] * (2 if name == "subject" and device.placements % 2 else 1)
    )
    return measure(device, budget=Budget(min_epochs=2, max_epochs=7, limit_s=1e9))


def changing(at: int, factor: float, *, names: tuple[str, ...]) -> FakeDevice:
    """Return a device on which names take ``factor`` times as long from a placement on."""
    device = FakeDevice()
    device.script = lambda name, _: (
        TIMES_S[name] * (factor if name in names and device.placements > at else 1)
    )
    return device


EIGHT = Budget(min_epochs=8, max_epochs=8, limit_s=1e9)


@pytest.mark.parametrize(
    ("factor", "names", "is_warned"),
    [
        (0.5, ("subject",), True),
        (1.2, ("subject",), True),
        (1.04, ("subject",), False),
        (1.0, ("subject",), False),
        (1.5, tuple(TIMES_S), False),  # the machine changed its speed
    ],
)
def test_an_implementation_that_changes_its_speed_has_a_warning(
    factor: float, names: tuple[str, ...], is_warned: bool
) -> None:
    sampled = measure(changing(4, factor, names=names), budget=EIGHT)
    found = advice(sampled, WarningKind.CHANGED_SPEED)
    assert (f"{factor:.2f} times" in (found or "")) is (found is not None) is is_warned


def test_a_change_of_speed_within_the_spread_has_no_warning() -> None:
    device = FakeDevice()
    # 1 2 1 2 | 2 1 2 2: their middles differ, and their intervals overlap
    slow = {2, 4, 5, 7, 8}
    device.script = lambda name, _: (
        TIMES_S[name] * (2 if name == "subject" and device.placements in slow else 1)
    )
    assert WarningKind.CHANGED_SPEED not in kinds(measure(device, budget=EIGHT))


# --- something else used the processor -----------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "waiting_ratio", "is_warned"),
    [
        (Clock.THREAD_CPU, 1.04, False),
        (Clock.THREAD_CPU, 1.3, True),
        (Clock.WALL, 3.0, False),  # there is no CPU time to compare with
    ],
)
def test_wall_time_beyond_cpu_time_has_a_warning(
    clock: Clock, waiting_ratio: float, is_warned: bool
) -> None:
    sampled = measure(FakeDevice(clock=clock, waiting_ratio=waiting_ratio))
    assert (WarningKind.NOISY in kinds(sampled)) is is_warned
    expected_s = 3e-6 * (waiting_ratio if clock is Clock.WALL else 1)
    assert latency_of(sampled).per_call_s.value == pytest.approx(expected_s)


@pytest.mark.parametrize(("stolen_s", "is_warned"), [(0.0, False), (0.03, False), (0.1, True)])
def test_time_taken_by_the_hypervisor_has_a_warning(stolen_s: float, is_warned: bool) -> None:
    before, after = DeviceState(steal_s=50.0), DeviceState(steal_s=50.0 + stolen_s)
    found = warnings(before=before, after=after, wall_s=2.0)
    assert bool(found) is is_warned
    if is_warned:
        assert found[0].kind is WarningKind.NOISY
        assert "5 %" in found[0].advice


# --- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call_s", "clock", "is_warned"),
    [
        (100e-9, Clock.THREAD_CPU, True),
        (290e-9, Clock.THREAD_CPU, True),
        (1e-6, Clock.THREAD_CPU, False),
        (100e-9, Clock.CUDA_EVENT, False),  # the loop of the host is not in the time
    ],
)
def test_a_call_as_short_as_the_loop_around_it_has_a_warning(
    call_s: float, clock: Clock, is_warned: bool
) -> None:
    sampled = measure(FakeDevice(lambda _, __: call_s, clock=clock))
    assert (WarningKind.TIMER_TOO_COARSE in kinds(sampled)) is is_warned


@pytest.mark.parametrize(("step_s", "is_warned"), [(1e-9, False), (1e-6, False), (15e-3, True)])
def test_a_coarse_clock_has_a_warning(step_s: float, is_warned: bool) -> None:
    device = FakeDevice(lambda _, __: 1e-3, step_s=step_s)  # one call is a sample
    assert (WarningKind.TIMER_TOO_COARSE in kinds(measure(device))) is is_warned


# --- the system's work ---------------------------------------------------------------------------


@pytest.mark.parametrize(("per_call", "is_warned"), [(0.0, False), (0.5, False), (2.0, True)])
def test_a_page_fault_per_call_has_a_warning(per_call: float, is_warned: bool) -> None:
    device = FakeDevice()

    def faults() -> int:
        return round(per_call * sum(calls for _, calls in device.sampled))

    assert (WarningKind.PAGE_FAULTS in kinds(measure(device, faults=faults))) is is_warned


# --- the state of the machine --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ({"governor": "powersave"}, WarningKind.POWER_SAVING),
        ({"governor": "conservative"}, WarningKind.POWER_SAVING),
        ({"governor": "performance"}, None),
        ({"governor": "schedutil"}, None),
        ({"on_battery": True}, WarningKind.POWER_SAVING),
        ({"on_battery": False}, None),
        ({"other_processes": 2}, WarningKind.SHARED_GPU),
        ({"other_processes": 0}, None),
    ],
    ids=str,
)
def test_the_state_of_the_machine_may_have_a_warning(
    condition: dict[str, Any], kind: WarningKind | None
) -> None:
    found = warnings(after=DeviceState(**condition))
    assert [warning.kind for warning in found] == ([] if kind is None else [kind])


def test_a_device_that_was_throttled_before_and_after_names_each_reason_once() -> None:
    found = warnings(
        before=DeviceState(throttled_by=("hot", "power")), after=DeviceState(throttled_by=("hot",))
    )
    (warning,) = found
    assert warning.kind is WarningKind.THROTTLED
    assert "(hot, power)" in warning.advice


# --- issuing takes longer than working -----------------------------------------------------------


# --- the texts -----------------------------------------------------------------------------------


def every_warning() -> Iterator[MeasurementWarning]:
    latency, hot = calm(), DeviceState(throttled_by=("hot", "power"))
    yield from measure(FakeDevice(), budget=Budget(limit_s=0.0)).warnings
    yield from wide().warnings
    yield nothing_measured(hot, stepped=3)
    for names in (("subject", "reference"), ("subject",)):
        yield from measure(changing(4, 1.2, names=("subject",)), names, EIGHT).warnings
    yield from measure(FakeDevice(waiting_ratio=1.3)).warnings
    yield from warnings(before=DeviceState(steal_s=50.0), after=DeviceState(steal_s=50.1))
    yield from measure(FakeDevice(lambda _, __: 100e-9)).warnings
    yield from warnings(replace(latency, resolution_s=15e-3))
    yield from warnings(stepped=3)
    yield from warnings(replace(latency, minor_faults_ratio=2.0))
    yield from warnings(replace(latency, is_valid=False, ceiling_ratio=1.5))
    yield from warnings(replace(latency, throttled_epochs=2), after=hot)
    yield from warnings(after=DeviceState(governor="powersave"))
    yield from warnings(after=DeviceState(on_battery=True))
    yield from warnings(replace(latency, others_ratio=0.4))
    yield from warnings(left_over=0.3)
    yield from warnings(after=DeviceState(other_processes=2))
    yield from warnings(replace(latency, uneven_ratio=3.0))
    yield from warnings(replace(latency, uneven_ratio=0.5))
    yield from warnings(replace(latency, uneven_ratio=3.0, reference=None))
    yield from warnings(replace(latency, clock=Clock.CUDA_EVENT, launch_s=9e-6))


def test_warnings_read_as_in_the_golden_file() -> None:
    found = list(every_warning())
    # not about a latency
    elsewhere = {
        WarningKind.CACHED_RESULT,
        WarningKind.MEMORY_NOT_COUNTED,
        WarningKind.NOT_COUNTED,
    }
    assert {warning.kind for warning in found} == {*WarningKind} - elsewhere
    text = "\n".join(f"{warning.kind}: {warning.advice}" for warning in found)
    assert_golden(text, Path(__file__).parent / "golden" / "warnings.txt")

"""Each kind of warning is given where it should be, and nowhere else; the texts are golden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure
from factories.golden import assert_golden

from harness.measure import nothing_measured, warnings_of
from harness.records import Budget, Clock, DeviceState, MeasurementWarning, WarningKind

CALM = DeviceState(governor="performance", on_battery=False, throttled_by=(), other_processes=0)
HOT = DeviceState(throttled_by=("hot", "power"))
EIGHT = Budget(min_epochs=8, max_epochs=8, limit_s=1e9)


def warned(**changes: Any) -> tuple[MeasurementWarning, ...]:
    """Return the warnings about a calm latency of 3 us, but for some changes."""
    given = {name: changes.pop(name) for name in ("stepped", "left_over") if name in changes}
    wall_s = changes.pop("wall_s", 1.0)
    latency = replace(
        latency_of(measure(FakeDevice())), **{"before": CALM, "after": CALM} | changes
    )
    return warnings_of(latency, ROOMY, wall_s, **given)


def stolen(seconds: float, wall_s: float = 1.0) -> dict[str, Any]:
    before, after = (DeviceState(steal_s=50.0 + more_s) for more_s in (0.0, seconds))
    return {"before": before, "after": after, "wall_s": wall_s}


CHANGES: list[tuple[WarningKind | None, dict[str, Any]]] = [
    (None, {}),
    (None, {"before": DeviceState(), "after": DeviceState()}),  # nothing can be read
    (WarningKind.NOISY, stolen(0.1)),
    (None, {"resolution_s": 1e-6}),
    (WarningKind.TIMER_TOO_COARSE, {"resolution_s": 15e-3}),
    (WarningKind.CLOCK_STEPPED, {"stepped": 3}),
    (None, {"minor_faults_ratio": 0.5}),
    (WarningKind.PAGE_FAULTS, {"minor_faults_ratio": 2.0}),
    (WarningKind.FASTER_THAN_COPY, {"is_valid": False, "ceiling_ratio": 1.5}),
    (WarningKind.THROTTLED, {"throttled_epochs": 2, "after": HOT}),
    (None, {"after": DeviceState(governor="schedutil")}),
    (WarningKind.POWER_SAVING, {"after": DeviceState(governor="powersave")}),
    (WarningKind.POWER_SAVING, {"after": DeviceState(on_battery=True)}),
    (WarningKind.OTHER_THREADS, {"others_ratio": 0.4}),
    (WarningKind.OTHER_THREADS, {"left_over": 0.3, "is_valid": False}),
    (WarningKind.SHARED_GPU, {"after": DeviceState(other_processes=2)}),
    (WarningKind.UNEVEN, {"uneven_ratio": 3.0}),
    (WarningKind.UNEVEN, {"uneven_ratio": 0.5}),
    (WarningKind.UNEVEN, {"uneven_ratio": 3.0, "reference": None}),
    (None, {"clock": Clock.CUDA_EVENT, "launch_s": 2e-6}),
    (WarningKind.LAUNCH_BOUND, {"clock": Clock.CUDA_EVENT, "launch_s": 9e-6}),
]


@pytest.mark.parametrize(("kind", "changes"), CHANGES, ids=str)
def test_one_change_of_a_calm_measurement_has_one_warning_or_none(
    kind: WarningKind | None, changes: dict[str, Any]
) -> None:
    assert [warning.kind for warning in warned(**changes)] == ([kind] if kind else [])


def changing(factor: float, names: tuple[str, ...], slow: set[int]) -> FakeDevice:
    """Return a device on which names take ``factor`` times as long at some placements."""
    device = FakeDevice()
    device.script = lambda name, _: (
        TIMES_S[name] * (factor if name in names and device.placements in slow else 1)
    )
    return device


LATER = {5, 6, 7, 8}


@pytest.mark.parametrize(
    ("factor", "names", "slow", "is_warned"),
    [
        (1.2, ("subject",), LATER, True),
        (1.04, ("subject",), LATER, False),
        (1.5, tuple(TIMES_S), LATER, False),  # the machine changed its speed
        # 1 2 1 2 | 2 1 2 2: their middles differ, and their intervals overlap
        (2.0, ("subject",), {2, 4, 5, 7, 8}, False),
    ],
)
def test_an_implementation_that_changes_its_speed_has_a_warning(
    factor: float, names: tuple[str, ...], slow: set[int], is_warned: bool
) -> None:
    sampled = measure(changing(factor, names, slow), budget=EIGHT)
    found = [w.advice for w in sampled.warnings if w.kind is WarningKind.CHANGED_SPEED]
    assert [f"{factor:.2f} times" in advice for advice in found] == [True] * is_warned


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        (FakeDevice(waiting_ratio=1.04), None),
        (FakeDevice(waiting_ratio=1.3), WarningKind.NOISY),
        # there is no CPU time to compare with
        (FakeDevice(waiting_ratio=3.0, clock=Clock.WALL), None),
        (FakeDevice(lambda *_: 290e-9), WarningKind.TIMER_TOO_COARSE),
        (FakeDevice(lambda *_: 1e-6), None),
    ],
)
def test_a_busy_machine_and_a_call_as_short_as_its_loop_have_a_warning(
    device: FakeDevice, kind: WarningKind | None
) -> None:
    assert kinds(measure(device)) == ({kind} if kind else set())


def test_warnings_read_as_in_the_golden_file() -> None:
    found = [
        *measure(FakeDevice(), budget=Budget(limit_s=0.0)).warnings,
        nothing_measured(HOT, stepped=3),
        *measure(changing(1.2, ("subject",), LATER), budget=EIGHT).warnings,
        *measure(changing(1.2, ("subject",), LATER), ("subject",), EIGHT).warnings,
        *measure(FakeDevice(waiting_ratio=1.3)).warnings,
        *measure(FakeDevice(lambda *_: 100e-9)).warnings,
        *(warning for kind, changes in CHANGES if kind for warning in warned(**changes)),
    ]
    # not about a latency
    kind = WarningKind
    elsewhere = {kind.CACHED_RESULT, kind.MEMORY_NOT_COUNTED, kind.NOT_COUNTED}
    assert {warning.kind for warning in found} == {*WarningKind} - elsewhere
    text = "\n".join(f"{warning.kind}: {warning.advice}" for warning in found)
    assert_golden(text, Path(__file__).parent / "golden" / "warnings.txt")

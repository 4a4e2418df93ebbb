"""Latencies sampled on a device with known times: warm-up, epochs, and which times are valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.fake_device import (
    CALL_S,
    ROOMY,
    TIMES_S,
    FakeDevice,
    kinds,
    latency_of,
    measure,
    payer,
)
from factories.golden import assert_golden

from harness.measure import POWER_CAP, SAMPLE_S, Sampled, Sampler, nothing_measured, warnings_of
from harness.records import (
    Budget,
    Cache,
    Clock,
    DeviceState,
    MeasurementWarning,
    WarningKind,
)

ONLY_SUBJECT = ("subject",)
EVENTS = Clock.CUDA_EVENT


def slower(
    factor: float, slow: Callable[[int], object], names: Sequence[str] = ("subject",)
) -> FakeDevice:
    """Return a device that takes ``factor`` as long for some names at some places in memory."""
    device = FakeDevice()
    device.script = lambda name, _: (
        TIMES_S[name] * (factor if name in names and slow(device.placements) else 1)
    )
    return device


def wobbling() -> FakeDevice:
    return slower(2, lambda place: place % 2 == 0)


def epochs_of(sampled: Sampled) -> int:
    return len(latency_of(sampled).process_of_epoch)


def time_and_ratio(sampled: Sampled) -> tuple[float, float | None]:
    found = latency_of(sampled)
    return found.per_call_s.value, found.reference_ratio and found.reference_ratio.value


# --- the warm-up ---------------------------------------------------------------------------------

LIMIT_S = 2.0


def warmed_up(
    script: Callable[[str, int], float], copies: int = 1
) -> tuple[Sampler, FakeDevice, int]:
    """Warm up the subject; return its sampler, its device and the number of calls made."""
    device = FakeDevice(script, makes_each=True)
    (subject,) = device.timed_calls("subject")
    sampler = Sampler(subject, device, Cache.WARM if copies == 1 else Cache.ROTATE)
    sampler.bind([()] * copies)
    return sampler, device, sampler.warm_up(LIMIT_S)


@pytest.mark.parametrize(
    ("script", "copies", "calls"),
    [
        (lambda _, __: 1e-3, 1, 1 + 3),
        (lambda _, n: 9e-3 if n % 2 else 1e-3, 1, 1 + 3),  # a slower call does not count
        (lambda _, n: 1e-3 * 0.9 ** min(n, 14), 1, 15 + 3),  # it gets faster until it settles
        (lambda _, n: 0.09 * 0.9**n, 1, 3),  # it never settles: a tenth of the limit
        (lambda _, __: 3.0, 1, 1),  # longer than the limit
        (lambda _, __: 1e-3, 50, 50),  # a turn of all copies
        (lambda _, __: 0.1, 4000, 20),  # which ends at the limit
    ],
)
def test_a_call_is_warm_after_three_more_that_are_not_faster(
    script: Callable[[str, int], float], copies: int, calls: int
) -> None:
    _, device, made = warmed_up(script, copies)
    assert made == calls
    assert len(set(device.called)) == min(copies, calls)


@pytest.mark.parametrize("per_sample", [1, 3, 150, 2000, 1 / 2, 1 / 5000])
def test_as_many_calls_as_fill_a_sample_are_timed_at_once(per_sample: float) -> None:
    assert warmed_up(lambda _, __: SAMPLE_S / per_sample)[0].calls == max(per_sample, 1)


def test_a_preempted_try_does_not_make_the_samples_short() -> None:
    # four calls find it warm, then come five tries of a fifth of a sample
    sampler, _, _ = warmed_up(lambda _, n: 1e-3 if n in range(4, 100) else SAMPLE_S / 150)
    assert sampler.calls == 150


# --- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.1, 0.999, 1.0, 40.0])
def test_the_true_ratio_is_recovered(factor: float) -> None:
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    assert time_and_ratio(measure(device)) == pytest.approx((2e-6 * factor, factor))


def test_without_a_reference_the_time_converges() -> None:
    latency = latency_of(measure(FakeDevice(), ("subject", "copy")))
    assert (latency.reference, latency.reference_ratio, latency.converged) == (None, None, True)
    assert latency.per_call_s.value == pytest.approx(3e-6)


def test_a_device_without_a_cpu_clock_is_timed_by_the_wall() -> None:
    latency = latency_of(measure(FakeDevice(clock=EVENTS, waiting_ratio=2.0, launch_s=5e-6)))
    assert (latency.clock, latency.arms[0].cpu_s) == (EVENTS, None)
    assert latency.per_call_s.value == pytest.approx(6e-6)
    assert latency.launch_s == pytest.approx(5e-6)
    assert latency_of(measure(FakeDevice())).launch_s is None


# --- sampling ------------------------------------------------------------------------------------


def test_every_arm_is_sampled_once_per_round_in_changing_order() -> None:
    device = FakeDevice()
    latency = latency_of(measure(device))
    count = sum(len(arm.wall_s) for arm in latency.arms)
    names = [name for name, _ in device.sampled[-count:]]  # without the warm-up
    rounds = [tuple(names[at : at + 3]) for at in range(0, count, 3)]
    assert len(rounds) >= 4 * ROOMY.min_epochs
    assert all(set(names_of_round) == set(TIMES_S) for names_of_round in rounds)
    assert len(set(rounds)) == 6
    assert len({tuple(Counter(arm.epochs).items()) for arm in latency.arms}) == 1


@pytest.mark.parametrize(("faulty", "expected"), [("subject", 2.0), ("reference", 0.0)])
def test_page_faults_are_those_of_a_call_of_the_subject(faulty: str, expected: float) -> None:
    device = FakeDevice()

    def faults() -> int:
        outside_samples = len(device.called) - len(device.sampled)
        in_samples = sum(calls for name, calls in device.sampled if name == faulty)
        return 1_000_000 * outside_samples + 2 * in_samples

    assert latency_of(measure(device, faults=faults)).minor_faults_ratio == pytest.approx(expected)


def test_all_epochs_have_as_many_samples_where_the_time_allows() -> None:
    budget = Budget(min_epochs=4, max_epochs=4, limit_s=2.0)
    subject = latency_of(measure(FakeDevice(lambda *_: 20e-3), budget=budget)).arms[0]
    assert Counter(subject.epochs) == dict.fromkeys(range(4), 4)


def test_each_epoch_has_its_inputs_in_a_new_place() -> None:
    device = FakeDevice()  # it holds what is bound, so that no place is free to be used again
    sampled = measure(device, ONLY_SUBJECT, tensors=(torch.ones(8),))
    (bound,) = device.prepared[-1][1]  # another tensor, which the call may change
    assert sampled.tensors[0] is not bound
    assert sampled.tensors[0].data_ptr() == bound.data_ptr()
    places = {tensor.data_ptr() for _, (tensor,) in device.prepared}
    assert len(places) == len(device.prepared) == ROOMY.min_epochs


# --- when it stops -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "budget", "epochs", "kind"),
    [
        (FakeDevice(), ROOMY, 4, None),
        (wobbling(), Budget(max_epochs=7, limit_s=1e9), 7, WarningKind.NOT_CONVERGED),
        (slower(2, lambda place: place % 2), Budget(limit_s=0.2), 7, WarningKind.NOT_CONVERGED),
        (FakeDevice(), Budget(limit_s=0.0), 1, WarningKind.TOO_FEW_SAMPLES),
    ],
    ids=["narrow", "wide", "no time left", "no time"],
)
def test_sampling_stops_when_the_interval_is_narrow_or_the_budget_spent(
    device: FakeDevice, budget: Budget, epochs: int, kind: WarningKind | None
) -> None:
    sampled = measure(device, budget=budget)
    assert epochs_of(sampled) == epochs
    assert kinds(sampled) == ({kind} if kind else set())
    assert latency_of(sampled).converged is (kind is None)
    assert (latency_of(sampled).per_call_s.high == float("inf")) is (epochs == 1)
    assert device.now() < budget.limit_s + 0.1


# --- clocks that do not move forward -------------------------------------------------------------


def test_samples_with_a_clock_set_back_are_dropped_with_a_warning() -> None:
    device = FakeDevice(set_by_s=lambda number: -3600.0 if number in {100, 140} else 0.0)
    sampled = measure(device)
    assert time_and_ratio(sampled) == pytest.approx((3e-6, 1.5))
    assert min(min(arm.wall_s) for arm in latency_of(sampled).arms) > 0
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.CLOCK_STEPPED
    assert "2 samples" in warning.advice


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
    assert (latency_of(sampled).throttled_epochs, epochs_of(sampled)) == (2, ROOMY.min_epochs)
    assert max(latency_of(sampled).arms[0].wall_s) == pytest.approx(3e-6)
    (warning,) = sampled.warnings  # though it was throttled in the midst of the samples only
    assert warning.kind is WarningKind.THROTTLED
    assert "2 epochs were dropped because the device was throttled (hot)" in warning.advice


def test_a_device_that_is_always_throttled_has_no_latency_unless_its_power_is_capped() -> None:
    device = FakeDevice(state=lambda _: throttled(POWER_CAP, "hot"))
    sampled = measure(device)
    assert sampled.latency is None
    assert [warning.kind for warning in sampled.warnings] == [WarningKind.TOO_FEW_SAMPLES]
    assert "(hot, power cap)" in sampled.warnings[0].advice
    capped = measure(FakeDevice(state=lambda _: throttled(POWER_CAP)))
    assert (latency_of(capped).throttled_epochs, epochs_of(capped)) == (0, ROOMY.min_epochs)
    assert kinds(capped) == {WarningKind.THROTTLED}


# --- the fastest copy is the ceiling -------------------------------------------------------------


def test_the_ceiling_is_the_time_of_a_copy_of_the_bytes_that_must_move() -> None:
    latency = latency_of(measure(FakeDevice(), model_bytes=4000, copied_bytes=2000))
    # a copy of as many bytes would take 2 us, the subject takes 3
    assert latency.ceiling_ratio == pytest.approx(2 / 3)
    assert latency_of(measure(FakeDevice(), ("subject", "reference"))).ceiling_ratio is None


@pytest.mark.parametrize(("copy_s", "kept"), [(1e-6, "copy"), (3e-6, "other copy")])
def test_the_faster_of_two_copies_is_kept(copy_s: float, kept: str) -> None:
    times_s = {**TIMES_S, "copy": copy_s, "other copy": 2e-6}
    latency = latency_of(measure(FakeDevice(lambda name, _: times_s[name]), tuple(times_s)))
    assert [arm.name for arm in latency.arms] == ["subject", "reference", kept]
    assert latency.ceiling_ratio == pytest.approx(times_s[kept] / 3e-6)


@pytest.mark.parametrize(
    ("device", "is_valid"),
    [
        (FakeDevice(lambda name, _: 3.1e-6 if name == "copy" else 3e-6), True),
        (FakeDevice(lambda name, _: 4e-6 if name == "copy" else 3e-6), False),
        (slower(0.2, lambda place: place % 2), True),  # by less than the noise
        (FakeDevice(lambda name, _: 4e-6 if name == "copy" else 3e-6, clock=EVENTS), True),
    ],
    ids=["as fast", "faster", "noisy", "a short copy on a GPU"],
)
def test_a_time_below_that_of_a_copy_is_invalid_with_a_warning(
    device: FakeDevice, is_valid: bool
) -> None:
    sampled = measure(device, budget=Budget(min_epochs=4, max_epochs=4, limit_s=1e9))
    assert latency_of(sampled).is_valid is is_valid
    assert (WarningKind.FASTER_THAN_COPY in kinds(sampled)) is not is_valid


# --- work of other threads -----------------------------------------------------------------------

IDLE = "None"  # the name of the idle call in the fake device


def with_others(**others_s: float) -> Sampled:
    return measure(FakeDevice(others_s=others_s, waiting_ratio=4.0))


def test_an_implementation_of_several_threads_is_timed_by_the_process() -> None:
    sampled = with_others(subject=9e-6)
    latency = latency_of(sampled)
    assert (latency.clock, latency.is_valid) == (Clock.PROCESS_CPU, True)
    assert time_and_ratio(sampled) == pytest.approx((12e-6, 6.0))  # 12 us over 2 us
    assert latency.others_ratio == pytest.approx(0.75)
    # of samples from before it was noticed, too
    assert min(latency.arms[0].cpu_s or ()) == pytest.approx(12e-6)
    (warning,) = sampled.warnings  # waiting for a thread is not a busy machine
    assert warning.kind is WarningKind.OTHER_THREADS
    assert "75 %" in warning.advice


@pytest.mark.parametrize(
    ("others_s", "cache", "clock"),
    [
        (0.2e-6, Cache.WARM, Clock.THREAD_CPU),  # less than a tenth
        (0.5e-6, Cache.WARM, Clock.PROCESS_CPU),
        (4e-6, Cache.FLUSHED, Clock.THREAD_CPU),  # less than 5 us in a sample of one call
        (6e-6, Cache.FLUSHED, Clock.PROCESS_CPU),
    ],
)
def test_little_work_of_other_threads_is_ignored(
    others_s: float, cache: Cache, clock: Clock
) -> None:
    sampled = measure(FakeDevice(others_s={"subject": others_s}), cache=cache)
    assert latency_of(sampled).clock == clock
    is_thread = clock is Clock.THREAD_CPU
    assert (latency_of(sampled).others_ratio == 0.0) is is_thread
    assert (WarningKind.OTHER_THREADS in kinds(sampled)) is not is_thread


def test_work_left_over_after_a_call_makes_its_time_invalid() -> None:
    sampled = with_others(subject=9e-6, **{IDLE: 1e-3})
    assert not latency_of(sampled).is_valid
    assert kinds(sampled) == {WarningKind.OTHER_THREADS}
    assert latency_of(with_others(subject=9e-6, **{IDLE: 4e-6})).is_valid


# --- cold latency: each call gets other inputs, or caches that were overwritten ------------------

KIB = 1024


def test_each_call_takes_the_next_of_more_copies_than_the_cache_holds() -> None:
    device = FakeDevice(lambda *_: 40e-6, makes_each=True, cache=40 * KIB)  # four fill a sample
    tensors = [torch.ones(64)]
    sampled = measure(device, tensors=tensors, model_bytes=5 * KIB, cache=Cache.ROTATE)
    assert latency_of(sampled).cache is Cache.ROTATE
    held = [tensor.data_ptr() for _, (tensor,) in device.prepared]
    assert len(set(held)) == len(held) == 3 * 2.5 * 40 / 5
    there = [place for place, (name, _) in enumerate(device.prepared) if name == "subject"]
    called = [place for name, place in device.called if name == "subject"]
    assert len(called) > 10 * len(there)
    # and the first again after the last
    assert called == [there[number % len(there)] for number in range(len(called))]


def test_the_caches_are_overwritten_before_every_sample() -> None:
    device = FakeDevice()
    latency = latency_of(measure(device, cache=Cache.FLUSHED))
    samples = sum(len(arm.wall_s) for arm in latency.arms)
    assert {arm.calls_per_sample for arm in latency.arms} == {1}
    timed = [name for name, _ in device.sampled[-2 * samples :]]
    assert {*timed[::2]} == {"evict"}
    assert {*timed[1::2]} == {*TIMES_S}
    measure(warm := FakeDevice())
    assert ("evict", 0) not in warm.sampled


# --- calls that do the work of others ------------------------------------------------------------

PATIENT = Budget(limit_s=1e9)


@pytest.mark.parametrize(("every", "slower_ratio"), [(2, 2.0), (4, 30.0), (16, 3.0)])
def test_calls_that_pay_for_others_are_reported_by_their_mean(
    every: int, slower_ratio: float
) -> None:
    sampled = measure(payer(every, every * (slower_ratio - 1) * CALL_S), budget=PATIENT)
    latency = latency_of(sampled)
    assert WarningKind.UNEVEN in kinds(sampled)
    assert latency.uneven_ratio == pytest.approx(slower_ratio, rel=0.3)
    expected = slower_ratio * CALL_S, slower_ratio
    assert time_and_ratio(sampled) == pytest.approx(expected, rel=0.3)
    # 1 for the fast calls, and invalid there: a share of the copy's speed is of all calls
    assert latency.ceiling_ratio == pytest.approx(1 / slower_ratio, rel=0.3)


def test_as_many_samples_are_taken_as_show_whether_calls_are_uneven() -> None:
    rare, often = (measure(payer(every, every * CALL_S), budget=PATIENT) for every in (40, 2))
    assert epochs_of(rare) > PATIENT.max_epochs > epochs_of(often)
    assert WarningKind.UNEVEN in kinds(rare)


@pytest.mark.parametrize(
    ("device", "call_s"),
    [
        (payer(10**6, 1.0), CALL_S),  # a single long call
        # 40 calls are a sample: each holds ten of those that cost more, so nothing is hidden
        (FakeDevice(lambda _, n: 3e-6 + 8e-6 * (n % 4 == 0), makes_each=True), 5e-6),
    ],
)
def test_noise_is_not_uneven(device: FakeDevice, call_s: float) -> None:
    sampled = measure(device, budget=PATIENT)
    assert latency_of(sampled).uneven_ratio is None
    assert time_and_ratio(sampled)[0] == pytest.approx(call_s, rel=0.05)


def test_an_uneven_reference_flatters_nobody_else() -> None:
    sampled = measure(payer(4, 4 * CALL_S, "reference"), budget=PATIENT)
    assert time_and_ratio(sampled)[1] == pytest.approx(0.5, rel=0.1)
    (advice,) = (warning.advice for warning in sampled.warnings)
    assert "the calls of reference" in advice


def test_without_a_reference_the_copy_is_compared_with() -> None:
    for names, is_uneven in ((("subject", "copy"), True), (ONLY_SUBJECT, False)):
        latency = latency_of(measure(payer(4, 4 * CALL_S), names, PATIENT))
        assert (latency.uneven_ratio is not None) is is_uneven


# --- warnings: each kind is given where it should be, and nowhere else ----------------------------

CALM = DeviceState(governor="performance", on_battery=False, throttled_by=(), other_processes=0)
HOT = DeviceState(throttled_by=("hot", "power"))
EIGHT = Budget(min_epochs=8, max_epochs=8, limit_s=1e9)


def warned(**changes: Any) -> tuple[MeasurementWarning, ...]:
    """Return the warnings about a calm latency of 3 us, but for some changes."""
    arguments = {"stepped", "left_over", "empty_s"}
    given = {name: changes.pop(name) for name in arguments & changes.keys()}
    latency = replace(
        latency_of(measure(FakeDevice())), **{"before": CALM, "after": CALM} | changes
    )
    return warnings_of(latency, ROOMY, 1.0, **given)


CHANGES: list[tuple[WarningKind | None, dict[str, Any]]] = [
    (None, {}),
    (None, {"before": DeviceState(), "after": DeviceState()}),  # nothing can be read
    (WarningKind.NOISY, {"before": DeviceState(steal_s=50.0), "after": DeviceState(steal_s=50.1)}),
    (None, {"resolution_s": 1e-6}),
    (WarningKind.TIMER_TOO_COARSE, {"resolution_s": 15e-3}),
    (None, {"empty_s": 15e-6}),
    (WarningKind.TIMER_TOO_COARSE, {"empty_s": 25e-6}),
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
    sampled = measure(slower(factor, slow.__contains__, names), budget=EIGHT)
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
        *measure(slower(1.2, LATER.__contains__), budget=EIGHT).warnings,
        *measure(slower(1.2, LATER.__contains__), ("subject",), EIGHT).warnings,
        *measure(FakeDevice(waiting_ratio=1.3)).warnings,
        *measure(FakeDevice(lambda *_: 100e-9)).warnings,
        *(warning for kind, changes in CHANGES if kind for warning in warned(**changes)),
    ]
    # not about a latency
    kind = WarningKind
    elsewhere = {kind.CACHED_RESULT, kind.MEMORY_NOT_COUNTED, kind.NOT_COUNTED}
    assert {warning.kind for warning in found} == {*WarningKind} - elsewhere
    text = "\n".join(f"{warning.kind}: {warning.advice}" for warning in found)
    assert_golden(text, __file__, "warnings.txt")

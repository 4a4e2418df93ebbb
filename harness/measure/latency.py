"""Measure the latency of several calls in turn, so that disturbances affect all of them alike.

Sampling is divided into epochs of about 8 ms per arm. In each epoch the inputs
get a new random address, since a process's luck with one address would not average out; every
arm is called untimed; and then the arms are sampled in random order, about 200 us per sample.
Sampling stops when the interval of the ratio to the reference is narrow enough, or at a cap; the
result says which. Estimates come from :mod:`harness.measure.sample_statistics`; the clock of a
sample is read in :mod:`harness.measure.devices`.

Cold latencies are sampled in the same way, but no call finds its inputs in a cache. On the CPU
every call takes the next of more copies than the cache holds; on a GPU the cache is overwritten
before every call.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import permutations
from random import Random
from statistics import fmean, median
from time import perf_counter, sleep

from torch import Tensor

from harness.measure.devices import POWER_CAP, Device, Reading
from harness.measure.measurement_warnings import nothing_measured, warnings_of
from harness.measure.memory import copies_beyond, relocate
from harness.measure.sample_statistics import (
    Estimates,
    epoch_values,
    estimate,
    estimates_of,
    is_faster,
    ratios,
)
from harness.records import (
    Allocation,
    Arm,
    ArmRole,
    Budget,
    Cache,
    Clock,
    Latency,
    MeasurementWarning,
)

SAMPLE_S = 200e-6  # far below a scheduler slice (4 ms), far above the clock's own cost (0.5 us)
_SETTLED_CALLS = 3  # trade-off: calls in a row without a faster one, after which a call is warm
_FASTER = 0.95  # trade-off: a call below this share of the fastest so far counts as faster
_WARM_UP_SHARE = 0.1  # of the time limit
_OTHERS = 0.1  # trade-off: share of the CPU time that other threads may take unnoticed
_OTHERS_S = 5e-6  # and seconds per sample: far above the variation of reading a clock
_IDLE_S = 20e-3  # several scheduler slices: a thread with work left gets a core in this time
# of an epoch, per arm. Trade-off: long enough for many samples, short for one machine state
_ARM_S = 25e-3 / 3
_ROUNDS = 4  # least samples of an arm per epoch, for the low quantile; a short budget may end it
_MOST_ROUNDS = 1000  # six times what fits in an epoch: ends it even if the clock was set back
_MOST_TRIES = 3  # trade-off: epochs begun per epoch that counts, on a throttled device
DOUBTFUL_FACTOR = 3  # trade-off: times as many epochs if calls may be uneven, to make it clear
_UNTIMED_CALLS = 2  # per arm after a change of address; before the first epoch there is a warm-up
_LEAST_GPU_COPY_S = 10e-6  # several times a launch: a shorter copy mostly measures its launch
_MANY_COPIES = 12  # trade-off: with so many copies the luck of one address averages out


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call to time; ``prepare`` binds it to inputs."""

    role: ArmRole
    name: str
    prepare: Callable[[Sequence[Tensor]], Callable[[], object]]


class _Rotating:
    """Calls on one copy of the inputs after the other; it holds the results of one turn.

    Each call then frees the oldest result, so that new results are in cold memory as well.
    """

    __slots__ = ("__weakref__", "_calls", "_held", "_next")  # devices hold weak references to calls

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = calls
        self._held: list[object] = [None] * len(calls)
        self._next = 0

    def __call__(self) -> object:
        here = self._next
        self._next = (here + 1) % len(self._calls)
        result = self._held[here] = self._calls[here]()
        return result


Keep = Callable[[object], None]


class Sampler:
    """Takes the samples of one timed call."""

    def __init__(self, timed_call: TimedCall, device: Device, cache: Cache) -> None:
        self.timed_call = timed_call
        self.calls = 1
        self.launches_s: list[float] = []
        """For each sample, the seconds per call that the host took to issue it."""
        self.best_s = float("inf")
        """Seconds of the fastest call of the warm-up."""
        self._device = device
        self._flushes = cache is Cache.FLUSHED
        self._call: Callable[[], object] = lambda: None
        self._turn = 1  # calls until the first copy is used again
        self.counts_all_threads = False
        """Whether the CPU time is that of all threads, of the samples so far too."""
        self.pending: list[Reading] = []
        """The samples of the current epoch."""
        self._readings: list[Reading] = []
        self._epochs: list[int] = []

    def bind(self, copies: Iterable[Sequence[Tensor]]) -> None:
        """Call on these inputs from now on, one set after the other."""
        calls = [self.timed_call.prepare(tensors) for tensors in copies]
        self._call, self._turn = calls[0], 1
        if len(calls) > 1:
            self._call, self._turn = _Rotating(calls), len(calls)

    def release(self) -> None:
        """Drop the inputs and everything that the bound calls keep."""
        self._call = lambda: None

    def call(self) -> object:
        """Make one untimed call."""
        return self._call()

    def timed_result(
        self, calls: int = 1, change: Callable[[], object] | None = None
    ) -> tuple[object, float]:
        """Make calls as :meth:`sample` does; return the result of the last, and seconds per call.

        The seconds are by the clock of the estimates, and 0 if that clock went backwards.

        Args:
            calls: how many.
            change: called before each call; the time that it takes is subtracted.
        """
        last: object = None

        def call() -> None:
            nonlocal last
            last = None  # freed before the next call, as in a sample
            if change is not None:
                change()
            last = self._call()

        used_s = self._used_s(call, calls)
        if change is not None:
            used_s -= self._used_s(change, calls)
        return last, max(used_s, 0.0) / calls

    def _used_s(self, call: Callable[[], object], calls: int) -> float:
        reading = self._device.time(call, calls)
        used_s = self._cpu_s(reading)
        return reading.wall_s if used_s is None else used_s

    def drawn_result(self, at: int, change: Callable[[], object], keep: Keep) -> None:
        """Make the calls of a sample, but ``change`` something before call ``at`` and ``keep`` it.

        The sample does not count, and the implementation cannot tell it from others.
        """
        left = at

        def call() -> None:
            nonlocal left
            if left == 0:
                change()
                keep(self._call())
            else:
                self._call()
            left -= 1

        self._device.time(call, self.calls)

    def warm_up(self, limit_s: float) -> int:
        """Call until calls no longer get faster, or a share of ``limit_s`` is over.

        The fastest call decides how many calls fill a sample, since others may be preempted. A
        reading is ignored if the clock did not move forward in it.

        Returns:
            The number of calls made.
        """
        made = settled = 0
        spent_s = 0.0
        while (made < self._turn and spent_s < limit_s) or (
            settled < _SETTLED_CALLS and spent_s < _WARM_UP_SHARE * limit_s
        ):
            took_s = self._device.time(self._call, 1).wall_s
            settled = 0 if 0 < took_s < _FASTER * self.best_s else settled + 1
            if took_s > 0:
                self.best_s = min(self.best_s, took_s)
                spent_s += took_s
            made += 1
        if self._flushes:
            return made
        if self.best_s < SAMPLE_S / 5:  # too short to be timed alone: the clock's cost would count
            several = max(1, round(SAMPLE_S / 5 / self.best_s))
            tries = [self._device.time(self._call, several).wall_s for _ in range(5)]
            took_s = min((took_s for took_s in tries if took_s > 0), default=several * self.best_s)
            self.best_s = took_s / several
            made += 5 * several
        self.calls = max(1, round(SAMPLE_S / self.best_s))
        return made

    def sample(self) -> float | None:
        """Take one sample; return its wall seconds, None if the clock did not move forward."""
        if self._flushes:
            self._device.evict()
        reading = self._device.time(self._call, self.calls)
        if reading.wall_s <= 0 or (reading.cpu_s is not None and reading.cpu_s <= 0):
            return None
        self.pending.append(reading)
        return reading.wall_s

    def close_epoch(self, epoch: int) -> None:
        """Count the samples since the last epoch as those of ``epoch``."""
        readings, self.pending = self.pending, []
        self.launches_s += [
            reading.launch_s / self.calls for reading in readings if reading.launch_s is not None
        ]
        self._readings += readings
        self._epochs += [epoch] * len(readings)

    def others_ratio(self) -> float | None:
        """Return the share of CPU time of other threads; 0 if negligible, None if unknown."""
        both_s = [
            (reading.process_s, reading.cpu_s)
            for reading in self._readings
            if reading.process_s is not None and reading.cpu_s is not None
        ]
        if not both_s:
            return None
        whole_s = fmean(process_s for process_s, _ in both_s)
        others_s = fmean(process_s - cpu_s for process_s, cpu_s in both_s)
        return others_s / whole_s if others_s > max(_OTHERS_S, _OTHERS * whole_s) else 0.0

    def left_over_ratio(self) -> float:
        """Return the CPU time of other threads after some calls, over that of the calls."""
        idle = (partial(sleep, _IDLE_S), 1)
        turns = (idle, (self._call, self.calls), idle)  # the first lets earlier work end
        _, calls, after = (self._device.time(call, count) for call, count in turns)
        if not calls.process_s or after.process_s is None or after.cpu_s is None:
            return 0.0
        left_s = after.process_s - after.cpu_s
        is_much = left_s > max(_OTHERS_S, _OTHERS * calls.process_s)
        return left_s / calls.process_s if is_much else 0.0

    def _cpu_s(self, reading: Reading) -> float | None:
        return reading.process_s if self.counts_all_threads else reading.cpu_s

    def arm(self) -> Arm:
        readings_s = [self._cpu_s(reading) for reading in self._readings]
        cpu_s = [reading_s / self.calls for reading_s in readings_s if reading_s is not None]
        return Arm(
            role=self.timed_call.role,
            name=self.timed_call.name,
            calls_per_sample=self.calls,
            wall_s=tuple(reading.wall_s / self.calls for reading in self._readings),
            cpu_s=tuple(cpu_s) or None,
            epochs=tuple(self._epochs),
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """A latency, the warnings about it, and the time that it took."""

    latency: Latency | None
    """None if no sample was usable; the warnings say why."""
    warnings: tuple[MeasurementWarning, ...]
    sampling_s: float
    """Seconds in samples."""
    warming_s: float
    """Seconds in untimed calls."""
    tensors: Sequence[Tensor] = ()
    """The inputs of the last calls, at their addresses."""
    subject: Sampler | None = None
    """The timed calls of the implementation, on these inputs."""


@dataclass
class Sampling:
    """Calls that are timed in turn on copies of ``tensors``, epoch by epoch."""

    timed_calls: Sequence[TimedCall]
    """One SUBJECT, at most one REFERENCE, and any CEILINGs, of which only the fastest in its
    warm-up is sampled. They are prepared and warmed up in this order."""
    tensors: Sequence[Tensor]
    """The inputs of all; each epoch works on relocated copies."""
    device: Device
    """Where the calls run."""
    budget: Budget
    """When to stop."""
    random: Random
    """Draws addresses and orders."""
    _: KW_ONLY
    allocation: Allocation
    """Recorded with the result."""
    model_bytes: int
    """Bytes that a call of the subject must move."""
    copied_bytes: int
    """Bytes that a call of a CEILING moves."""
    cache: Cache = Cache.WARM
    """The state of the caches when a call begins."""
    draw: Callable[[Sampler, Sequence[Tensor]], None] | None = None
    """Called once in each epoch of warm caches, with the subject and its inputs: may make a sample
    that does not count."""

    def __post_init__(self) -> None:
        self._sampling_s = self._warming_s = 0.0
        self._epochs = self._throttled = self._stepped = 0
        self._throttled_by: set[str] = set()
        self._placed: Sequence[Tensor] = ()
        self._arms = [Sampler(called, self.device, self.cache) for called in self.timed_calls]
        roles = [called.role for called in self.timed_calls]
        self._subject = self._arms[roles.index(ArmRole.SUBJECT)]
        self._faults = self._calls = self._warm_up_calls = 0
        self._orders: list[tuple[Sampler, ...]] = []
        self._epoch_s = self._left_over = 0.0
        self._rounds = _ROUNDS
        self._copies, self._can_throttle = 1, False
        self._clock = self.device.clock

    def sampled(self) -> Sampled:
        """Warm up, and take samples until the interval is narrow enough or the budget is spent."""
        device, budget = self.device, self.budget
        device.wake()
        before, began = device.condition(), perf_counter()
        self._can_throttle = before.throttled_by is not None
        if self.cache is Cache.ROTATE:
            free_bytes = device.free_bytes()
            self._copies = copies_beyond(device.cache_bytes(), self.model_bytes, free_bytes)
        self._warm_up()
        if self.cache is Cache.ROTATE:
            began = perf_counter()  # the copies of all epochs were made in the warm-up: not counted
        tries, most = 0, budget.max_epochs
        epoch_began = perf_counter()
        while self._epochs < most and tries < _MOST_TRIES * most:
            tries += 1
            self._run_epoch()
            now = perf_counter()
            another_s, epoch_began = now - epoch_began, now  # assumed to be that of the next epoch
            late = now + another_s - began > budget.limit_s
            if late or (self._epochs >= budget.min_epochs and self._estimates().converged):
                break
            if self._epochs == budget.max_epochs and self._estimates().is_doubtful:
                most *= DOUBTFUL_FACTOR
        latency = self._latency()
        wall_s, after = perf_counter() - began, device.condition()
        throttled_by = tuple(sorted({*self._throttled_by, *(after.throttled_by or ())}))
        after = replace(after, throttled_by=throttled_by or after.throttled_by)
        if latency is None:
            warnings: tuple[MeasurementWarning, ...] = (nothing_measured(after, self._stepped),)
        else:
            latency = replace(latency, before=before, after=after)
            warnings = warnings_of(
                latency,
                budget,
                wall_s,
                stepped=self._stepped,
                left_over=self._left_over,
                empty_s=device.empty_s,
            )
        spent_s = self._sampling_s, self._warming_s
        return Sampled(latency, warnings, *spent_s, self._placed, self._subject)

    def _warm_up(self) -> None:
        """Warm every arm up, find how many calls fill a sample, and keep the fastest copy only."""
        began = perf_counter()
        self._relocate()
        for arm in self._arms:
            self._warm_up_calls += arm.warm_up(self.budget.limit_s)
        ceilings = [arm for arm in self._arms if arm.timed_call.role is ArmRole.CEILING]
        slower = sorted(ceilings, key=lambda arm: arm.best_s)[1:]
        self._arms = [arm for arm in self._arms if arm not in slower]
        self._orders = list(permutations(self._arms))
        self._epoch_s = _ARM_S * len(self._arms)
        self._warming_s += perf_counter() - began

    def _run_epoch(self) -> None:
        """Take the samples of an epoch; it does not count if the device was throttled in it.

        It counts under a power cap, which slows all arms alike and may never end.
        """
        if self._epochs and self._copies < _MANY_COPIES:
            self._move()
        self._sample_in_rounds()
        throttled_by = self.device.condition().throttled_by if self._can_throttle else None
        self._throttled_by.update(throttled_by or ())
        is_throttled = not {*(throttled_by or ())} <= {POWER_CAP}
        self._throttled += is_throttled
        if is_throttled or not all(arm.pending for arm in self._arms):
            for arm in self._arms:
                arm.pending = []
            return
        for arm in self._arms:
            arm.close_epoch(self._epochs)
        self._epochs += 1
        if self._clock is Clock.THREAD_CPU and any(arm.others_ratio() for arm in self._arms):
            self._clock = Clock.PROCESS_CPU
            for arm in self._arms:
                arm.counts_all_threads = True
            self._left_over = self._subject.left_over_ratio()

    def _move(self) -> None:
        """Bind the arms at new addresses and make their first calls there, untimed."""
        began = perf_counter()
        self._relocate()
        untimed = max(_UNTIMED_CALLS, self._copies)  # a full turn allocates all held results
        for arm in self._arms:
            for _ in range(untimed if arm.best_s < self._epoch_s else 0):
                arm.call()
        self.device.synchronize()
        self._warming_s += perf_counter() - began

    def _sample_in_rounds(self) -> None:
        """Sample all arms in a random order, again and again until the epoch is over."""
        subject, began = self._subject, perf_counter()
        draw_in = self.random.randint(1, self._rounds) if self.draw and self._placed else None
        for rounds in range(1, _MOST_ROUNDS + 1):
            if rounds == draw_in and self.draw:
                self.draw(subject, self._placed)
                for arm in self._arms:  # so that the caches are as in other rounds
                    arm.call()
            for arm in self.random.choice(self._orders):
                faults_before = _minor_faults()
                sample_s = arm.sample()
                self._stepped += sample_s is None
                self._sampling_s += sample_s or 0.0
                if arm is subject:
                    self._faults += _minor_faults() - faults_before
                    self._calls += arm.calls
            took_s = perf_counter() - began
            hurry = took_s > self.budget.limit_s / self.budget.min_epochs
            if took_s >= self._epoch_s and (rounds >= _ROUNDS or hurry):
                self._rounds = rounds
                return

    def _estimates(self) -> Estimates:
        """Return what the samples so far give; there must be an epoch."""
        arms = [arm.arm() for arm in self._arms]
        return estimates_of(arms, self.budget, cpu=self._clock.is_cpu)

    def _latency(self) -> Latency | None:
        """Return the latency that the samples give; None if there are none."""
        if not self._epochs:
            return None
        arms = {arm.role: arm for arm in map(Sampler.arm, self._arms)}
        values = {role: epoch_values(arm, cpu=self._clock.is_cpu) for role, arm in arms.items()}
        subject, ceiling = values[ArmRole.SUBJECT], values.get(ArmRole.CEILING)
        found, reference = self._estimates(), arms.get(ArmRole.REFERENCE)
        ceiling_ratio, is_too_fast = None, False
        if ceiling and self.copied_bytes:
            scale = self.model_bytes / self.copied_bytes
            copy_ratio = estimate([scale * ratio for ratio in ratios(ceiling, subject)])
            # on a GPU a short copy is mostly its launch, so it is no limit
            is_limit = self._clock is not Clock.CUDA_EVENT or median(ceiling) >= _LEAST_GPU_COPY_S
            is_too_fast = is_limit and is_faster(copy_ratio)
            ceiling_ratio = copy_ratio.value
            if not is_too_fast:  # an invalid time is shown by its fast calls
                ceiling_ratio *= estimate(subject).value / found.per_call_s.value
        launches = self._subject.launches_s
        return Latency(
            clock=self._clock,
            cache=self.cache,
            allocation=self.allocation,
            per_call_s=found.per_call_s,
            reference=reference.name if reference else None,
            reference_ratio=found.reference_ratio,
            uneven_ratio=found.uneven_ratio,
            ceiling_ratio=ceiling_ratio,
            model_bytes=self.model_bytes,
            converged=self._epochs >= self.budget.min_epochs and found.converged,
            processes=1,
            process_of_epoch=(0,) * self._epochs,
            minor_faults_ratio=self._faults / max(self._calls, 1),
            compile_s=None,
            resolution_s=self.device.resolution_s,
            warm_up_calls=self._warm_up_calls,
            launch_s=median(launches) if launches else None,
            others_ratio=self._subject.others_ratio(),
            throttled_epochs=self._throttled,
            is_valid=not is_too_fast and not self._left_over,
            arms=tuple(arms[role] for role in ArmRole if role in arms),
        )

    def _relocate(self) -> None:
        """Bind every arm to inputs at new addresses; warm arms share the same inputs."""
        self._placed = ()
        for arm in self._arms:
            arm.release()
        if self.cache is not Cache.ROTATE:
            self._placed = self._relocated()
            for arm in self._arms:  # tensors of its own, which one may change, in the same memory
                arm.bind([[tensor.detach() for tensor in self._placed]])
            return
        for arm in self._arms:  # not shared: what another arm has just read is not cold
            arm.bind(self._copies_in_time())

    def _copies_in_time(self) -> Iterator[Sequence[Tensor]]:
        """Yield copies while there is time, at least two: binding a backward runs its forward."""
        began, far = perf_counter(), self._copies < _MANY_COPIES
        for made in range(self._copies):
            if made >= 2 and perf_counter() - began > self.budget.limit_s:
                return
            yield self._relocated(far=far)

    def _relocated(self, *, far: bool = True) -> list[Tensor]:
        return [relocate(tensor, self.random, far=far) for tensor in self.tensors]


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

"""Measure the latency of several calls in turn, so that disturbances affect all of them alike.

Sampling is divided into epochs, of 25 ms for three arms and 17 ms for two. In each epoch the inputs
get a new random place in memory, since a process's luck with one place would not average out; every
arm is called untimed; and then the arms are sampled in random order, about 200 us per sample.
Sampling stops when the interval of the ratio to the reference is narrow enough, or at a cap; the
result says which. Estimates come from :mod:`harness.measure.sample_statistics`.

Cold latencies are sampled in the same way, but no call finds its inputs in a cache. On the CPU
every call takes the next of more copies than the cache holds; on a GPU the cache is overwritten
before every call.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random
from statistics import median
from time import perf_counter

from torch import Tensor

from harness.measure.device import POWER_CAP, Device
from harness.measure.estimates import Estimates, estimates_of
from harness.measure.measurement_warnings import warnings_of
from harness.measure.placement import copies_beyond, relocate
from harness.measure.sample_statistics import estimate, is_faster, ratios
from harness.measure.sampler import Sampler, Stepped, TimedCall
from harness.records import (
    Allocation,
    ArmRole,
    Budget,
    Cache,
    Clock,
    Latency,
    MeasurementWarning,
)

__all__ = ["DOUBTFUL_FACTOR", "Sampled", "measure_latency"]

# of an epoch, per arm. Trade-off: long enough for many samples, short for one machine state
_ARM_S = 25e-3 / 3
_ROUNDS = 4  # least samples of an arm per epoch, for the low quantile; a short budget may end it
_MOST_ROUNDS = 1000  # six times what fits in an epoch: ends it even if the clock was set back
_MOST_TRIES = 3  # trade-off: epochs begun per epoch that counts, on a throttled device
DOUBTFUL_FACTOR = 3  # trade-off: times as many epochs if calls may be uneven, to make it clear
_UNTIMED_CALLS = 2  # per arm after a change of place; before the first epoch there is a warm-up
_LEAST_GPU_COPY_S = 10e-6  # several times a launch: a shorter copy mostly measures its launch
_MANY_PLACES = 12  # trade-off: with so many copies the luck of one place averages out


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


def measure_latency(
    timed_calls: Sequence[TimedCall],
    tensors: Sequence[Tensor],
    device: Device,
    budget: Budget,
    random: Random,
    *,
    allocation: Allocation,
    model_bytes: int,
    copied_bytes: int,
    compile_s: float | None = None,
    cache: Cache = Cache.WARM,
) -> Sampled:
    """Time ``timed_calls`` in turn on copies of ``tensors``.

    Args:
        timed_calls: the SUBJECT first, at most one REFERENCE, and any CEILINGs, of which only the
            fastest in its warm-up is sampled.
        tensors: the inputs of all; each epoch works on relocated copies.
        device: where the calls run.
        budget: when to stop.
        random: draws places and orders.
        allocation: recorded with the result.
        model_bytes: bytes that a call of the subject must move.
        copied_bytes: bytes that a call of a CEILING moves.
        compile_s: recorded with the result.
        cache: the state of the caches when a call begins.
    """
    device.wake()
    before, began = device.condition(), perf_counter()
    copies = 1
    if cache is Cache.ROTATE:
        copies = copies_beyond(device.cache_bytes(), model_bytes, device.free_bytes())
    can_throttle = before.throttled_by is not None
    sampling = _Sampling(timed_calls, tensors, device, budget, random, cache, copies, can_throttle)
    sampling.warm_up()
    if cache is Cache.ROTATE:
        began = perf_counter()  # the copies of all epochs were made in the warm-up: not counted
    tries, most = 0, budget.max_epochs
    epoch_began = perf_counter()
    while sampling.epochs < most and tries < _MOST_TRIES * most:
        tries += 1
        sampling.run_epoch()
        now = perf_counter()
        another_s, epoch_began = now - epoch_began, now  # assumed to be that of the next epoch
        late = now + another_s - began > budget.limit_s
        if late or (sampling.epochs >= budget.min_epochs and sampling.estimates().converged):
            break
        if sampling.epochs == budget.max_epochs and sampling.estimates().is_doubtful:
            most *= DOUBTFUL_FACTOR
    latency = sampling.latency(allocation, model_bytes, copied_bytes, compile_s)
    wall_s, after = perf_counter() - began, device.condition()
    throttled_by = tuple(sorted({*sampling.throttled_by, *(after.throttled_by or ())}))
    after = replace(after, throttled_by=throttled_by or after.throttled_by)
    warnings = warnings_of(
        latency, budget, before, after, wall_s, sampling.stepped, sampling.left_over
    )
    if latency is not None:
        latency = replace(latency, before=before, after=after)
    spent_s = sampling.sampling_s, sampling.warming_s
    return Sampled(latency, warnings, *spent_s, sampling.placed, sampling.subject)


class _Sampling:
    """The arms of one measurement, sampled epoch by epoch."""

    def __init__(
        self,
        timed_calls: Sequence[TimedCall],
        tensors: Sequence[Tensor],
        device: Device,
        budget: Budget,
        random: Random,
        cache: Cache,
        copies: int,
        can_throttle: bool,
    ) -> None:
        self.sampling_s = self.warming_s = 0.0
        self.epochs = self.throttled = self.stepped = 0
        self.throttled_by: set[str] = set()
        self.placed: Sequence[Tensor] = ()
        self._arms = [Sampler(each, device, cache) for each in timed_calls]
        self.subject = self._arms[0]
        self._tensors, self._device, self._budget = tensors, device, budget
        self._random, self._cache, self._copies = random, cache, copies
        self._faults = self._calls = self._warm_up_calls = 0
        self._orders: list[tuple[Sampler, ...]] = []
        self._epoch_s = 0.0
        self._can_throttle = can_throttle
        self._clock = device.clock
        self.left_over = 0.0

    def warm_up(self) -> None:
        """Warm every arm up, find how many calls fill a sample, and keep the fastest copy only."""
        began = perf_counter()
        self._place()
        for each in self._arms:
            self._warm_up_calls += each.warm_up(self._budget.limit_s)
        ceilings = [each for each in self._arms if each.timed_call.role is ArmRole.CEILING]
        slower = sorted(ceilings, key=lambda each: each.best_s)[1:]
        self._arms = [each for each in self._arms if each not in slower]
        self._orders = list(permutations(self._arms))
        self._epoch_s = _ARM_S * len(self._arms)
        self.warming_s += perf_counter() - began

    def run_epoch(self) -> None:
        """Take the samples of an epoch; it does not count if the device was throttled in it.

        It counts under a power cap, which slows all arms alike and may never end.
        """
        if self.epochs and self._copies < _MANY_PLACES:
            self._move()
        self._sample_in_rounds()
        throttled_by = self._device.condition().throttled_by if self._can_throttle else None
        self.throttled_by.update(throttled_by or ())
        is_throttled = not {*(throttled_by or ())} <= {POWER_CAP}
        self.throttled += is_throttled
        if is_throttled or not all(each.has_sampled() for each in self._arms):
            for each in self._arms:
                each.drop_epoch()
            return
        for each in self._arms:
            each.close_epoch(self.epochs)
        self.epochs += 1
        if self._clock is Clock.THREAD_CPU and any(each.others_ratio() for each in self._arms):
            self._clock = Clock.PROCESS_CPU
            for each in self._arms:
                each.count_all_threads()
            self.left_over = self._arms[0].left_over_ratio()

    def _move(self) -> None:
        """Bind the arms at new places and make their first calls there, untimed."""
        began = perf_counter()
        self._place()
        untimed = max(_UNTIMED_CALLS, self._copies)  # a full turn allocates all held results
        for each in self._arms:
            for _ in range(untimed if each.best_s < self._epoch_s else 0):
                each.call()
        self._device.synchronize()
        self.warming_s += perf_counter() - began

    def _sample_in_rounds(self) -> None:
        """Sample all arms in a random order, again and again until the epoch is over."""
        subject, began = self._arms[0], perf_counter()
        for rounds in range(1, _MOST_ROUNDS + 1):
            for each in self._random.choice(self._orders):
                faults_before = _minor_faults()
                try:
                    self.sampling_s += each.sample()
                except Stepped:
                    self.stepped += 1
                if each is subject:
                    self._faults += _minor_faults() - faults_before
                    self._calls += each.calls
            took_s = perf_counter() - began
            hurry = took_s > self._budget.limit_s / self._budget.min_epochs
            if took_s >= self._epoch_s and (rounds >= _ROUNDS or hurry):
                return

    def estimates(self) -> Estimates:
        """Return what the samples so far give; there must be an epoch."""
        arms = [each.arm() for each in self._arms]
        return estimates_of(arms, self._budget, cpu=self._clock.is_cpu)

    def latency(
        self, allocation: Allocation, model_bytes: int, copied_bytes: int, compile_s: float | None
    ) -> Latency | None:
        """Return the latency that the samples give; None if there are none."""
        subject, ceiling = self._values(ArmRole.SUBJECT), self._values(ArmRole.CEILING)
        if not subject:
            return None
        found = self.estimates()
        copy_ratio = None
        if ceiling and copied_bytes:
            scale = model_bytes / copied_bytes
            copy_ratio = estimate([scale * each for each in ratios(ceiling, subject)])
        is_too_fast = self._is_ceiling(ceiling) and is_faster(copy_ratio)
        if copy_ratio and not is_too_fast:  # an invalid time is shown by its fast calls
            scale = estimate(subject).value / found.per_call_s.value
            copy_ratio = replace(copy_ratio, value=scale * copy_ratio.value)
        reference, launches = self._arm(ArmRole.REFERENCE), self._arms[0].launches_s
        return Latency(
            clock=self._clock,
            cache=self._cache,
            allocation=allocation,
            per_call_s=found.per_call_s,
            reference=reference.timed_call.name if reference else None,
            reference_ratio=found.reference_ratio,
            uneven_ratio=found.uneven_ratio,
            ceiling_ratio=copy_ratio.value if copy_ratio else None,
            model_bytes=model_bytes,
            converged=self.epochs >= self._budget.min_epochs and found.converged,
            processes=1,
            process_of_epoch=(0,) * self.epochs,
            minor_faults_ratio=self._faults / max(self._calls, 1),
            compile_s=compile_s,
            resolution_s=self._device.resolution_s(),
            warm_up_calls=self._warm_up_calls,
            launch_s=median(launches) if launches else None,
            others_ratio=self._arms[0].others_ratio(),
            throttled_epochs=self.throttled,
            is_valid=not is_too_fast and not self.left_over,
            arms=tuple(each.arm() for each in self._arms),
        )

    def _place(self) -> None:
        """Bind every arm to inputs at new places; warm arms share the same inputs."""
        self.placed = ()
        for arm in self._arms:
            arm.release()
        if self._cache is not Cache.ROTATE:
            self.placed = self._relocated()
            for arm in self._arms:
                arm.bind([self.placed])
            return
        for arm in self._arms:  # not shared: what another arm has just read is not cold
            arm.bind(self._copies_in_time())

    def _copies_in_time(self) -> Iterator[Sequence[Tensor]]:
        """Yield copies while there is time, at least two: binding a backward runs its forward."""
        began, far = perf_counter(), self._copies < _MANY_PLACES
        for place in range(self._copies):
            if place >= 2 and perf_counter() - began > self._budget.limit_s:
                return
            yield self._relocated(far=far)

    def _relocated(self, *, far: bool = True) -> list[Tensor]:
        return [relocate(each, self._random, far=far) for each in self._tensors]

    def _is_ceiling(self, copy_s: Sequence[float] | None) -> bool:
        """Whether a copy is a limit; on a GPU a short copy is mostly its launch, so it is none."""
        if not copy_s or self._clock is not Clock.CUDA_EVENT:
            return bool(copy_s)
        return median(copy_s) >= _LEAST_GPU_COPY_S

    def _arm(self, role: ArmRole) -> Sampler | None:
        return next((each for each in self._arms if each.timed_call.role is role), None)

    def _values(self, role: ArmRole) -> list[float] | None:
        arm = self._arm(role)
        return arm.epoch_values if arm else None


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

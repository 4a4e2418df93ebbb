"""Latency of several things timed in turn, so that whatever the machine does hits all alike.

Time is cut into epochs of 25 ms. In each, the inputs get a new random place in memory (which
turns the luck of one placement into a spread that averages out), every arm is called twice
untimed, and then samples of about 150 us are taken of the arms in random order. Estimates come
from :mod:`harness.statistics`; sampling stops when the interval of the ratio to the reference is
narrow enough, or at a cap, and says which.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

import torch
from torch import Tensor

from harness.measure.devices import Device, Reading
from harness.records import (
    Allocation,
    Arm,
    ArmRole,
    Budget,
    Cache,
    Clock,
    Doubt,
    DoubtKind,
    Estimate,
    Latency,
)
from harness.statistics import epoch_value, epoch_values, median_estimate, ratio_estimate

__all__ = ["Contender", "Sampled", "measure_latency", "relocate"]

_SAMPLE_S = 150e-6  # far below a scheduler slice (4 ms), far above the clock's own cost (0.5 us)
_EPOCH_S = 25e-3
_ROUNDS = 4  # at least so many samples of an arm in an epoch, unless the budget forbids
_LINE_BYTES, _PAGE_LINES = 64, 64  # a cache line, and how many a page holds
_LARGEST_PAD_BYTES = 1 << 21
_SLOWER_CLOCK = 1.05  # ours: wall time above CPU time by more than this means others had the core


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time: ``prepare`` binds it to inputs at their current place."""

    role: ArmRole
    name: str
    prepare: Callable[[Sequence[Tensor]], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A latency, the doubts about it, and where the time to get it went."""

    latency: Latency
    doubts: tuple[Doubt, ...]
    sampling_s: float
    """Inside samples."""
    warming_s: float
    """In untimed calls."""


class _Samples:
    """Samples of one contender."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.call: Callable[[], object] = lambda: None
        self.calls = 1
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.epochs: list[int] = []
        self.epoch_values: list[float] = []
        self._closed = 0

    def add(self, reading: Reading, epoch: int) -> None:
        self.wall_s.append(reading.wall_s / self.calls)
        if reading.cpu_s is not None:
            self.cpu_s.append(reading.cpu_s / self.calls)
        self.epochs.append(epoch)

    def close_epoch(self, *, cpu: bool) -> None:
        """Form the figure of the samples since the last epoch."""
        samples = self.cpu_s if cpu else self.wall_s
        self.epoch_values.append(epoch_value(samples[self._closed :]))
        self._closed = len(samples)

    def arm(self) -> Arm:
        return Arm(
            role=self.contender.role,
            name=self.contender.name,
            calls_per_sample=self.calls,
            wall_s=tuple(self.wall_s),
            cpu_s=tuple(self.cpu_s) or None,
            epochs=tuple(self.epochs),
        )


def measure_latency(
    contenders: Sequence[Contender],
    tensors: Sequence[Tensor],
    device: Device,
    budget: Budget,
    random: Random,
    *,
    allocation: Allocation,
    model_bytes: int,
    copied_bytes: int,
    compile_s: float | None = None,
) -> Sampled:
    """Time ``contenders`` in turn on copies of ``tensors``.

    Args:
        contenders: exactly one SUBJECT; at most one REFERENCE and one CEILING.
        tensors: inputs shared by all; each epoch works on relocated copies.
        device: where the calls run.
        budget: when to stop.
        random: decides places and order.
        allocation: recorded with the result.
        model_bytes: bytes that a call of the subject must move.
        copied_bytes: bytes that a call of the CEILING moves.
        compile_s: recorded with the result.
    """
    samples = [_Samples(each) for each in contenders]
    began = perf_counter()
    sampling_s = warming_s = 0.0
    faults = calls = epoch = 0
    while True:
        placed = [relocate(each, random) for each in tensors]
        warming = perf_counter()
        for each in samples:
            each.call = each.contender.prepare(placed)
            each.call()
            each.call()
            device.synchronize()
        if epoch == 0:
            for each in samples:
                each.calls = _calls_per_sample(each.call, device)
        warming_s += perf_counter() - warming
        faults_before = _minor_faults()
        epoch_began = perf_counter()
        rounds = 0
        while True:
            for each in random.sample(samples, len(samples)):
                reading = device.time(each.call, each.calls)
                each.add(reading, epoch)
                sampling_s += reading.wall_s
                calls += each.calls
            rounds += 1
            now = perf_counter()
            if now - epoch_began >= _EPOCH_S and (
                rounds >= _ROUNDS or now - began > budget.limit_s / budget.min_epochs
            ):
                break
        faults += _minor_faults() - faults_before
        epoch += 1
        for each in samples:
            each.close_epoch(cpu=device.clock is Clock.THREAD_CPU)
        headline = _headline(samples)
        narrow = headline.high / headline.value - 1 < budget.target_ratio
        converged = epoch >= budget.min_epochs and narrow
        late = perf_counter() - began > budget.limit_s
        if converged or epoch >= budget.max_epochs or late:
            break
    latency = _latency(
        samples,
        device,
        converged=converged,
        allocation=allocation,
        model_bytes=model_bytes,
        copied_bytes=copied_bytes,
        faults_per_call=faults / calls,
        compile_s=compile_s,
    )
    return Sampled(latency, _doubts(latency, budget), sampling_s, warming_s)


def relocate(tensor: Tensor, random: Random) -> Tensor:
    """Copy ``tensor`` with its layout to a random place: a random pad, a random cache line."""
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    size = tensor.element_size()
    pad = torch.empty(random.randrange(_LINE_BYTES, _LARGEST_PAD_BYTES), dtype=torch.uint8)
    line = max(_LINE_BYTES // size, 1)
    buffer = storage.new_empty(storage.numel() + (_PAGE_LINES + 1) * line)
    del pad  # it only had to be there while the buffer was placed
    start = -buffer.data_ptr() % _LINE_BYTES // size + random.randrange(_PAGE_LINES) * line
    buffer[start : start + storage.numel()].copy_(storage)
    return buffer.as_strided(tensor.size(), tensor.stride(), start + tensor.storage_offset())


def _calls_per_sample(call: Callable[[], object], device: Device) -> int:
    """Return how many calls fill a sample, from the best of five: a preempted try is no measure."""
    best = min(device.time(call, 1).wall_s for _ in range(5))
    if best < _SAMPLE_S / 5:  # one call is short beside the clock's own cost
        several = max(1, round(_SAMPLE_S / 5 / max(best, 1e-9)))
        best = min(device.time(call, several).wall_s / several for _ in range(5))
    return max(1, round(_SAMPLE_S / max(best, 1e-9)))


def _headline(samples: Sequence[_Samples]) -> Estimate:
    """Ratio to the reference, or the latency itself where there is none."""
    by_role = {each.contender.role: each.epoch_values for each in samples}
    subject = by_role[ArmRole.SUBJECT]
    if ArmRole.REFERENCE not in by_role:
        return median_estimate(subject)
    return ratio_estimate(subject, by_role[ArmRole.REFERENCE])


def _latency(
    samples: Sequence[_Samples],
    device: Device,
    *,
    converged: bool,
    allocation: Allocation,
    model_bytes: int,
    copied_bytes: int,
    faults_per_call: float,
    compile_s: float | None,
) -> Latency:
    by_role = {each.contender.role: each.epoch_values for each in samples}
    subject = by_role[ArmRole.SUBJECT]
    ceiling = None
    if ArmRole.CEILING in by_role and copied_bytes:
        copy = ratio_estimate(by_role[ArmRole.CEILING], subject)
        ceiling = copy.value * model_bytes / copied_bytes
    return Latency(
        clock=device.clock,
        cache=Cache.WARM,
        allocation=allocation,
        per_call_s=median_estimate(subject),
        reference=next(
            (each.contender.name for each in samples if each.contender.role is ArmRole.REFERENCE),
            None,
        ),
        reference_ratio=_headline(samples) if ArmRole.REFERENCE in by_role else None,
        ceiling_ratio=ceiling,
        model_bytes=model_bytes,
        converged=converged,
        processes=1,
        process_of_epoch=(0,) * len(subject),
        minor_faults_ratio=faults_per_call,
        compile_s=compile_s,
        arms=tuple(each.arm() for each in samples),
    )


def _doubts(latency: Latency, budget: Budget) -> tuple[Doubt, ...]:
    doubts = []
    if not latency.converged:
        doubts.append(
            Doubt(
                kind=DoubtKind.NOT_CONVERGED,
                advice=f"the interval is wider than ±{budget.target_ratio:.1%} after "
                f"{len(latency.process_of_epoch)} epochs; give the case more time, or the "
                "machine less else to do",
            )
        )
    subject = next(each for each in latency.arms if each.role is ArmRole.SUBJECT)
    if latency.clock is Clock.THREAD_CPU and subject.cpu_s:
        wall = median_estimate(epoch_values(subject, cpu=False)).value
        if wall > _SLOWER_CLOCK * latency.per_call_s.value:
            doubts.append(
                Doubt(
                    kind=DoubtKind.NOISY,
                    advice=f"wall time is {wall / latency.per_call_s.value:.2f} times CPU time: "
                    "something else used the core; the CPU time is given",
                )
            )
    if latency.minor_faults_ratio is not None and latency.minor_faults_ratio >= 1:
        doubts.append(
            Doubt(
                kind=DoubtKind.PAGE_FAULTS,
                advice=f"{latency.minor_faults_ratio:.0f} page faults a call: the system's work "
                "is in the time; use glibc, or compare with equal allocation only",
            )
        )
    if latency.ceiling_ratio is not None and latency.ceiling_ratio > _SLOWER_CLOCK:
        doubts.append(
            Doubt(
                kind=DoubtKind.FASTER_THAN_COPY,
                advice=f"{latency.ceiling_ratio:.2f} times as fast as a copy of the same bytes: "
                "for calls of a few microseconds the copy's own overhead; otherwise do not "
                "believe it",
            )
        )
    return tuple(doubts)


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

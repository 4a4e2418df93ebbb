"""Sample one of the calls that are timed in turn: warm it up, and choose how many calls to time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from time import sleep

from torch import Tensor

from harness.measure.device import Device, Reading
from harness.records import Arm, ArmRole, Cache

SAMPLE_S = 200e-6  # far below a scheduler slice (4 ms), far above the clock's own cost (0.5 us)
_SETTLED_CALLS = 3  # trade-off: calls in a row without a faster one, after which a call is warm
_FASTER = 0.95  # trade-off: a call below this share of the fastest so far counts as faster
_WARM_UP_SHARE = 0.1  # of the time limit
_OTHERS = 0.1  # trade-off: share of the CPU time that other threads may take unnoticed
_OTHERS_S = 5e-6  # and seconds per sample: far above the variation of reading a clock
_IDLE_S = 20e-3  # several scheduler slices: a thread with work left gets a core in this time


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call to time; ``prepare`` binds it to inputs."""

    role: ArmRole
    name: str
    prepare: Callable[[Sequence[Tensor]], Callable[[], object]]


class Stepped(Exception):  # noqa: N818 - a finding about the clock, not a failure
    """The clock did not move forward during a sample."""


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
        self._pending: list[Reading] = []
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

    def timed_result(self, calls: int = 1) -> tuple[object, float]:
        """Make calls as :meth:`sample` does; return the result of the last, and seconds per call.

        The seconds are by the clock of the estimates, and 0 if that clock went backwards.
        """
        last: object = None

        def call() -> None:
            nonlocal last
            last = None  # freed before the next call, as in a sample
            last = self._call()

        reading = self._device.time(call, calls)
        used_s = self._cpu_s(reading)
        return last, max(reading.wall_s if used_s is None else used_s, 0.0) / calls

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

    def sample(self) -> float:
        """Take one sample; return the wall seconds it took.

        Raises:
            Stepped: the clock did not move forward.
        """
        if self._flushes:
            self._device.evict()
        reading = self._device.time(self._call, self.calls)
        if reading.wall_s <= 0 or (reading.cpu_s is not None and reading.cpu_s <= 0):
            raise Stepped
        self._pending.append(reading)
        return reading.wall_s

    def has_sampled(self) -> bool:
        """Whether the current epoch has a sample."""
        return bool(self._pending)

    def close_epoch(self, epoch: int) -> None:
        """Count the samples since the last epoch as those of ``epoch``."""
        readings, self._pending = self._pending, []
        self.launches_s += [
            reading.launch_s / self.calls for reading in readings if reading.launch_s is not None
        ]
        self._readings += readings
        self._epochs += [epoch] * len(readings)

    def drop_epoch(self) -> None:
        """Forget the samples since the last epoch."""
        self._pending = []

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

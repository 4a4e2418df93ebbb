"""Stand-ins for what is slow or is not there: a device that follows a script, a fleet without
processes.

The device has a clock of its own, which nothing but its calls moves. What is tested reads that
one, so that no test depends on how fast, or how busy, a machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from results_factory import make_environment
from torch import Tensor

import implementations
from harness.inputs import DISTRIBUTIONS, LAYOUTS, PARAMETERS, UPSTREAMS
from harness.measure.device import Reading
from harness.measure.latency import Contender
from harness.records import Allocation, ArmRole, Case, Clock, Record
from harness.run.case import CaseRunner
from harness.run.worker import Hello, RunCase

ROLES = {"subject": ArmRole.SUBJECT, "reference": ArmRole.REFERENCE, "copy": ArmRole.CEILING}


@dataclass
class FakeDevice:
    """A device on which call number n of a name takes as long as ``script(name, n)`` says."""

    script: Callable[[str, int], float]
    """Seconds of CPU time of one call."""
    waiting_ratio: float = 1.0
    """Wall time over CPU time."""
    kind: str = "cpu"
    clock: Clock = Clock.THREAD_CPU
    sampled: list[tuple[str, int]] = field(default_factory=list)
    """What was timed, in order: name, and calls at once."""
    placements: int = 0
    """How often the inputs were given a place, counted by the subject."""
    _now_s: float = 0.0
    _calls: dict[str, int] = field(default_factory=dict)

    def now(self) -> float:
        """Seconds by the clock of this device."""
        return self._now_s

    def contenders(self, *names: str) -> list[Contender]:
        """Something to time for each name: "subject", "reference", "copy"."""
        return [Contender(ROLES[name], name, self._prepare(name)) for name in names]

    def unavailable(self) -> str | None:
        return None

    def free_bytes(self) -> int | None:
        return None

    def synchronize(self) -> None:
        return

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        name = str(call())
        cpu_s = self._last_s * calls
        # the first call has moved the clock already
        self._now_s += (cpu_s - self._last_s) * self.waiting_ratio
        self.sampled.append((name, calls))
        wall_s = cpu_s * self.waiting_ratio
        return Reading(wall_s, cpu_s if self.clock is Clock.THREAD_CPU else None)

    def _prepare(self, name: str) -> Callable[[Sequence[Tensor]], Callable[[], object]]:
        def call() -> str:
            number = self._calls[name] = self._calls.get(name, -1) + 1
            self._last_s = self.script(name, number)
            self._now_s += self._last_s * self.waiting_ratio
            return name

        def prepare(_: Sequence[Tensor]) -> Callable[[], object]:
            self.placements += name == "subject"
            return call

        return prepare


class LocalFleet:
    """A fleet whose cases run in this very process, in the order given."""

    def __init__(self, unavailable: dict[str, str] | None = None) -> None:
        self.started: list[Case] = []
        """Cases that were begun."""
        self.hello = Hello(
            environment=make_environment(),
            implementations=tuple(each.name for each in implementations.ALL),
            distributions=tuple(DISTRIBUTIONS),
            layouts=tuple(LAYOUTS),
            upstreams=tuple(UPSTREAMS),
            parameters=tuple(PARAMETERS),
            unavailable={"cuda": "torch sees no CUDA device"} | (unavailable or {}),
            device_counts={"cpu": 1},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        return tuple(filter(None, map(self._why_not, targets)))

    def run(
        self, jobs: Iterable[RunCase], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        # the allocator of the process that runs the tests stays as it is
        runner = CaseRunner(self.hello.environment.fingerprint, Allocation.DEFAULT)
        for job in jobs:
            self.started.append(job.case)
            yield runner.run(job.case, job.measurements, job.budget)

    def _why_not(self, target: str) -> str | None:
        try:
            implementations.find(target)
        except implementations.TargetError as error:
            return str(error)
        return None

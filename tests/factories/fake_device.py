"""Fakes: a device that follows a script, and a fleet without processes.

Only its calls move the device's clock, so no test depends on how fast or busy a machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from torch import Tensor

import implementations
from factories.results_factory import make_environment
from harness.cases import NAMED
from harness.measure import Reading, Sampled, Sampling, TimedCall
from harness.records import (
    Allocation,
    ArmRole,
    Budget,
    Cache,
    Case,
    Clock,
    DeviceState,
    Latency,
    Record,
    WarningKind,
)
from harness.run import CaseRunner, Job, WorkerInfo, why_unresolved

ROLES = {
    "subject": ArmRole.SUBJECT,
    "reference": ArmRole.REFERENCE,
    "copy": ArmRole.CEILING,
    "other copy": ArmRole.CEILING,
}
TIMES_S = {"subject": 3e-6, "reference": 2e-6, "copy": 1e-6}
CALL_S = 250e-6
"""Of a call that is a sample of its own."""
ROOMY = Budget(target_ratio=0.01, min_epochs=4, max_epochs=12, limit_s=1e9)


def steady(name: str, _: int) -> float:
    """Return the same time for every call of a name."""
    return TIMES_S[name]


@dataclass
class FakeDevice:
    """A device on which call number n of a name takes as long as ``script(name, n)`` says."""

    script: Callable[[str, int], float] = steady
    """Seconds of CPU time of one call."""
    waiting_ratio: float = 1.0
    """Wall time over CPU time."""
    kind: str = "cpu"
    resolution_s: float = 1e-9
    empty_s: float = 0.0
    """Of its reading of a call that does nothing."""
    clock: Clock = Clock.THREAD_CPU
    cache: int = 1 << 20
    """Bytes of its last-level cache."""
    launch_s: float | None = None
    """Until the host has issued a call; None where a call does the work itself."""
    others_s: Mapping[str, float] | None = None
    """CPU time of other threads during a call, by name; None where it is not read."""
    set_by_s: Callable[[int], float] = lambda _: 0.0
    """Seconds by which its clock is set forward during reading number n."""
    state: Callable[[float], DeviceState] = lambda _: DeviceState()
    """Its condition at a time by its clock."""
    makes_each: bool = False
    """Whether all calls of a reading are made, rather than one for all of them."""
    sampled: list[tuple[str, int]] = field(default_factory=list)
    """The readings in order: name and number of calls; "evict" and 0 for each eviction."""
    prepared: list[tuple[str, Sequence[Tensor]]] = field(default_factory=list)
    """Names and the inputs that were bound for them, in order."""
    called: list[tuple[str, int]] = field(default_factory=list)
    """Calls in order: name and the index in ``prepared`` of the inputs."""
    recorded: set[int] = field(default_factory=set)
    """How many calls its replays have."""
    placements: int = 0
    """How often inputs were bound for the subject."""
    _now_s: float = 0.0
    _readings: int = 0
    _prefix: str = ""
    _calls: dict[str, int] = field(default_factory=dict)

    def now(self) -> float:
        """Seconds by the clock of this device."""
        return self._now_s

    def timed_calls(self, *names: str) -> list[TimedCall]:
        """Return a call to time for each name, which is a key of ROLES."""
        return [TimedCall(ROLES[name], name, self._prepare(name)) for name in names]

    def wake(self) -> None:
        return

    def free_bytes(self) -> int | None:
        return None  # unknown

    def cache_bytes(self) -> int:
        return self.cache

    def synchronize(self) -> None:
        return

    def evict(self) -> None:
        self.sampled.append(("evict", 0))

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        began = self._now_s
        for _ in range(calls if self.makes_each else 1):
            name = str(call())
        if not self.makes_each:  # the call that was made has moved the clock already
            self._now_s += self._last_s * (calls - 1) * self.waiting_ratio
        self._now_s += self.set_by_s(self._readings)
        self._readings += 1
        self.sampled.append((name, calls))
        wall_s = self._now_s - began
        launch_s = None if self.launch_s is None else self.launch_s * calls
        if self.clock is not Clock.THREAD_CPU:
            return Reading(wall_s, None, launch_s)
        cpu_s, others_s = wall_s / self.waiting_ratio, self.others_s
        process_s = None if others_s is None else cpu_s + others_s.get(name, 0.0) * calls
        return Reading(wall_s, cpu_s, launch_s, process_s)

    def replayed(
        self, prepare: Callable[[], Callable[[], object]], calls: int
    ) -> Callable[[], object]:
        """Return the calls, whose name in ``sampled`` is then "replayed subject" and so on."""
        call = prepare()
        self.recorded.add(calls)

        def replay() -> object:
            with patch.object(self, "_prefix", "replayed "):
                name = [call() for _ in range(calls)][-1]
            self._last_s *= calls
            return name

        return replay

    def condition(self) -> DeviceState:
        return self.state(self._now_s)

    def _prepare(self, name: str) -> Callable[[Sequence[Tensor]], Callable[[], object]]:
        def prepare(tensors: Sequence[Tensor]) -> Callable[[], object]:
            self.placements += name == "subject"
            place = len(self.prepared)
            self.prepared.append((name, tensors))

            def call() -> str:
                self.called.append((name, place))
                number = self._calls[name] = self._calls.get(name, -1) + 1
                self._last_s = self.script(self._prefix + name, number)
                self._now_s += self._last_s * self.waiting_ratio
                return self._prefix + name

            return call

        return prepare


def measure(
    device: FakeDevice,
    names: Sequence[str] = ("subject", "reference", "copy"),
    budget: Budget = ROOMY,
    *,
    tensors: Sequence[Tensor] = (),
    faults: Callable[[], int] = lambda: 0,
    **more: Any,
) -> Sampled:
    """Measure by the device's clock, without page faults unless ``faults`` counts some."""
    usual: dict[str, Any] = {"allocation": Allocation.STEADY, "cache": Cache.WARM}
    usual |= {"model_bytes": 1000, "copied_bytes": 1000}
    calls = device.timed_calls(*names)
    with (
        patch("harness.measure.latency.perf_counter", device.now),
        patch("harness.measure.latency._minor_faults", faults),
    ):
        return Sampling(calls, tensors, device, budget, Random(1), **usual | more).sampled()


def payer(every: int, cost_s: float, name: str = "subject") -> FakeDevice:
    """Return a device of even calls, but that one in ``every`` of a name costs more."""
    return FakeDevice(
        lambda called, number: CALL_S + cost_s * (called == name and number % every == 0),
        makes_each=True,
    )


def latency_of(sampled: Sampled) -> Latency:
    """Return the latency, which there must be."""
    assert sampled.latency is not None
    return sampled.latency


def kinds(sampled: Sampled) -> set[WarningKind]:
    return {warning.kind for warning in sampled.warnings}


def use_fleets(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> None:
    """Replace the fleets of all commands."""
    for module in ("harness.run.fleet", "harness.verify.workers"):
        monkeypatch.setattr(f"{module}.Fleet", make)


class LocalFleet(AbstractContextManager["LocalFleet"]):
    """A fleet whose requests are answered in this process, in order."""

    lost = ()

    def __init__(self) -> None:
        self.started: list[Case] = []
        """Cases that were started."""
        self.info = WorkerInfo(
            environment=make_environment(),
            implementations={known.name: known.devices for known in implementations.ALL},
            names={axis: tuple(makers) for axis, makers in NAMED.items()},
            unavailable={"cuda": "torch sees no CUDA device"},
            device_counts={"cpu": 1},
        )

    def __exit__(self, *_: object) -> None:
        return

    @property
    def nodes(self) -> tuple[WorkerInfo, ...]:
        return (self.info,)

    def unresolved(self, targets: Iterable[str], *_: object) -> tuple[str, ...]:
        reasons = (why_unresolved(self._runner, (target, ())) for target in targets)
        return tuple(filter(None, reasons))

    def run(
        self, jobs: Iterable[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        for job in jobs:
            self.started.append(job.case)
            yield job.function(self._runner, job)

    def call(self, function: Callable[..., Any], options: Any, timeout_s: float, *_: object) -> Any:
        return function(self._runner, options)

    @property
    def _runner(self) -> CaseRunner:
        # the allocator of the process that runs the tests stays as it is
        return CaseRunner(self.info.environment.fingerprint, Allocation.DEFAULT)

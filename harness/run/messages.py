"""The messages between a parent process and its workers.

A request holds the code that answers it, so that the worker module does not depend on the
packages that define requests. A request is created in the parent, which does not import torch:
``answer`` imports what it needs of torch when it runs, in the worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, Never, TypeVar

from harness.records import Budget, Case, Environment, Errors, Measurement, Record

if TYPE_CHECKING:
    from harness.run.case import CaseRunner

__all__ = [
    "TIMINGS",
    "Bug",
    "KnownErrors",
    "Progress",
    "Reply",
    "Request",
    "Resolve",
    "RunCase",
    "Update",
    "WorkerInfo",
]

TIMINGS = frozenset({Measurement.LATENCY, Measurement.COLD})
"""Measurements that differ from process to process."""

KnownErrors = tuple[tuple[bytes, Errors], ...]
"""Errors of outputs, each with a key that is the same in each process of a run."""

Reply = TypeVar("Reply")
Update = TypeVar("Update")
_Reply_co = TypeVar("_Reply_co", covariant=True)
_Update_co = TypeVar("_Update_co", covariant=True)


class Request(ABC, Generic[_Reply_co, _Update_co]):
    """A request of a parent to a worker: one reply follows, after any number of updates."""

    __slots__ = ()

    @abstractmethod
    def answer(self, runner: CaseRunner, report: Callable[[_Update_co], None]) -> _Reply_co:
        """Return the reply; called in the worker.

        Args:
            runner: runs the cases of this worker process.
            report: sends an update to the parent.
        """


@dataclass(frozen=True, slots=True)
class Progress(Generic[_Update_co]):
    """An update that a worker sends before its reply."""

    update: _Update_co


@dataclass(frozen=True, slots=True)
class Bug:
    """The harness itself failed in the worker; the run has to stop."""

    traceback: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The description of a worker and its machine; the first message that it sends."""

    environment: Environment
    implementations: dict[str, frozenset[str]]
    """Names, each with the kinds of device it is written for."""
    distributions: tuple[str, ...]
    layouts: tuple[str, ...]
    grad_outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    unavailable: dict[str, str]
    """Device kinds that cannot be used here, and why."""
    device_counts: dict[str, int]
    """How many devices there are of each kind that can be used."""
    peers: dict[str, frozenset[str]] = field(default_factory=dict)
    """Names of other people's implementations, each with its kinds of device."""


@dataclass(frozen=True, slots=True)
class Resolve(Request[str | None, Never]):
    """Ask whether an implementation can be found: the reply is the reason why not, or None."""

    target: str
    init: tuple[tuple[str, object], ...] = ()
    """Arguments of its constructor, by name."""

    def answer(self, runner: CaseRunner, report: Callable[[Never], None]) -> str | None:
        import implementations
        from harness.run.integrity import TamperingError

        try:
            options = implementations.CallOptions(init=dict(self.init))
            runner.trusted.imported(self.target, partial(implementations.find, options=options))
        except implementations.TargetError as error:
            return str(error)
        except TamperingError:  # it is found; each of its cases will say so
            return None
        return None


@dataclass(frozen=True, slots=True)
class RunCase(Request[Record, KnownErrors]):
    """A case to run to its record.

    If it runs in several processes, the errors that were measured come first, as an update.
    """

    case: Case
    measurements: Collection[Measurement]
    budget: Budget
    environments: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Fingerprints of the environments that may run it; not used on a single machine."""
    known: KnownErrors = field(default=(), kw_only=True)
    """Errors that earlier processes have measured for the case."""

    @property
    def is_timed(self) -> bool:
        return not TIMINGS.isdisjoint(self.measurements)

    def answer(self, runner: CaseRunner, report: Callable[[KnownErrors], None]) -> Record:
        runner.learn(dict(self.known))
        record = runner.run(self.case, self.measurements, self.budget)
        if self.budget.processes > 1:
            report(tuple(runner.measured_errors.items()))
        return record

"""Requests about one target, answered in a worker that imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Never

import implementations
from harness.inputs import UnrepresentableError
from harness.measure.devices import DEVICES
from harness.records import Case, Direction
from harness.run.messages import Request, Resolve
from harness.verify.explain import Explanation, explain
from harness.verify.result import Verdict
from harness.verify.verify import verify

if TYPE_CHECKING:
    from harness.run.case import CaseRunner

__all__ = ["ExplainCase", "ResolveToVerify", "VerifyProgress", "VerifySettings", "VerifyTarget"]

_REPORT_S = 0.3  # between two verdicts so far: making one takes a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What to verify of a target; the fields are arguments of :func:`harness.verify.verify`."""

    strength: int
    """The number of conditions of which every combination is tried."""
    dtypes: tuple[str, ...]
    directions: tuple[Direction, ...]
    device: str
    huge: bool = False
    """Whether to try more elements than 31 bits count, if there is memory for them."""
    eps: float | None = None
    normalized_dims: int | None = None
    channels_first: bool = False
    init: tuple[tuple[str, object], ...] = ()
    """Arguments of the target's constructor, by name."""
    time_budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far a verification is, in case its process ends before its verdict."""

    case: Case | None = None
    """The case that begins."""
    verdict: Verdict | None = None
    """The verdict so far; None if it has not changed."""


@dataclass(frozen=True, slots=True)
class VerifyTarget(Request[Verdict, VerifyProgress]):
    """A target to verify."""

    target: str
    settings: VerifySettings
    crashed: tuple[tuple[Case, str], ...] = ()
    """Cases that ended an earlier process, and how: they are not tried again."""

    def answer(self, runner: CaseRunner, report: Callable[[VerifyProgress], None]) -> Verdict:
        settings = self.settings
        huge_bytes = None
        if settings.huge:
            free = DEVICES[settings.device]().free_bytes()
            huge_bytes = sys.maxsize if free is None else free  # tried where free memory is unknown
        last_s = monotonic()

        def report_verdict(verdict: Callable[[], Verdict]) -> None:
            nonlocal last_s
            if monotonic() - last_s > _REPORT_S:
                report(VerifyProgress(verdict=verdict()))
                last_s = monotonic()

        return verify(
            self.target,
            strength=settings.strength,
            dtypes=settings.dtypes,
            directions=settings.directions,
            device=settings.device,
            huge_bytes=huge_bytes,
            eps=settings.eps,
            normalized_dims=settings.normalized_dims,
            channels_first=settings.channels_first,
            init=dict(settings.init),
            time_budget_s=settings.time_budget_s,
            crashed=dict(self.crashed),
            trusted=runner.trusted,
            on_case=lambda case: report(VerifyProgress(case=case)),
            on_progress=report_verdict,
        )


@dataclass(frozen=True, slots=True)
class ResolveToVerify(Resolve):
    """As :class:`Resolve`: its module imports what judges, so that it is known before targets."""


@dataclass(frozen=True, slots=True)
class ExplainCase(Request[Explanation | str, Never]):
    """One case to explain; the reply is an explanation, or why there is none."""

    case: Case
    row: int | None
    """None for the row with the largest error."""

    def answer(self, runner: CaseRunner, report: Callable[[Never], None]) -> Explanation | str:
        try:
            implementation = implementations.find(self.case.implementation)
            return explain(implementation, self.case, self.row)
        except (LookupError, UnrepresentableError) as error:
            return str(error.args[0])

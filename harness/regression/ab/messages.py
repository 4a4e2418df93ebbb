"""Requests about two revisions, answered in a worker that imports both side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Never

from harness.records import Record, Status
from harness.regression.ab.availability import LookupResult
from harness.regression.ab.revision import BASE, Checkout
from harness.run.messages import KnownErrors, Request, RunCase

if TYPE_CHECKING:
    from harness.run.case import CaseRunner
    from implementations.contract import Implementation

__all__ = ["LookupRequest", "RunBaseCase", "TimeAgainstBase"]


@dataclass(frozen=True, slots=True)
class LookupRequest(Request[tuple[LookupResult, ...], Never]):
    """Ask which targets a revision has."""

    checkout: Checkout | None
    """Files of the base revision; None looks up the targets in the working copy."""
    targets: tuple[str, ...]
    listings: tuple[str, ...] = ()
    """Tuples of its package, such as ALL, whose members are looked up too."""

    def answer(
        self, runner: CaseRunner, report: Callable[[Never], None]
    ) -> tuple[LookupResult, ...]:
        from harness.regression.ab.lookup import look_up

        return look_up(self.checkout, self.targets, self.listings)


@dataclass(frozen=True, slots=True)
class RunBaseCase(RunCase):
    """A case of the base revision, to run to its record."""

    checkout: Checkout

    def answer(self, runner: CaseRunner, report: Callable[[KnownErrors], None]) -> Record:
        from harness.regression.ab.side_by_side import side_by_side

        def find(target: str) -> Implementation:
            return side_by_side(self.checkout).find(target.removeprefix(BASE))

        return runner.run(self.case, self.measurements, self.budget, find)


@dataclass(frozen=True, slots=True)
class TimeAgainstBase(RunCase):
    """A case to verify and, if it is right, to time in turn with the same target of the base."""

    checkout: Checkout

    def answer(self, runner: CaseRunner, report: Callable[[KnownErrors], None]) -> Record:
        import implementations
        from harness.numerics.computed import function_of, run_once
        from harness.regression.ab.side_by_side import side_by_side

        case = self.case
        with runner.begin(case) as run:
            run.verify(implementations.find(case.implementation))
            if run.record.status is Status.OK:
                base = side_by_side(self.checkout).find(case.implementation)
                function = function_of(base, case.mode, keep=True)
                # compiles it before the timing
                run_once(function, case, run.inputs, on_copies=True)
                run.time(self.budget, reference=replace(base, function=function))
        return run.record

"""What a worker process does with two revisions: looks targets up, and runs a case beside its base.

A target of the base begins with ``base@``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import implementations
from harness.measure.latency import Sampled
from harness.records import Record
from harness.regression.ab.revision import BASE, Checkout
from harness.regression.ab.side_by_side import AbsentError, IncomparableError, beside, is_of
from harness.run.case import CaseRunner
from harness.run.timing import time_beside
from harness.run.worker import Found, LookUp, RunCase, Standing
from implementations.contract import Implementation

__all__ = ["finder", "look_up", "run_job"]


def finder(checkout: Checkout | None) -> Callable[[str], Implementation]:
    """Return what finds a target: one that begins with ``base@`` in the checkout, if there is one.

    Without a checkout the base is of this revision too.
    """

    def find(target: str) -> Implementation:
        if not target.startswith(BASE):
            return implementations.find(target)
        name = target.removeprefix(BASE)
        return beside(checkout).find(name) if checkout else implementations.find(name)

    return find


def run_job(runner: CaseRunner, job: RunCase) -> Record:
    """Run a case to its record, beside its rival if it has one."""
    runner.find = find = finder(job.checkout)
    if job.rival is None:
        return runner.run(job.case, job.measurements, job.budget)
    rival = job.rival

    def timer(*arguments: Any, **named: Any) -> Sampled:
        return time_beside(find(rival), *arguments, **named)

    return runner.run(job.case, job.measurements, job.budget, timer)


def look_up(request: LookUp) -> tuple[Found, ...]:
    """Say of each target, and of each member of a listing, whether a revision has it."""
    if request.checkout is None:
        return tuple(_look_up(_find_here, _names_here, request))
    revision = beside(request.checkout)
    return tuple(_look_up(revision.find, revision.names, request))


def _look_up(
    find: Callable[[str], Implementation],
    names: Callable[[str], Iterable[str]],
    request: LookUp,
) -> Iterator[Found]:
    for listing in request.listings:
        try:
            members = names(listing)
        except implementations.TargetError as why:
            yield Found(listing, Standing.BROKEN, str(why), listing=listing)
            continue
        yield from (replace(_standing(find, each), listing=listing) for each in members)
    yield from (_standing(find, each) for each in request.targets)


def _standing(find: Callable[[str], Implementation], target: str) -> Found:
    try:
        return Found(target, Standing.PRESENT, devices=find(target).devices)
    except AbsentError as why:
        return Found(target, Standing.ABSENT, str(why))
    except IncomparableError as why:
        return Found(target, Standing.INCOMPARABLE, str(why))
    except implementations.TargetError as why:
        return Found(target, Standing.BROKEN, str(why))


def _names_here(listing: str) -> list[str]:
    return [each.name for each in getattr(implementations, listing)]


def _find_here(target: str) -> Implementation:
    """Find a target in this revision, and tell what is not there from what cannot be imported."""
    try:
        return implementations.find(target)
    except implementations.TargetError as error:
        place, cause = target.rpartition(":")[0], error.__cause__
        no_file = place.endswith(".py") and not Path(place).is_file()
        no_module = isinstance(cause, ModuleNotFoundError) and is_of(cause, place)
        if cause is None or no_file or no_module:
            raise AbsentError(str(error)) from error
        raise

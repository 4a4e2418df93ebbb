"""Confirm suspects: time the same cases again in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from random import Random
from time import monotonic

from harness.records import Budget, Case, Environment, Measurement
from harness.records.text import count
from harness.regression.agreement import CONFIRMING_PROCESSES
from harness.regression.changes import Comparison
from harness.regression.compare import Confirm, compare
from harness.regression.latency_test import Shift, process_ratios
from harness.run.fleet import Fleet
from harness.run.messages import RunCase
from harness.store import Results
from harness.sweep import Sweep

__all__ = [
    "CONFIRMING",
    "EPOCHS",
    "LIMIT_S",
    "compare_as_stored",
    "confirm_from",
    "confirm_here",
    "time_again",
]

EPOCHS = 12  # trade-off: more epochs in one process do not narrow the spread between processes
LIMIT_S = 10.0  # trade-off: enough for calls of 50 ms; short calls take a third of a second
CONFIRMING = Budget(min_epochs=EPOCHS, max_epochs=EPOCHS, limit_s=LIMIT_S)
_MAJORITY = CONFIRMING_PROCESSES // 2 + 1  # processes that refute nearly all chance suspects


def compare_as_stored(before: Results, after: Results, names: tuple[str, str]) -> Comparison:
    """Compare two runs by what they hold; ``names`` are those of their files.

    Raises:
        Refusal: the runs have nothing in common, or nothing was measured.
    """
    return compare(
        before,
        after,
        baseline_name=names[0],
        head_name=names[1],
        confirm=confirm_from(before, after),
        least_processes=1,
    )


def confirm_here(
    head: Results, make_fleet: Callable[[], Fleet], say: Callable[[str], None]
) -> Confirm:
    """Return a function that times suspects again, if this machine measured the run ``head``.

    The other arguments are passed to ``time_again``.
    """

    def why_not(cases: Sequence[Case], here: Environment) -> str | None:
        suspects = set(cases)
        places = {record.environment for record in head.records if record.case in suspects}
        if places != {here.fingerprint}:
            return "the run was measured on another machine, or with other software"
        commit = head.runs[-1].git_commit if head.runs else None
        if commit is not None and here.git_commit is not None and commit != here.git_commit:
            return f"the run was of commit {commit[:12]}, but {here.git_commit[:12]} is checked out"
        return None

    def confirm(suspects: Sequence[Shift]) -> Mapping[str, Sequence[float]] | str:
        by_case = {each.case: each for each in suspects}
        jobs = [RunCase(case, (Measurement.LATENCY,), CONFIRMING) for case in by_case]
        return time_again(
            jobs,
            make_fleet,
            say,
            Sweep().timeout_s,
            is_refuted=lambda case, ratios: by_case[case].is_refuted(ratios),
            why_not=partial(why_not, [*by_case]),
        )

    return confirm


def time_again(
    jobs: Sequence[RunCase],
    make_fleet: Callable[[], Fleet],
    say: Callable[[str], None],
    timeout_s: float,
    *,
    is_refuted: Callable[[Case, Sequence[float]], bool],
    why_not: Callable[[Environment], str | None] = lambda here: None,
    stop_at: float = inf,
) -> dict[str, list[float]] | str:
    """Return the ratio of each case in each fresh process, or why there are none.

    Processes that start together time the cases one after the other, each in another order, so that
    the ratios include what differs between processes and between minutes. Each ends before the next
    one times a case. A refuted case is not timed again.

    Args:
        jobs: the suspects.
        make_fleet: starts a worker process.
        say: called with each line of progress.
        timeout_s: for one case in one process.
        is_refuted: called with a case and its ratios so far; whether no further ratios can confirm
            it.
        why_not: called with the environment of each process; returns why it cannot confirm, or
            None.
        stop_at: no case starts after this, by the monotonic clock; missing ratios confirm nothing.
    """
    left = list(jobs)
    ratios: dict[str, list[float]] = {job.case.id: [] for job in jobs}
    number = 0
    for together in (_MAJORITY, CONFIRMING_PROCESSES - _MAJORITY):
        with ExitStack() as stack:
            stacks = [stack.enter_context(ExitStack()) for _ in range(together if left else 0)]
            fleets = [own.enter_context(make_fleet()) for own in stacks]
            for fleet in fleets:  # none imports torch while another one measures
                if why := why_not(fleet.info.environment):
                    return f"it cannot be confirmed here: {why}"
            for own, fleet in zip(stacks, fleets, strict=True):
                if not left:
                    break
                if monotonic() >= stop_at:
                    return "the time was up before it could be confirmed"
                number += 1
                suspects = count(len(left), "suspect")
                say(f"timing {suspects} again, process {number} of at most {CONFIRMING_PROCESSES}")
                Random(number).shuffle(left)
                with own:  # ended before the next measures: it holds memory, and may have threads
                    for record in fleet.run(left, timeout_s, stop_at):
                        ratios[record.case.id] += process_ratios(record.latency)
                left = [each for each in left if not is_refuted(each.case, ratios[each.case.id])]
    return ratios


def confirm_from(baseline: Results, head: Results) -> Confirm:
    """Return a function that confirms by the processes of both runs, and measures nothing."""
    before = {record.case.id: record.latency for record in baseline.records}
    after = {record.case.id: record.latency for record in head.records}

    def confirm(suspects: Sequence[Shift]) -> Mapping[str, Sequence[float]]:
        names = [each.case.id for each in suspects]
        return {
            name: process_ratios(after[name])
            for name in names
            if len(process_ratios(before[name])) >= CONFIRMING_PROCESSES
        }

    return confirm

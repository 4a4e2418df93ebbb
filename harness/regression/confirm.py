"""Confirm suspects: time the same cases again in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from random import Random
from time import monotonic

from harness.cases import Sweep
from harness.records import Budget, Case, Environment, Measurement
from harness.records.text import count
from harness.regression.changes import Comparison
from harness.regression.compare import compare
from harness.regression.latency_judge import (
    CONFIRMING_PROCESSES,
    Confirm,
    Shift,
    process_ratios,
)
from harness.run.fleet import Fleet
from harness.run.worker import Job
from harness.store import Results

EPOCHS = 12  # trade-off: more epochs in one process do not narrow the spread between processes
LIMIT_S = 10.0  # trade-off: enough for calls of 50 ms; short calls take a third of a second
CONFIRMING = Budget(min_epochs=EPOCHS, max_epochs=EPOCHS, limit_s=LIMIT_S)
_MAJORITY = CONFIRMING_PROCESSES // 2 + 1  # processes that refute nearly all chance suspects


def compare_as_stored(before: Results, after: Results, names: tuple[str, str]) -> Comparison:
    """Compare two runs by what they hold; ``names`` are those of their files.

    Raises:
        Refusal: the runs have nothing in common, or nothing was measured.
    """
    old = {record.case.id: process_ratios(record.latency) for record in before.records}
    new = {record.case.id: process_ratios(record.latency) for record in after.records}

    def confirm(suspects: Sequence[Shift]) -> Mapping[str, Sequence[float]]:
        names = (shift.case.id for shift in suspects)
        return {name: new[name] for name in names if len(old[name]) >= CONFIRMING_PROCESSES}

    return compare(
        before,
        after,
        baseline_name=names[0],
        head_name=names[1],
        confirm=confirm,
        least_processes=1,
    )


def confirm_here(
    head: Results, make_fleet: Callable[[], Fleet], say: Callable[[str], None]
) -> Confirm:
    """Return a function that times suspects again, if this machine measured the run ``head``.

    The other arguments are passed to ``time_again``.
    """

    def confirm(suspects: Sequence[Shift]) -> Mapping[str, Sequence[float]] | str:
        cases = {shift.case for shift in suspects}
        environments = {record.environment for record in head.records if record.case in cases}

        def why_not(here: Environment) -> str | None:
            if environments != {here.fingerprint}:
                return "the run was measured on another machine, or with other software"
            commit = head.runs[-1].git_commit if head.runs else None
            if commit is not None and here.git_commit is not None and commit != here.git_commit:
                is_out = f"{here.git_commit[:12]} is checked out"
                return f"the run was of commit {commit[:12]}, but {is_out}"
            return None

        def job(case: Case) -> Job:
            return Job(case, (Measurement.LATENCY,), CONFIRMING)

        return time_again(suspects, job, make_fleet, say, Sweep().timeout_s, why_not=why_not)

    return confirm


def time_again(
    suspects: Sequence[Shift],
    job: Callable[[Case], Job],
    make_fleet: Callable[[], Fleet],
    say: Callable[[str], None],
    timeout_s: float,
    *,
    why_not: Callable[[Environment], str | None] = lambda here: None,
    stop_at: float = inf,
) -> dict[str, list[float]] | str:
    """Return the ratio of each case in each fresh process, or why there are none.

    Processes that start together time the cases one after the other, each in another order, so that
    the ratios include what differs between processes and between minutes. Each ends before the next
    one times a case. A refuted case is not timed again.

    Args:
        suspects: what was found at first sight.
        job: returns what a process is asked to time.
        make_fleet: starts a worker process.
        say: called with each line of progress.
        timeout_s: for one case in one process.
        why_not: called with the environment of each process; returns why it cannot confirm, or
            None.
        stop_at: no case starts after this, by the monotonic clock; missing ratios confirm nothing.
    """
    left = list(suspects)
    ratios: dict[str, list[float]] = {shift.case.id: [] for shift in suspects}
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
                cases = count(len(left), "suspect")
                say(f"timing {cases} again, process {number} of at most {CONFIRMING_PROCESSES}")
                Random(number).shuffle(left)
                with own:  # ended before the next measures: it holds memory, and may have threads
                    jobs = [job(shift.case) for shift in left]
                    for record in fleet.run(jobs, timeout_s, stop_at):
                        ratios[record.case.id] += process_ratios(record.latency)
                left = [shift for shift in left if not shift.is_refuted(ratios[shift.case.id])]
    return ratios

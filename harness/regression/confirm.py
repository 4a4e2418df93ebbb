"""What settles a suspect: the same case, timed again in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from time import monotonic

from harness.records import Budget, Case, Environment, Latency, Measurement
from harness.regression.compare import Confirm
from harness.regression.latency_test import CONFIRMING_PROCESSES, process_ratios
from harness.run.fleet import Fleet
from harness.run.worker import RunCase
from harness.store import Results
from harness.sweep import Sweep

__all__ = ["CONFIRMING", "EPOCHS", "LIMIT_S", "ConfirmHere", "confirm_from", "time_again"]

EPOCHS = 12  # ours: as many placements of the inputs; more of them in one process narrow nothing
LIMIT_S = 10.0  # ours: for calls of 50 ms; one of microseconds is done in a third of a second
CONFIRMING = Budget(min_epochs=EPOCHS, max_epochs=EPOCHS, limit_s=LIMIT_S)
_TIMEOUT_S = Sweep().timeout_s


@dataclass(frozen=True)
class ConfirmHere:
    """Times suspects again on this machine, if it is the one that the run was measured on."""

    head: Results
    """The run, for where it was measured and of which commit."""
    make_fleet: Callable[[], Fleet]
    """Starts a process."""
    say: Callable[[str], None]
    """Hears of progress."""

    def __call__(self, cases: Sequence[Case]) -> Mapping[str, Sequence[float]] | str:
        """Return the ratio to the reference in each fresh process, or why there is none.

        One process after the other, each with the cases in an order of its own: what differs from
        process to process, and from minute to minute, is in the figures.
        """
        jobs = [RunCase(case, (Measurement.LATENCY,), CONFIRMING) for case in cases]
        why_not = partial(self._why_not, cases)
        return time_again(jobs, self.make_fleet, self.say, _TIMEOUT_S, why_not=why_not)

    def _why_not(self, cases: Sequence[Case], here: Environment) -> str | None:
        wanted = set(cases)
        places = {each.environment for each in self.head.records if each.case in wanted}
        if places != {here.fingerprint}:
            return "the run was measured on another machine, or with other software"
        commit = self.head.runs[-1].git_commit if self.head.runs else None
        if commit is not None and here.git_commit is not None and commit != here.git_commit:
            return f"the run was of commit {commit[:12]}, and {here.git_commit[:12]} is here"
        return None


def time_again(
    jobs: Sequence[RunCase],
    make_fleet: Callable[[], Fleet],
    say: Callable[[str], None],
    timeout_s: float,
    *,
    why_not: Callable[[Environment], str | None] = lambda here: None,
    stop_at: float = inf,
) -> dict[str, list[float]] | str:
    """Return for each case its ratios in so many fresh processes, or why they cannot be had.

    Args:
        jobs: suspects, to be timed.
        make_fleet: starts a process.
        say: hears of progress.
        timeout_s: for a case in one process.
        why_not: asked of the machine, as each process finds it.
        stop_at: when time is up, by the monotonic clock; what is missing then confirms nothing.
    """
    jobs = list(jobs)
    found: dict[str, list[float]] = {job.case.id: [] for job in jobs}
    count = "1 suspect" if len(jobs) == 1 else f"{len(jobs)} suspects"
    for number in range(CONFIRMING_PROCESSES):
        if monotonic() >= stop_at:
            return "the time was up before it was confirmed"
        with make_fleet() as fleet:
            if why := why_not(fleet.hello.environment):
                return f"it cannot be confirmed here: {why}"
            say(f"timing {count} again, process {number + 1} of {CONFIRMING_PROCESSES}")
            Random(number).shuffle(jobs)
            for record in fleet.run(jobs, timeout_s, stop_at):
                found[record.case.id] += _ratios(record.latency)
    return found


def confirm_from(baseline: Results, head: Results) -> Confirm:
    """Return a confirmation that measures nothing: both runs' own processes, if they are many."""
    before = {each.case.id: each.latency for each in baseline.records}
    after = {each.case.id: each.latency for each in head.records}

    def confirm(cases: Sequence[Case]) -> Mapping[str, Sequence[float]]:
        return {
            each.id: _ratios(after[each.id])
            if len(_ratios(before[each.id])) >= CONFIRMING_PROCESSES
            else ()
            for each in cases
        }

    return confirm


def _ratios(latency: Latency | None) -> tuple[float, ...]:
    return () if latency is None else process_ratios(latency)

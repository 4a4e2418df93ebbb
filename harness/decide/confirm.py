"""What settles a suspect: the same case, timed again in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from harness.decide.compare import Confirm
from harness.decide.screen import CONFIRMING_PROCESSES, process_ratios
from harness.records import Budget, Case, Environment, Latency, Measurement
from harness.run.fleet import Fleet
from harness.run.worker import RunCase
from harness.store import Results
from harness.sweep import Sweep

__all__ = ["EPOCHS", "LIMIT_S", "ConfirmHere", "confirm_from"]

EPOCHS = 12  # ours: as many placements of the inputs; more of them in one process narrow nothing
LIMIT_S = 10.0  # ours: for calls of 50 ms; one of microseconds is done in a third of a second
_BUDGET = Budget(min_epochs=EPOCHS, max_epochs=EPOCHS, limit_s=LIMIT_S)
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
        jobs = [RunCase(case, (Measurement.LATENCY,), _BUDGET) for case in cases]
        found: dict[str, list[float]] = {case.id: [] for case in cases}
        for number in range(CONFIRMING_PROCESSES):
            with self.make_fleet() as fleet:
                if why := self._why_not(cases, fleet.hello.environment):
                    return f"it cannot be confirmed here: {why}"
                count = "1 suspect" if len(cases) == 1 else f"{len(cases)} suspects"
                self.say(f"timing {count} again, process {number + 1} of {CONFIRMING_PROCESSES}")
                Random(number).shuffle(jobs)
                for record in fleet.run(jobs, _TIMEOUT_S):
                    found[record.case.id] += _ratios(record.latency)
        return found

    def _why_not(self, cases: Sequence[Case], here: Environment) -> str | None:
        wanted = set(cases)
        places = {each.environment for each in self.head.records if each.case in wanted}
        if places != {here.fingerprint}:
            return "the run was measured on another machine, or with other software"
        commit = self.head.runs[-1].git_commit if self.head.runs else None
        if commit is not None and here.git_commit is not None and commit != here.git_commit:
            return f"the run was of commit {commit[:12]}, and {here.git_commit[:12]} is here"
        return None


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

"""The machine that the timers are compared on: its description, its load, and a process on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep

import click
import torch
from own_processes import Finding, measure
from pairs import PAIRS, ROLES
from rows import Row
from tasks import Task

from harness.measure.environment import read_environment

IDLE_BEFORE = 0.95  # a machine on which nothing runs is idle for a larger share


@dataclass(frozen=True, slots=True)
class Here:
    """What is the same for every row."""

    commit: str
    cpu: str
    cores: int
    platform: str

    @classmethod
    def read(cls) -> Here:
        found = read_environment()
        changes = "+" if found.git_dirty else ""
        return cls(
            commit=f"{found.git_commit or 'unknown'}{changes}",
            cpu=f"{found.cpu} {found.cpu_capability}",
            cores=found.cpu_count,
            platform=f"{found.platform}, Python {found.python}",
        )

    def run(self, task: Task) -> list[Row]:
        """Run one process, and look at the machine before and after."""
        started, load = datetime.now(UTC), _load_average()
        before, began = _idle_and_total(), monotonic()
        seed = f"{task.experiment}/{task.condition}/{task.timer.name}/{task.process}"
        findings = measure(task.timer, task.pairs, seed)
        process_s = monotonic() - began
        idle_ratio = _idle_ratio(before, _idle_and_total())
        return [
            self._row(task, finding, process_s, load, idle_ratio, started) for finding in findings
        ]

    def _row(
        self,
        task: Task,
        finding: Finding,
        process_s: float,
        load_average: float | None,
        idle_ratio: float | None,
        started: datetime,
    ) -> Row:
        pair = PAIRS[finding.pair]
        subject, reference = map(pair.describe, ROLES)
        return Row(
            experiment=task.experiment,
            condition=task.condition,
            timer=finding.timer,
            tool=task.timer.tool,
            allocation=task.timer.allocation,
            case=pair.name,
            subject=subject,
            reference=reference,
            process=task.process,
            ratio=finding.ratio,
            truth=pair.truth,
            seconds=finding.seconds,
            process_s=process_s,
            load_average=load_average,
            idle_ratio=idle_ratio,
            started=started.isoformat(timespec="seconds"),
            commit=self.commit,
            cpu=self.cpu,
            cores=self.cores,
            torch=torch.__version__,
            platform=self.platform,
        )


def _load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _idle_and_total() -> tuple[int, int] | None:
    """Ticks that all cores were idle, and all their ticks so far; see proc_stat(5)."""
    try:
        ticks = [
            int(ticks_text)
            for ticks_text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        ]
    except (OSError, ValueError):
        return None
    return ticks[3] + ticks[4], sum(ticks)  # waiting for a disk is idle, too


def _idle_ratio(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def warn_unless_quiet(tasks: Sequence[Task]) -> None:
    """Look at the machine for two seconds before it is called quiet."""
    if not any(task.condition == "quiet" for task in tasks):
        return
    before = _idle_and_total()
    sleep(2)
    idle_ratio = _idle_ratio(before, _idle_and_total())
    if idle_ratio is not None and idle_ratio < IDLE_BEFORE:
        click.echo(
            f"this machine is not quiet: {1 - idle_ratio:.0%} of its time is used; close what else "
            "runs",
            err=True,
        )

"""Compare the harness's sampler with other timers: error and duration, quiet and loaded.

    python experiments/timers/compare_timers.py            half an hour; prints an estimate first
    python experiments/timers/compare_timers.py --quick    two minutes, to see that all of it works
    python experiments/timers/compare_timers.py --report   prints the tables of the stored rows

There are two experiments. In "timers", every timer measures every pair, each time in a new process,
in random order: on a quiet machine (close other programs first) and beside busy neighbours
("loaded"). In "processes", the harness's sampler alone measures five pairs in random order in many
processes on a loaded machine. It shows whether A/A is 1, whether a slowdown is found, and how often
an interval over five processes covers the median.

Timers that take seconds run in every second repeat. pyperf takes minutes: it runs in every fourth
repeat, and only with --with-pyperf. pairs.py defines what is timed, timers.py how, report_timers.py
which ratio is taken as true.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from random import Random
from time import monotonic, sleep

import click
import torch
from neighbour import busy_neighbours
from own_processes import Finding, measure
from pairs import ALONE_PAIRS, COMPARED_PAIRS, PAIRS, ROLES
from report_timers import report
from rows import Row, append, read, write
from timers import TIMERS, Timer, selected

from harness.measure.environment import read_environment

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "timers.parquet"
QUICK = ROOT / "results" / "timers-quick.parquet"

ALONE_TIMER = "harness-0.3"
REPEATS, PROCESSES = 4, 40  # half an hour
QUICK_REPEATS, QUICK_PROCESSES = 2, 4
QUICK_TIMERS, QUICK_PAIRS = "harness-0.3,blocked-0.2", ("tiny", "dram", "aa")
IDLE_BEFORE = 0.95  # a machine on which nothing runs is idle for a larger share
# seconds to start a process on two cores of a server of 2024, for the estimate
START_S = {"quiet": 1.8, "loaded": 4.0}


@dataclass(frozen=True, slots=True)
class Task:
    """One process to run."""

    experiment: str
    condition: str
    timer: Timer
    pairs: tuple[str, ...]
    process: int

    @property
    def expected_s(self) -> float:
        each = self.timer.loaded_s if self.condition == "loaded" else self.timer.quiet_s
        return START_S[self.condition] + len(self.pairs) * each


def tasks_of(
    condition: str, timers: Sequence[Timer], pairs: Sequence[str], repeats: int, processes: int
) -> list[Task]:
    """Return the processes of one condition in a random order that is always the same."""
    random = Random(condition)
    drawn: list[tuple[str, Timer, tuple[str, ...]]] = []
    for repeat in range(repeats):
        round_of = [
            ("timers", timer, (pair,))
            for timer in timers
            for pair in timer.pairs
            if pair in pairs and repeat % timer.every == 0
            if condition == "quiet" or not timer.quiet_only
        ]
        drawn += random.sample(round_of, len(round_of))
    if condition == "loaded":
        alone = next(timer for timer in TIMERS if timer.name == ALONE_TIMER)
        for _ in range(processes):
            order = tuple(random.sample(ALONE_PAIRS, len(ALONE_PAIRS)))
            drawn.append(("processes", alone, order))
    return [
        Task(experiment, condition, timer, chosen, number)
        for number, (experiment, timer, chosen) in enumerate(drawn)
    ]


def run_tasks(tasks: Sequence[Task], progress: Callable[[Task, str], None]) -> Iterator[list[Row]]:
    """Run the tasks one after the other; those of the loaded condition beside neighbours."""
    here = Here.read()
    for condition in ("quiet", "loaded"):
        some = [task for task in tasks if task.condition == condition]
        with busy_neighbours() if some and condition == "loaded" else nullcontext():
            for task in some:
                rows = here.run(task)
                yield rows
                progress(task, ", ".join(f"{row.case} {row.ratio:.3f}" for row in rows))


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
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return ticks[3] + ticks[4], sum(ticks)  # waiting for a disk is idle, too


def _idle_ratio(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


class Progress:
    """A line on standard error after each process: how many, what was found, how long still."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._count, self._done = len(tasks), 0
        self._expected_s = sum(task.expected_s for task in tasks)
        self._past_s = 0.0
        self._began = monotonic()

    def __call__(self, task: Task, found: str) -> None:
        self._done += 1
        self._past_s += task.expected_s
        # the estimate for the rest, corrected by how wrong it was so far
        left_s = (monotonic() - self._began) / self._past_s * (self._expected_s - self._past_s)
        line = (
            f"{self._done:4}/{self._count}  {left_s / 60:5.1f} min left  {task.condition:6}  "
            f"{task.timer.name}: {found}"
        )
        on_terminal = sys.stderr.isatty()
        click.echo(f"\r\033[K{line}" if on_terminal else line, err=True, nl=not on_terminal)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--quick", is_flag=True, help="Two repeats of two timers: two minutes.")
@click.option("--repeats", type=click.IntRange(1), help=f"Processes per cell. [{REPEATS}]")
@click.option(
    "--processes", type=click.IntRange(0), help=f"Processes of the harness alone. [{PROCESSES}]"
)
@click.option("--only", type=click.Choice(["quiet", "loaded"]), help="One condition.")
@click.option(
    "--timers", "names", metavar="A,B", help="Some timers, by name or the beginning of a name."
)
@click.option(
    "--with-pyperf", is_flag=True, help="Time with pyperf too: two to four more minutes per pair."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The parquet.")
@click.option("--table", type=click.Path(path_type=Path, dir_okay=False), help="Markdown file.")
@click.option(
    "--report", "report_only", is_flag=True, help="Print the tables of --out; measure nothing."
)
def main(
    quick: bool,
    repeats: int | None,
    processes: int | None,
    only: str | None,
    names: str | None,
    with_pyperf: bool,
    out: Path | None,
    table: Path | None,
    report_only: bool,
) -> None:
    out = out or (QUICK if quick else PUBLISHED)
    if not report_only:
        try:
            timers = selected(names or (QUICK_TIMERS if quick else _all(with_pyperf)))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--timers") from error
        conditions = ("quiet", "loaded") if only is None else (only,)
        repeats = repeats or (QUICK_REPEATS if quick else REPEATS)
        if processes is None:
            processes = QUICK_PROCESSES if quick else PROCESSES
        pairs = QUICK_PAIRS if quick else COMPARED_PAIRS
        tasks = [
            task
            for condition in conditions
            for task in tasks_of(condition, timers, pairs, repeats, processes)
        ]
        _measure(tasks, out)
    if not out.exists():
        raise click.ClickException(f"there is no {out}; measure first")
    text = report(read(out))
    click.echo(text)
    if table is not None:
        table.write_text(text)


def _all(with_pyperf: bool) -> str:
    return ",".join(each.name for each in TIMERS if with_pyperf or each.tool != "pyperf")


def _measure(tasks: Sequence[Task], out: Path) -> None:
    """Run ``tasks``; their rows are in a file of lines until all are there, then in ``out``."""
    lines = out.with_suffix(".jsonl")
    if lines.exists():
        raise click.ClickException(
            f"{lines} is left from a run that was stopped; see --report --out {lines}, "
            "and delete it to measure anew"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    expected_s = sum(task.expected_s for task in tasks)
    if any(task.timer.tool == "pyperf" for task in tasks) and find_spec("pyperf") is None:
        raise click.ClickException("pyperf is not installed; pip install pyperf")
    _warn_unless_quiet(tasks)
    click.echo(f"{len(tasks)} processes, about {expected_s / 60:.0f} min, to {out}", err=True)
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that the neighbours are ended too
    try:
        for rows in run_tasks(tasks, Progress(tasks)):
            append(rows, lines)
    except KeyboardInterrupt as stop:
        click.echo(f"\nstopped; what was measured: --report --out {lines}", err=True)
        raise click.Abort from stop
    click.echo(err=True)
    write(read(lines), out)
    lines.unlink()


def _warn_unless_quiet(tasks: Sequence[Task]) -> None:
    """Look at the machine for two seconds before it is called quiet."""
    if not any(task.condition == "quiet" for task in tasks):
        return
    before = _idle_and_total()
    sleep(2)
    idle_ratio = _idle_ratio(before, _idle_and_total())
    if idle_ratio is not None and idle_ratio < IDLE_BEFORE:
        click.echo(
            f"this machine is not quiet: {1 - idle_ratio:.0%} of its time is used; close what else "
            "runs, since the true ratios are measured in this condition",
            err=True,
        )


if __name__ == "__main__":
    main()

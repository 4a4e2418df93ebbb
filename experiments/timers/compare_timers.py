"""Compare the harness's sampler with other timers: error and duration, quiet and loaded.

    python experiments/timers/compare_timers.py            an hour; prints an estimate first
    python experiments/timers/compare_timers.py --quick    two minutes, to see that all of it works
    python experiments/timers/compare_timers.py --report   prints the tables of the stored rows

There are two experiments. In "timers", every timer measures four pairs whose ratio is known by
construction, in twenty processes, in random order: on a quiet machine (close other programs first)
and beside busy neighbours ("loaded"). In "processes", the harness's sampler alone measures five
pairs in forty processes on a loaded machine. It shows how much processes differ, and how often an
interval over five processes covers the median.

pairs.py defines what is timed, timers.py how, and tasks.py in which order.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic

import click
from machine import Here, warn_unless_quiet
from neighbour import busy_neighbours
from report_timers import report
from rows import Row, append, read, write
from tasks import Task, tasks_of
from timers import TIMERS, selected

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "timers.parquet"
QUICK = ROOT / "results" / "timers-quick.parquet"

REPEATS, PROCESSES = 20, 40  # an hour
QUICK_REPEATS, QUICK_PROCESSES = 2, 4
ALL = ",".join(timer.name for timer in TIMERS)
QUICK_TIMERS = "harness-0.3,alternating-0.3"


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
    out: Path | None,
    table: Path | None,
    report_only: bool,
) -> None:
    out = out or (QUICK if quick else PUBLISHED)
    if not report_only:
        try:
            timers = selected(names or (QUICK_TIMERS if quick else ALL))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--timers") from error
        conditions = ("quiet", "loaded") if only is None else (only,)
        repeats = repeats or (QUICK_REPEATS if quick else REPEATS)
        if processes is None:
            processes = QUICK_PROCESSES if quick else PROCESSES
        tasks = [
            task
            for condition in conditions
            for task in tasks_of(condition, timers, repeats, processes)
        ]
        _measure(tasks, out)
    if not out.exists():
        raise click.ClickException(f"there is no {out}; measure first")
    text = report(read(out))
    click.echo(text)
    if table is not None:
        table.write_text(text)


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
    warn_unless_quiet(tasks)
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


if __name__ == "__main__":
    main()

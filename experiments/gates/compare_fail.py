"""How often does pytest-benchmark's own gate fail when nothing has changed?

    python experiments/gates/compare_fail.py            ten minutes; prints the tables
    python experiments/gates/compare_fail.py --quick    two minutes, to see that all of it works
    python experiments/gates/compare_fail.py --report   prints the tables of the stored rows

The script runs ``pytest --layernorm-sweep`` on twelve short cases repeatedly, each time in a new
process, with pytest-benchmark's defaults, on a quiet machine (close other programs first) and
beside busy neighbours ("loaded"). Every run is compared with the run before it. Code and machine
are the same, so each failure is false. All gates are given to ``--benchmark-compare-fail`` at once.
pytest-benchmark's own check, applied to the times it saved, gives the verdict of each gate alone.
Both must agree on every comparison.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pytest_benchmark.utils import parse_compare_fail

from harness.measure.environment import read_environment

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "timers"))
from neighbour import busy_neighbours  # noqa: E402 - the module is with the timers

ROOT = HERE.parents[1]
PUBLISHED = ROOT / "results" / "published" / "compare_fail.parquet"
QUICK = ROOT / "results" / "compare_fail-quick.parquet"

GATES = ("min:5%", "median:5%", "mean:5%", "min:10%", "mean:10%")
RUNS, QUICK_RUNS = 21, 3  # of a condition: twenty comparisons, or two
QUICKLY = ("--benchmark-max-time=0.05",)
CHECK: Callable[[str], Any] = parse_compare_fail  # pytest-benchmark's own, without types
QUIET_LOAD = 1.5  # the measured process alone has a load of 1
TIMEOUT_S = 1800  # sixty times a usual run
FAILED = "has failed PercentageRegressionCheck"  # pytest-benchmark prints this once per failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The times of one case in one run."""

    condition: str
    """"quiet", or "loaded" with busy neighbours."""
    run: int
    """Counts the runs of this condition, from 0; each is compared with the one before."""
    case: str
    min: float
    """Seconds per call, as pytest-benchmark reports it; so are median and mean."""
    median: float
    mean: float
    rounds: int
    load_average: float | None
    """Load average over the last minute, when the run started."""
    run_s: float
    """Seconds of the whole run."""
    started: str
    """UTC time at which the run started."""
    commit: str
    """git commit of this project, with "+" if there were uncommitted changes."""
    cpu: str
    cores: int
    """Cores that the process may use."""
    versions: str
    """Versions of Python, torch and pytest-benchmark."""


@dataclass(frozen=True, slots=True)
class Here:
    """The columns that are the same in every row."""

    commit: str
    cpu: str
    cores: int
    versions: str

    @classmethod
    def read(cls) -> Here:
        found = read_environment()
        packages = ", ".join(
            f"{package} {version(package)}" for package in ("torch", "pytest-benchmark")
        )
        return cls(
            commit=f"{found.git_commit or 'unknown'}{'+' if found.git_dirty else ''}",
            cpu=f"{found.cpu} {found.cpu_capability}",
            cores=found.cpu_count,
            versions=f"Python {found.python}, {packages}",
        )


def run_pytest(
    folder: Path, here: Here, condition: str, before: Sequence[Row], more: Sequence[str]
) -> list[Row]:
    """Time all cases in a fresh pytest that compares them with ``before``, if there is one.

    Raises:
        RuntimeError: pytest failed for another reason than that a gate did, or the real gates and
            the failures worked out here differ.
    """
    run = before[0].run + 1 if before else 0
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *more]
    command += ["--layernorm-sweep", str(HERE / "twelve_cases.toml")]
    command += ["--benchmark-storage", (folder / "saved").as_uri(), "--benchmark-save=unchanged"]
    if before:  # compares with the last saved run
        command += ["--benchmark-compare", "--benchmark-compare-fail", *GATES]
    started, load = datetime.now(UTC), os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    run_s = (datetime.now(UTC) - started).total_seconds()
    saved = list(folder.glob(f"saved/*/{run + 1:04}_unchanged.json"))
    rows = [
        Row(
            condition=condition,
            run=run,
            case=benchmark["name"],
            **{name: benchmark["stats"][name] for name in ("min", "median", "mean", "rounds")},
            load_average=load,
            run_s=run_s,
            started=started.isoformat(timespec="seconds"),
            **asdict(here),
        )
        for file in saved
        for benchmark in json.loads(file.read_text())["benchmarks"]
    ]
    expected, said = len(list(failures(before, rows, GATES))), done.stderr.count(FAILED)
    if not rows or said != expected or done.returncode != (1 if expected else 0):
        raise RuntimeError(
            f"run {run} timed {len(rows)} cases and should fail {expected} times; pytest-benchmark "
            f"found {said}, and pytest ended with {done.returncode}:\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return rows


def failures(
    before: Sequence[Row], after: Sequence[Row], gates: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Case and gate wherever pytest-benchmark's own check fails a run beside the one before it."""
    compared = {earlier.case: asdict(earlier) for earlier in before}
    for row in after:
        for gate in gates:
            if row.case in compared and CHECK(gate).fails(asdict(row), compared[row.case]):
                yield row.case, gate


def report(rows: Sequence[Row]) -> str:
    """Return all tables as Markdown."""
    first, last = rows[0], rows[-1]
    parts = [
        f"{len({row.case for row in rows})} cases, {first.started[:16]} to {last.started[:16]} "
        f"UTC; {first.cpu}, {first.cores} cores; {first.versions}; commit {first.commit[:12]}"
        f"{' with changes' if first.commit.endswith('+') else ''}. Nothing changed between runs: "
        "every failure is a false one. In brackets a 95 % interval (Wilson 1927).",
    ]
    for condition in ("quiet", "loaded"):
        some = [row for row in rows if row.condition == condition]
        loads = [row.load_average for row in some if row.load_average is not None]
        if some:
            words = f"{condition} machine"
            if loads:
                words += f" (median load average {median(loads):.1f})"
                if condition == "quiet" and median(loads) > QUIET_LOAD:
                    words += ". IT WAS NOT QUIET: do not use these figures"
            parts += [f"**{words}**", _table(some)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> str:
    """Count the runs and the cases that fail per gate; give the worst change of its figure."""
    by_run = [[row for row in rows if row.run == run] for run in range(rows[-1].run + 1)]
    pairs = list(pairwise(by_run))
    lines = [["gate", "runs that fail", "cases that fail", "worst change"], ["---"] * 4]
    for gate in GATES:
        found = [list(failures(before, after, [gate])) for before, after in pairs]
        cases, figure = sum(map(len, by_run[1:])), gate.partition(":")[0]
        lines.append([
            f"`{gate}`",
            _share(sum(map(bool, found)), len(pairs)),
            _share(sum(map(len, found)), cases),
            f"{100 * (max(_changes(pairs, figure), default=1) - 1):+.0f} %",
        ])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _changes(pairs: Sequence[tuple[list[Row], list[Row]]], figure: str) -> Iterator[float]:
    """Yield the ratio of each case's figure to that of the run before."""
    for before, after in pairs:
        old = {row.case: getattr(row, figure) for row in before}
        yield from (getattr(row, figure) / old[row.case] for row in after)


def _share(count: int, total: int) -> str:
    """A share with its 95 % interval: Wilson (1927), J. Am. Stat. Assoc. 22, 209-212."""
    if not total:
        return "none compared"
    z, share = 1.96, count / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2) / (1 + z**2 / total)
    return f"{count} of {total}: {share:.0%} [{centre - half:.0%}, {centre + half:.0%}]"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--quick", is_flag=True, help="Three short runs per condition: two minutes.")
@click.option("--runs", type=click.IntRange(2), help=f"Runs of each condition. [{RUNS}]")
@click.option("--only", type=click.Choice(["quiet", "loaded"]), help="One condition.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The parquet.")
@click.option("--table", type=click.Path(path_type=Path, dir_okay=False), help="Markdown file.")
@click.option(
    "--report", "report_only", is_flag=True, help="Print the tables of --out; measure nothing."
)
def main(
    quick: bool,
    runs: int | None,
    only: str | None,
    out: Path | None,
    table: Path | None,
    report_only: bool,
) -> None:
    out = out or (QUICK if quick else PUBLISHED)
    if not report_only:
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # so that the neighbours are ended too
        conditions = ("quiet", "loaded") if only is None else (only,)
        runs = runs or (QUICK_RUNS if quick else RUNS)
        _measure(conditions, runs, QUICKLY if quick else (), out)
    if not out.exists():
        raise click.ClickException(f"there is no {out}; measure first")
    text = report([Row(**row) for row in pq.read_table(out).to_pylist()])
    click.echo(text)
    if table is not None:
        table.write_text(text)


def _measure(conditions: Sequence[str], runs: int, more: Sequence[str], out: Path) -> None:
    """Run pytest ``runs`` times in each condition; ``out`` is there when all are done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"unfinished-{out.name}")
    here, rows = Here.read(), list[Row]()
    try:
        for condition in conditions:
            neighbours = busy_neighbours() if condition == "loaded" else nullcontext()
            with neighbours, tempfile.TemporaryDirectory() as folder:
                Path(folder, "pytest.ini").write_text("[pytest]\n")  # no settings but the defaults
                found: list[Row] = []
                for run in range(runs):
                    found = run_pytest(Path(folder), here, condition, found, more)
                    rows += found
                    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), unfinished)
                    click.echo(f"{condition} {run + 1}/{runs}: {found[0].run_s:.0f} s", err=True)
    except KeyboardInterrupt as stop:
        click.echo(f"\nstopped; what was measured: --report --out {unfinished}", err=True)
        raise click.Abort from stop
    unfinished.replace(out)


if __name__ == "__main__":
    main()

"""By how much do counts of instructions differ when nothing has changed?

    python experiments/gates/counts.py            prints the table
    python experiments/gates/counts.py --report   prints the table of the stored counts

The timed cases of the preset ci are counted again and again: on the machine as it is and beside
busy neighbours, with the project and Python in folders of other names, beside other packages, with
many more environment variables and another home, with many files open, in two orders. Each run is
then compared with each other one by the rule of ``check``, unchanged and with 1 % more
instructions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from time import monotonic
from typing import Any

import click
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.cases import load_preset
from harness.measure.environment import read_environment
from harness.records import Case, Measurement, Record, Status
from harness.regression.changes import exact_changes
from harness.run import Fleet, count_instructions, plan

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "timers"))
from neighbour import busy_neighbours  # noqa: E402 - the module is with the timers

ROOT = HERE.parents[1]
PUBLISHED = ROOT / "results" / "published" / "counts.parquet"
STATES = (
    "as it is",
    "other folders",
    "other packages",
    "1000 variables",
    "500 open files",
    "busy neighbours",
)
TIMEOUT_S = 120.0
PLANTED = 1.01
SIZES = ((0, 100_000), (100_000, 1_000_000), (1_000_000, sys.maxsize))


def cases() -> list[Case]:
    """Return the timed cases of the preset ci."""
    with Fleet() as fleet:
        planned = plan(load_preset("ci"), fleet)
    return [row.case for row in planned if Measurement.LATENCY in row.measurements]


def count_all(order: str) -> dict[str, int]:
    """Count all cases in an order; return the counts by the cases' ids."""
    ordered = cases() if order == "as planned" else cases()[::-1]
    counted: dict[str, int] = {}
    for case, answer in count_instructions(ordered, TIMEOUT_S):
        assert isinstance(answer, int), answer
        counted[case.id] = answer
    return counted


def run(state: str, order: str, folder: Path) -> dict[str, int]:
    """Count all cases in a process of its own, in a state of the machine."""
    python, root, variables = Path(sys.executable), ROOT, dict(os.environ)
    if state in {"other folders", "other packages"}:
        root = folder / "a project in a folder whose name is long"
        root.symlink_to(ROOT)
        environment = folder / "environment"
        subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
        python = environment / "bin" / "python"
        (found,) = environment.glob("lib/*/site-packages")
        paths = [Path(path) for path in sys.path if path.endswith("-packages")]
        if state == "other folders":
            (found / "packages.pth").write_text("\n".join(map(str, paths)) + "\n")
        else:
            for own in (own for path in paths for own in path.iterdir()):
                (found / own.name).symlink_to(own)
            for number in range(80):
                (found / f"package_{number}").mkdir()
    if state == "1000 variables":
        variables |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
        variables |= {f"VARIABLE_{number}": "x" * number for number in range(1000)}
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(500 * (state == "500 open files"))]
    try:
        with busy_neighbours() if state == "busy neighbours" else nullcontext():
            done = subprocess.run(
                [python, root / "experiments" / "gates" / "counts.py", "--one", order],
                cwd=root,
                env=variables | {"PYTHONPATH": str(root)},
                pass_fds=opened,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
    finally:
        for descriptor in opened:
            os.close(descriptor)
    counted: dict[str, int] = json.loads(done.stdout)
    return counted


def measured(runs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each case of each run."""
    environment = read_environment()
    commit = f"{environment.git_commit}{'+' if environment.git_dirty else ''}"
    states = list(product(STATES, ("as planned", "reversed")))
    count_all("as planned")  # the first run of a checkout writes bytecode
    for number in range(runs):
        state, order = states[number % len(states)]
        began = monotonic()
        with tempfile.TemporaryDirectory() as folder:
            counted = run(state, order, Path(folder))
        for case, instructions in counted.items():
            yield {
                "run": number,
                "state": state,
                "order": order,
                "case": case,
                "instructions": instructions,
                "run_s": monotonic() - began,
                "cpu": environment.cpu,
                "cores": environment.cpu_count,
                "torch": dict(environment.packages)["torch"],
                "python": environment.python,
                "commit": commit,
            }


def fails(before: int, now: int) -> bool:
    """Whether ``check`` fails a case with these counts."""
    record = Record(
        case=Case(implementation="native", shape=(1, 1)), environment="", status=Status.OK
    )
    first, second = (replace(record, instructions=number) for number in (before, now))
    return any(change.kind.is_failure for change in exact_changes(first, second))


def table(rows: pd.DataFrame) -> str:
    """Return the table as Markdown."""
    counts = rows.pivot_table(index="case", columns="run", values="instructions")
    first = rows.iloc[0]
    lines = [
        f"{counts.shape[1]} runs of {len(counts)} cases, in {rows['state'].nunique()} states and "
        "two orders; "
        f"a run took {rows.groupby('run')['run_s'].first().median():.0f} s in the median; "
        f"{first.cpu}, {first.cores} cores; Python {first.python}, torch {first.torch}; "
        f"commit {first.commit[:12]}.",
        "",
        "| instructions of a call | cases | most that a case's counts differ | pairs of counts | "
        "unchanged that failed | 1 % more found |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for least, below in SIZES:
        some = counts[(counts.median(axis=1) >= least) & (counts.median(axis=1) < below)]
        differ = (some.max(axis=1) / some.min(axis=1) - 1).max()
        pairs = [
            (int(before), int(now))
            for _, counted in some.iterrows()
            for before, now in permutations(counted, 2)
        ]
        unchanged = sum(fails(*pair) for pair in pairs)
        found = sum(fails(before, round(now * PLANTED)) for before, now in pairs)
        size = f"{least:,} to {below:,}" if below < sys.maxsize else f"over {least:,}"
        size = size if least else f"below {below:,}"
        lines.append(
            f"| {size} | {len(some)} | {differ:.2%} | {len(pairs)} "
            f"| {unchanged} | {found / max(len(pairs), 1):.1%} |"
        )
    return "\n".join(lines) + "\n"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=PUBLISHED)
@click.option("--report", "report_only", is_flag=True, help="Print the table; count nothing.")
@click.option("--one", type=click.Choice(["as planned", "reversed"]), hidden=True)
def main(runs: int, out: Path, report_only: bool, one: str | None) -> None:
    if one is not None:
        click.echo(json.dumps(count_all(one)))
        return
    rows: list[dict[str, Any]] = []
    for row in () if report_only else measured(runs):
        rows.append(row)
        if len(rows) % 100 == 0:
            pq.write_table(pa.Table.from_pylist(rows), out)
    if rows:
        pq.write_table(pa.Table.from_pylist(rows), out)
    click.echo(table(pq.read_table(out).to_pandas()))


if __name__ == "__main__":
    main()

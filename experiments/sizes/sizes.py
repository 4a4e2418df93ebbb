"""How do time and memory of the harness itself grow with the number of cases?

    python experiments/sizes/sizes.py        1,000 to 100,000 cases
    ... --cases 1000000                      only this many; needs 8 GB of disk
    ... --report                             prints the table of the stored rows
    ... --huge                               instead, forwards of more than 2^31 elements

Nothing is measured by the cases: a fake worker returns one published record, without raw samples,
under a new seed each time. Each stage runs in a process of its own, whose peak memory is read. The
time to wait for the disk is left out and measured apart, because it is the disk's.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Record, Run

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "results" / "published" / "sizes.parquet"
SIZES = (1_000, 10_000, 100_000)
SHARDS = 10
SYNCED = 500  # appended lines that wait for the disk
SUBJECT = "cpu_recentred"
STAGES = ("plan", "journal", "resume", "convert", "merge")
WHAT = {
    "plan": "expand the sweep to cases",
    "journal": "append each record to the journal, without waiting for the disk",
    "resume": "make cases, find each in its journal, read the journals in their order",
    "convert": "journals of ten shards to ten results files",
    "merge": "ten results files to one",
}


def record() -> Record:
    """Return the record that the fake worker returns."""
    from harness.store import read

    path = ROOT / "results" / "published" / "cpu_recentred.parquet"
    return read(path, samples=False).records[0]


def fake_worker(first: int, end: int) -> Iterator[Record]:
    one = record()
    for seed in range(first, end):
        yield replace(one, case=replace(one.case, seed=seed))


def run_of(planned: int, name: str) -> Run:
    return Run(name=name, started_utc=f"2026-01-01T00:00:{name[-2:]}+00:00", command="run",
               planned=planned, version="0", wall_s=1.0)  # fmt: skip


def plan(folder: Path, cases: int) -> None:
    from harness.cases import Grid, Sweep, expand

    grid = Grid(implementations=(SUBJECT,), shapes=((8, 64),), seeds=tuple(range(cases)))
    sweep = Sweep(grids=(grid,))
    found = expand(sweep, implementations={SUBJECT: ("cpu",)}, devices={"cpu": None})
    assert len(found) == cases


def journal(folder: Path, cases: int) -> None:
    from harness.store import Journal

    os.fsync = lambda descriptor: None
    share = cases // SHARDS
    for shard in range(SHARDS):
        with Journal(folder / f"part{shard:02}.jsonl") as file:
            file.add(run_of(share, f"part{shard:02}"))
            for made in fake_worker(shard * share, (shard + 1) * share):
                file.add(made)


def resume(folder: Path, cases: int) -> None:
    from harness.cases import Planned
    from harness.run.session import KeptRecords
    from harness.store import Journal

    share, held = cases // SHARDS, []  # what runs of these cases hold at their end
    for shard, path in enumerate(sorted(folder.glob("*.jsonl"))):
        planned = [
            Planned(made.case, ()) for made in fake_worker(shard * share, (shard + 1) * share)
        ]
        with Journal(path) as file:
            kept = KeptRecords(path.with_suffix(".parquet"), file, planned)
            held.append((kept, sum(1 for _ in kept.in_order())))
    assert sum(number for _, number in held) == cases


def convert(folder: Path, cases: int) -> None:
    from harness.store import merge

    for path in sorted(folder.glob("*.jsonl")):
        run = run_of(0, f"{path.stem}c")
        assert merge([path], run, folder / f"{path.stem}.parquet").records == cases // SHARDS
        path.unlink()


def merge_files(folder: Path, cases: int) -> None:
    from harness.store import merge

    (folder / "merged").mkdir()
    paths = sorted(folder.glob("*.parquet"))
    assert merge(paths, run_of(0, "all00"), folder / "merged" / "all.parquet").records == cases


RUN: dict[str, Callable[[Path, int], None]] = {
    "plan": plan, "journal": journal, "resume": resume, "convert": convert, "merge": merge_files,
}  # fmt: skip


def stage_here(name: str, folder: Path, cases: int) -> None:
    """Run one stage and print its seconds and the memory that it added."""
    import harness.cases
    import harness.store

    harness.store.prepare()
    assert harness.cases.Grid
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = perf_counter()
    RUN[name](folder, cases)
    seconds = perf_counter() - began
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)  # noqa: T201


def measured(sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    for cases in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for name in STAGES:
                done = subprocess.run(
                    [sys.executable, __file__, "--stage", name, folder, str(cases)],
                    check=True, capture_output=True, text=True,
                )  # fmt: skip
                seconds, added = done.stdout.split()
                row = {"stage": name, "cases": cases, "time_s": float(seconds)}
                row |= {"memory_bytes": int(added)}
                yield row
    yield {"stage": "disk", "cases": SYNCED, "time_s": synced_s(), "memory_bytes": 0}


def add_row(row: dict[str, Any], out: Path) -> None:
    """Store a row in place of the former one of its stage and number of cases."""
    known = pq.read_table(out).to_pylist() if out.exists() else []
    rows = {(entry["stage"], entry["cases"]): entry for entry in [*known, row]}
    pq.write_table(pa.Table.from_pylist(list(rows.values())), out)


def synced_s() -> float:
    """Return the seconds that waiting for the disk adds to so many lines."""
    from harness.store import Journal

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        records = list(fake_worker(0, SYNCED))
        times = []
        for wait in (True, False):
            real = os.fsync
            os.fsync = real if wait else lambda descriptor: None
            began = perf_counter()
            with Journal(Path(folder) / f"{wait}.jsonl") as file:
                for stored in records:
                    file.add(stored)
            times.append(perf_counter() - began)
            os.fsync = real
    return times[0] - times[1]


def report(path: Path = ROWS) -> str:
    """Return the table: per case, and the exponent of the growth between the largest two sizes."""
    rows = pq.read_table(path).to_pylist()
    sizes = sorted({row["cases"] for row in rows if row["stage"] != "disk"})
    found = {(row["stage"], row["cases"]): row for row in rows}
    lines = [
        ["stage", *(f"{size:,} cases" for size in sizes), "exponent", "memory", "per case"],
    ]
    lines.append(["---"] * len(lines[0]))
    for stage in STAGES:
        own = [found[stage, size] for size in sizes if (stage, size) in found]
        cells = [f"{row['time_s'] / row['cases'] * 1e3:.3f} ms" for row in own]
        cells += [""] * (len(sizes) - len(own))
        for before, after in list(pairwise(own))[-1:]:
            growth = log(after["time_s"] / before["time_s"])
            exponent = growth / log(after["cases"] / before["cases"])
        last = own[-1]
        lines.append([
            f"{stage}: {WHAT[stage]}", *cells, f"{exponent:.2f}",
            f"{last['memory_bytes'] / 2**20:,.0f} MiB",
            f"{last['memory_bytes'] / last['cases'] / 1e3:.2f} kB",
        ])  # fmt: skip
    (disk,) = (row for row in rows if row["stage"] == "disk")
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    wait_s = disk["time_s"] / disk["cases"]
    return f"{table}\n\nWaiting for the disk added {wait_s * 1e3:.2g} ms per journalled record."


def huge() -> None:
    """Run the contract check of more than 2^31 elements, forward, in bfloat16."""
    import implementations
    from harness.records import Case, Direction
    from harness.verify.checks.huge import huge_findings

    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("native", "cpu_recentred", "two_pass"):
        case = Case(implementation=name, shape=(1, 1), dtype="bfloat16", param_dtype="bfloat16")
        implementation = replace(implementations.find(name), forward_only=True)
        began = perf_counter()
        found = list(
            huge_findings(implementation, replace(case, direction=Direction.FORWARD), memory)
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        click.echo(
            f"{name}: {found or 'right'}, {perf_counter() - began:.0f} s, peak {peak:.1f} GiB"
        )


@click.command()
@click.option("--cases", "sizes", type=int, multiple=True, default=SIZES, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=ROWS, show_default=True)
@click.option("--report", "only_report", is_flag=True)
@click.option("--huge", "only_huge", is_flag=True)
@click.option("--stage", "one", nargs=3, hidden=True)
def main(
    sizes: tuple[int, ...],
    out: Path,
    only_report: bool,
    only_huge: bool,
    one: tuple[str, str, str] | None,
) -> None:
    if one:
        stage_here(one[0], Path(one[1]), int(one[2]))
        return
    if only_huge:
        huge()
        return
    if not only_report:
        for row in measured(sizes):
            click.echo(row)
            add_row(row, out)
    click.echo(report(out))


if __name__ == "__main__":
    main()

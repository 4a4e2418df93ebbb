"""How long do three questions to ten million records take, and how much memory?

    python experiments/sizes/many_files.py FOLDER      needs 2 GB of disk
    ... --report                                       prints the table of the stored rows

FOLDER gets 4,000 results files of 2,500 records each, with times that vary from file to file. The
questions are those of `history`: the trend of one case,
the last ten runs of a preset, the ten slowest cases. pyarrow.dataset answers the first one, and
DuckDB, where it is installed, the first and the third. Each question is asked in a process of its
own; the files are in the cache of the system.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from harness.records import Record
from harness.store import SCHEMA_VERSION, read, record_schema, to_plain
from harness.store.schema import (
    DIGEST_KEY,
    ENVIRONMENTS_KEY,
    RUNS_KEY,
    VERSION_KEY,
)

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "results" / "published" / "many_files.parquet"
FILES, RECORDS = 4000, 2500
FIRST = datetime(2020, 1, 1, tzinfo=UTC)


def make(folder: Path) -> None:
    """Write the files."""
    published = read(ROOT / "results" / "published" / "cpu.parquet", samples=False)
    records = _many(published.records)
    base = pa.Table.from_pylist([to_plain(record) for record in records], schema=record_schema())
    (folder / "files").mkdir(parents=True)
    draw = np.random.default_rng(1)
    (environment,) = published.environments.values()
    for number in range(FILES):
        when = (FIRST + timedelta(hours=6 * number)).isoformat()
        here = replace(environment, git_commit=f"{number:040x}", git_commit_utc=when)
        run = replace(
            published.runs[0], name=f"run{number:05}", started_utc=when, planned=RECORDS,
            environment=here.fingerprint, git_commit=here.git_commit,
            command=f"layernorm-bench run --preset {'ci' if number % 3 else 'full'}",
        )  # fmt: skip
        header = {VERSION_KEY: str(SCHEMA_VERSION), RUNS_KEY: json.dumps([to_plain(run)]),
                  ENVIRONMENTS_KEY: json.dumps({here.fingerprint: to_plain(here)}),
                  DIGEST_KEY: run.name}  # fmt: skip
        path = folder / "files" / f"{run.name}.parquet"
        _write(_varied(base, draw).replace_schema_metadata(header), path)


def _many(records: tuple[Record, ...]) -> list[Record]:
    timed = [record for record in records if record.latency is not None]
    return [
        replace(timed[place % len(timed)], case=replace(
            timed[place % len(timed)].case, seed=place // len(timed)
        ))
        for place in range(RECORDS)
    ]  # fmt: skip


def _varied(table: pa.Table, draw: np.random.Generator) -> pa.Table:
    """Return the table with times that differ by half a percent."""
    place = table.schema.get_field_index("latency")
    latency = table.column(place).combine_chunks()
    parts = [latency.field(field.name) for field in latency.type]
    where = latency.type.get_field_index("per_call_s")
    own = parts[where]
    noise = pa.array(draw.normal(1, 0.005, len(own)))
    values = [own.field(name) if name == "confidence" else pc.multiply(own.field(name), noise)
              for name in ("value", "low", "high", "confidence")]  # fmt: skip
    parts[where] = pa.StructArray.from_arrays(values, fields=list(own.type))
    new = pa.StructArray.from_arrays(parts, fields=list(latency.type))
    return table.set_column(place, table.schema.field(place), new)


def _write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", write_page_checksum=True, row_group_size=62_500)


def case_of(folder: Path) -> Any:
    return pq.read_table(min(folder.glob("*.parquet")), columns=["case"])["case"][0].as_py()


def ask_history(*options: str) -> Callable[[Path], None]:
    def ask(folder: Path) -> None:
        from harness.cli import main
        from harness.records import Case
        from harness.store import from_plain

        # a pattern with a ? is of the whole id, which other ids may begin with
        case = f"?{from_plain(Case, case_of(folder)).id[1:]}"
        given = [case if option == "CASE" else option for option in options]
        main(["history", str(folder), "--metric", "time", *given], standalone_mode=False)

    return ask


def ask_dataset(folder: Path) -> None:
    wanted = None
    for name, value in case_of(folder).items():
        if not isinstance(value, list):
            one = pc.field("case", name) == value
            wanted = one if wanted is None else wanted & one
    columns = {"case": pc.field("case"), "time": pc.field("latency", "per_call_s", "value")}
    ds.dataset(sorted(map(str, folder.glob("*.parquet")))).to_table(columns=columns, filter=wanted)


def ask_duckdb(query: str) -> Callable[[Path], None]:
    def ask(folder: Path) -> None:
        import duckdb

        wanted = " and ".join(
            f"\"case\".{name} = '{value}'"
            for name, value in case_of(folder).items()
            if not isinstance(value, list)
        )
        duckdb.sql(query.format(files=folder / "*.parquet", wanted=wanted)).fetchall()

    return ask


_TREND = "select filename, latency.per_call_s.value from read_parquet('{files}') where {wanted}"
_SLOWEST = (
    "select \"case\", max(latency.per_call_s.value) from read_parquet('{files}') "
    "group by 1 order by 2 desc limit 10"
)
ASK = {
    "trend of one case": ask_history("--case", "CASE"),
    "last ten runs of a preset, one case": ask_history(
        "--run", "preset ci", "--last", "10", "--case", "CASE"
    ),
    "ten slowest cases": ask_history("--worst", "10"),
    "trend of one case, pyarrow.dataset": ask_dataset,
    "trend of one case, DuckDB": ask_duckdb(_TREND),
    "ten slowest cases, DuckDB": ask_duckdb(_SLOWEST),
}


def asked(folder: Path, question: str) -> dict[str, Any] | None:
    """Return the row of a question; None if it cannot be asked."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), "--ask", question],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        click.echo(f"{question}: {done.stderr.splitlines()[-1]}")
        return None
    seconds, memory = done.stdout.splitlines()[-1].split()
    return {"question": question, "files": folder.name, "time_s": float(seconds),
            "memory_bytes": int(memory)}  # fmt: skip


def report(path: Path = ROWS) -> str:
    rows = pq.read_table(path).to_pylist()
    lines = ["| question | time | memory |", "| --- | --- | --- |"]
    for row in rows:
        if row["files"] == "files":
            memory = f"{row['memory_bytes'] / 2**20:,.0f} MiB"
            lines.append(f"| {row['question']} | {row['time_s']:.1f} s | {memory} |")
    return "\n".join(lines)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--ask", "question", hidden=True)
@click.option("--out", type=click.Path(path_type=Path), default=ROWS, show_default=True)
@click.option("--report", "only_report", is_flag=True)
def main(folder: Path | None, question: str | None, out: Path, only_report: bool) -> None:
    if question and folder:
        began = perf_counter()
        ASK[question](folder)
        peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
        click.echo(f"{perf_counter() - began} {peak}")
        return
    if folder and not only_report:
        if not folder.exists():
            make(folder)
        rows = [asked(folder / "files", asked_for) for asked_for in ASK]
        pq.write_table(pa.Table.from_pylist([row for row in rows if row]), out)
    click.echo(report(out))


if __name__ == "__main__":
    main()

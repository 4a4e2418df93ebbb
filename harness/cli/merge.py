"""The command ``merge``."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from harness.cli.run_files import PATH, check_results_name, stored_file, typed_command
from harness.records import Run
from harness.records.text import count


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@click.option(
    "--out", type=PATH, required=True, metavar="RUN.parquet", help="the results file to write"
)
@click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")
def merge(files: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Merge results files, such as those of the shards of a sweep, into one.

    FILE is a results file, or the journal NAME.jsonl of an unfinished run. A record that is in
    several files is kept once. Records of different environments are kept apart. The file is as
    that of one run: `run --resume --out RUN.parquet` measures the cases that are missing in it.

    Exit code 0: written. 2: a file cannot be read, or two files have different results of a case
    in one environment. 3: the files hold no record.
    """
    check_results_name("--out", out)
    from harness.store import merge as merge_files

    run = Run(
        name=out.stem,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=typed_command(),
        planned=0,
        version=version("layernorm-bench"),
    )
    merged = merge_files([stored_file(path) for path in files], run, out)
    missing = merged.planned - merged.records
    if as_json:
        outcome = {"results": out, **asdict(merged), "missing": missing}
        click.echo(json.dumps(outcome, default=str))  # paths as text
        return
    where = count(merged.environments, "environment")
    click.echo(f"results: {out}, {count(merged.records, 'case')} in {where}")
    if merged.duplicates:
        click.echo(f"{count(merged.duplicates, 'record')} held by several files: kept once")
    if missing:
        listed = ", ".join(map(str, merged.unfinished))
        click.echo(
            f"{count(missing, 'case')} of {merged.planned:,} planned have no record, because a run "
            f"was cut short ({listed}); continue it with --resume, and merge again"
        )

"""The command ``compact``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from harness.cli.exit_code import print_error
from harness.cli.run_files import PATH
from harness.records.text import count


@click.command()
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")
def compact(folder: Path, as_json: bool) -> None:
    """Put the many results files of a history into few.

    `history`, `report` and `check --against-history` read the runs in DIR as before, and faster
    if there are thousands. Nothing is lost if this is killed: at each moment either the old files
    or the new one are read. Other commands do not read a compacted file.

    Exit code 0: done. 2: there is no such folder, or a file is damaged or cannot be written.
    """
    from harness.store import compact as compact_folder

    done = compact_folder(folder)
    if not done.is_locked:
        print_error(
            f"{folder}: cannot be locked here (a network file system?); start no second one"
        )
    if as_json:
        outcome = asdict(done)
        del outcome["is_locked"]
        click.echo(json.dumps(outcome))
        return
    if done.files_after:
        click.echo(
            f"{folder}: {count(done.runs, 'run')} with {count(done.records, 'record')}: "
            f"{count(done.files_before, 'file')} became {done.files_after:,}"
        )
    else:
        click.echo(f"{folder}: nothing to compact")
    for why in done.left_out:
        click.echo(f"left out: {why}")

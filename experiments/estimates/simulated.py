"""What the simulations share: a table, and the command that stores the rows and prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines as a table of Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def command(
    doc: str | None,
    published: Path,
    row_of: Callable[..., Any],
    simulate: Callable[[], Iterable[Any]],
    report: Callable[[list[Any]], str],
) -> click.Command:
    """Return the command line of a simulation.

    Args:
        doc: of its module; the first line is the help text.
        published: the parquet file of its rows.
        row_of: the dataclass of a row.
        simulate: returns the rows.
        report: returns the tables.
    """

    @click.command(help=(doc or "").partition("\n")[0])
    @click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=published)
    @click.option(
        "--report", "report_only", is_flag=True, help="Print the tables of --out; simulate nothing."
    )
    def main(out: Path, report_only: bool) -> None:
        if not report_only:
            pq.write_table(pa.Table.from_pylist([asdict(row) for row in simulate()]), out)
        click.echo(report([row_of(**row) for row in pq.read_table(out).to_pylist()]))

    return main

"""The command ``compare``."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.ci_outputs import print_comparison
from harness.cli.run_files import PATH, read_run

__all__ = ["compare"]


@click.command()
@click.argument("before", type=PATH, metavar="BEFORE")
@click.argument("after", type=PATH, metavar="AFTER")
@click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="lines to read, Markdown tables for a pull request, or JSON",
)
def compare(before: Path, after: Path, as_json: bool, form: str) -> None:
    """What changed between two runs?

    The worst changes come first. Nothing is measured again, and a regression does not change the
    exit code: `check` and `ab` are the gates. Latencies of different machines are not compared.

    Exit code 0: compared. 2: a file cannot be read. 3: nothing was measured. 4: the runs have
    nothing in common.
    """
    from harness.regression import compare_as_stored

    old, new = read_run(before), read_run(after)
    form = "json" if as_json else form
    print_comparison(compare_as_stored(old, new, (str(before), str(after))), form)
    for path, results in ((before, old), (after, new)):
        if why := results.why_unfinished:
            click.echo(f"note: {path} was cut short, {why}", err=form == "json")

"""The command ``export``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.ci_outputs import (
    TextFile,
    add_summary,
    refuse_input,
    write_file,
)
from harness.cli.run_files import PATH, read_run

if TYPE_CHECKING:
    from harness.report.document import Panel, Table
    from harness.store import Results

__all__ = ["export"]

# the names in harness.report.exports.tables, which takes a second to import
FORMATS = ("csv", "junit", "summary", "smaller-is-better", "bencher")
# what the page shows, in files of their own
PAGE_FORMATS = ("markdown", "svg", "png")


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS + PAGE_FORMATS),
    required=True,
    help="csv: a row per case. junit, summary: the verdict of each case, for CI. "
    "smaller-is-better: for github-action-benchmark. bencher: Bencher Metric Format. markdown: "
    "tables of the page. svg, png: a figure of the page",
)
@click.option(
    "--figure",
    metavar="NAME",
    help="the figure of svg and png, or the table of markdown, by default all; list: print the "
    "names",
)
@click.option(
    "--out", type=TextFile(), metavar="FILE", help="the file to write  [default: standard output]"
)
def export(run: Path, form: str, figure: str | None, out: Path | None) -> None:
    """Convert RUN to CSV, JUnit XML, Markdown, figures and formats of other tools.

    Wrong results do not change the exit code: `check` and `ab` are the gates.

    Exit code 0: written. 2: a file cannot be read or written. 3: RUN holds nothing that the
    format can express.
    """
    from harness.regression import NotMeasuredError, refuse_duplicates
    from harness.report.exports.ci import summary_of_run
    from harness.report.exports.tables import AS_TEXT

    if figure and form not in PAGE_FORMATS:
        raise click.UsageError(f"--figure {figure}: goes with --format {', '.join(PAGE_FORMATS)}")
    if out:
        refuse_input(out, run)
    results = read_run(run, samples=False)
    if not results.records:
        raise NotMeasuredError(f"{run}: holds no cases; run the sweep again")
    refuse_duplicates(results, str(run))
    if why := results.why_unfinished:
        click.echo(f"note: {run} was cut short, {why}", err=True)
    if form in PAGE_FORMATS:
        _export_of_page(results, str(run), form, figure, out)
        return
    if form == "summary" and out:
        rest = f"layernorm-bench export {run} --format csv has all of them"
        add_summary(out, summary_of_run(results, str(run)), rest)
        return
    text = AS_TEXT[form](results, str(run))
    if text is None:
        raise NotMeasuredError(
            f"{run}: no case in it has a figure for {form}; the status of each case is in "
            f"`layernorm-bench export {run} --format csv`"
        )
    if out:
        write_file(out, text)
    else:
        click.echo(text, nl=False)


def _export_of_page(
    results: Results, run: str, form: str, figure: str | None, out: Path | None
) -> None:
    """Write a figure or tables of the page."""
    from harness.regression import NotMeasuredError
    from harness.report.document import markdown
    from harness.report.figures.theme import file_of
    from harness.report.page import drawings_of, tables_of

    tables: dict[str, Table] = tables_of([results]) if form == "markdown" else {}
    drawings: dict[str, Panel] = {} if form == "markdown" else drawings_of([results])
    found = [*tables, *drawings]
    if not found:
        raise NotMeasuredError(f"{run}: no case in it has a figure for {form}")
    if figure == "list":
        click.echo("\n".join(found))
        return
    if figure is not None and figure not in found:
        raise click.UsageError(f"--figure {figure}: not in {run}, which has {', '.join(found)}")
    if form == "markdown":
        chosen = [tables[name] for name in ([figure] if figure else tables)]
        content = markdown([replace(table, is_folded=False) for table in chosen]).encode()
    elif figure is None:
        raise click.UsageError(f"--format {form} needs --figure, one of {', '.join(found)}")
    else:
        content = file_of(drawings[figure].draw, form)
    if out:
        write_file(out, content)
    else:
        click.echo(content, nl=False)

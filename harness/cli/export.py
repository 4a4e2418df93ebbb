"""The command ``export``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from harness.cli.ci_outputs import TextFile, add_summary, refuse_input, write_text
from harness.cli.exit_code import ExitCode
from harness.cli.run_files import PATH, read_run
from harness.records.refusal import Refusal
from harness.records.text import count

__all__ = ["export"]

# the names in harness.exports.formats, which takes a second to import
FORMATS = ("csv", "junit", "summary", "pytest-benchmark", "smaller-is-better", "bencher")


class NothingToExportError(Refusal):
    """A run holds nothing that the format can express."""

    exit_code = ExitCode.NOT_MEASURED


class DuplicateError(Refusal):
    """A run holds a case twice; readers of the export could not distinguish the two records."""


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    required=True,
    help="csv: a row per case. junit, summary: the verdict of each case, for CI. "
    "pytest-benchmark: a file for its command compare. smaller-is-better: for "
    "github-action-benchmark. bencher: Bencher Metric Format",
)
@click.option(
    "--out", type=TextFile(), metavar="FILE", help="the file to write  [default: standard output]"
)
def export(run: Path, form: str, out: Path | None) -> None:
    """Convert RUN to CSV, JUnit XML and formats of other tools.

    Wrong results do not change the exit code: `check` and `ab` are the gates.

    Exit code 0: written. 2: a file cannot be read or written. 3: RUN holds nothing that the
    format can express.
    """
    from harness.exports.formats import AS_TEXT
    from harness.exports.job_summary import summary_of_run

    if out:
        refuse_input(out, run)
    results = read_run(run, samples=form == "pytest-benchmark")
    if not results.records:
        raise NothingToExportError(f"{run}: holds no cases; run the sweep again")
    occurrences = Counter(record.case.id for record in results.records)
    duplicates = [case for case, number in occurrences.items() if number > 1]
    if duplicates:
        raise DuplicateError(
            f"{run}: holds {count(len(duplicates), 'case')} more than once, such as "
            f"{duplicates[0]}; keep one record of each"
        )
    if why := results.why_unfinished:
        click.echo(f"note: {run} was cut short, {why}", err=True)
    if form == "summary" and out:
        rest = f"layernorm-bench export {run} --format csv has all of them"
        add_summary(
            out, lambda room: summary_of_run(results, str(run), limit_bytes=room, rest=rest)
        )
        return
    text = AS_TEXT[form](results, str(run))
    if text is None:
        raise NothingToExportError(
            f"{run}: no case in it has a figure for {form}; the status of each case is in "
            f"`layernorm-bench export {run} --format csv`"
        )
    if out:
        write_text(out, text)
    else:
        click.echo(text, nl=False)

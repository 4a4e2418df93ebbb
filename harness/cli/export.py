"""The commands ``export`` and ``import``: parse, read, ask, write, exit."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from harness.cli.ci_outputs import OutFile, add_summary, keep_inputs, write_text
from harness.records.refusal import Refusal

__all__ = ["export", "import_"]

# harness.exports.formats has what makes each; to import it takes a second
FORMATS = ("csv", "junit", "summary", "pytest-benchmark", "smaller-is-better", "bencher")
_PATH = click.Path(path_type=Path)


class NothingToExportError(Refusal):
    """A run holds nothing that the format could tell."""

    exit_code = 3


class DuplicateError(Refusal):
    """A run holds a case twice, and a reader would take one for the other."""


@click.command()
@click.argument("run", type=_PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    required=True,
    help="csv: a row a case; junit, summary: the verdict of each case, for CI; pytest-benchmark: "
    "for its compare; smaller-is-better: for github-action-benchmark; bencher: its metric format",
)
@click.option("--out", type=OutFile(), metavar="FILE", help="where to  [default: standard output]")
def export(run: Path, form: str, out: Path | None) -> None:
    """Write RUN in a format that other tools read. Judges nothing: `check` and `ab` are the gates.

    Exit code 0: written, whatever became of the cases. 2: a file cannot be read or written.
    3: RUN holds nothing that the format could tell.
    """
    from harness.exports.formats import AS_TEXT
    from harness.exports.job_summary import summary_of_run

    if out:
        keep_inputs(out, run)
    results = _read(run, samples=form == "pytest-benchmark")
    if not results.records:
        raise NothingToExportError(f"{run}: holds no case at all; run the sweep again")
    twice = [name for name, n in Counter(each.case.id for each in results.records).items() if n > 1]
    if twice:
        raise DuplicateError(
            f"{run}: holds {_cases(len(twice))} more than once, such as {twice[0]}; leave one "
            "record of each"
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
            f"{run}: no case in it has a figure for {form}; `layernorm-bench export {run} --format "
            "csv` shows what became of them"
        )
    if out:
        write_text(out, text)
    else:
        click.echo(text, nl=False)


@click.command(name="import")
@click.argument("benchmark", type=_PATH, metavar="BENCHMARK.json")
@click.option(
    "--out", type=_PATH, required=True, metavar="RUN.parquet", help="the results file to make"
)
def import_(benchmark: Path, out: Path) -> None:
    """Make a results file of what `pytest --layernorm-sweep --benchmark-json` wrote.

    The times stay pytest-benchmark's and are marked so: they are never compared with ours.

    Exit code 0: made. 2: the file is not one of ours, or cannot be read. 3: it holds no benchmark.
    """
    if out.suffix != ".parquet":
        raise click.UsageError(f"--out {out}: a results file ends in .parquet")
    if out.exists():
        raise Refusal(f"{out} exists; choose another --out")
    from harness.exports.benchmark_import import import_benchmarks
    from harness.store import write

    results = import_benchmarks(benchmark, shlex.join(["layernorm-bench", *sys.argv[1:]]))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"{out}: cannot be written: {error.strerror}") from error
    write(results, out)
    click.echo(f"results: {out}, {_cases(len(results.records))}")


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"


def _read(run: Path, *, samples: bool) -> Any:
    from harness.store import read, read_journal

    return read_journal(run) if run.suffix == ".jsonl" else read(run, samples=samples)

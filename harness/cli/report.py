"""The command ``report``."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.arguments import max_condition_option
from harness.cli.run_files import PATH, read_run

if TYPE_CHECKING:
    from harness.store import Results

__all__ = ["report", "write_page"]


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option(
    "--out", type=PATH, metavar="FILE.html", help="the page to write  [default: reports/RUN.html]"
)
@click.option(
    "--baseline",
    type=PATH,
    metavar="FILE",
    help="also show what changed in RUN since this run, as `compare` does",
)
@max_condition_option()
def report(
    runs: tuple[Path, ...], out: Path | None, baseline: Path | None, max_condition: float
) -> None:
    """Make one HTML page of results files, with charts and tables.

    Its first sentence says which implementation to run. --max-condition sets what is required of
    it; a switch on the page shows the answer for other requirements.

    A folder of runs, given alone, is shown as a history: the trend of each case, change points and
    their commits, and the latest run of each environment.

    The page is self-contained. It needs neither torch nor the machine that was measured.
    """
    gc.disable()  # each collection would walk the thousands of records that are alive
    if "torch" not in sys.modules:  # a program that has it, such as a test, may need its last one
        atexit.register(gc.freeze)  # the interpreter's last collection would walk them, too
    if out and out.suffix.lower() not in {".html", ".htm"}:
        raise click.UsageError(f"--out {out}: a page ends in .html")
    if baseline and (len(runs) > 1 or runs[0].is_dir()):
        raise click.UsageError("--baseline is for one RUN: report RUN --baseline FILE")
    if any(path.is_dir() for path in runs):
        if len(runs) > 1:
            raise click.UsageError("a folder of runs is given alone: report DIR")
        from harness.regression.history import read_history

        history, name = read_history(runs[0]), runs[0].resolve().name
        page = write_page(
            [run.results for run in history.latest],
            [run.path for run in history.latest],
            out or Path("reports") / f"{name}.html",
            title=f"LayerNorm: history of {name}",
            history=history,
            max_condition=max_condition,
        )
    else:
        results = [read_run(path, samples=baseline is not None) for path in runs]
        comparison = None
        if baseline:
            from harness.regression import compare_as_stored

            names = (str(baseline), str(runs[0]))
            comparison = compare_as_stored(read_run(baseline), results[0], names)
        page = write_page(results, runs, out, comparison=comparison, max_condition=max_condition)
    click.echo(page)


def write_page(
    results: Sequence[Results], runs: Sequence[Path], out: Path | None = None, **others: Any
) -> Path:
    """Write the page of ``results`` and return its path.

    Args:
        results: of one or several runs.
        runs: the results files; the page is named after the first.
        out: the page; by default in reports/.
        others: what else the page shows, as :func:`harness.report.build_page` takes it.

    Raises:
        Refusal: there is nothing to report, or the page cannot be written.
    """
    from harness.report import write_report

    page = out or Path("reports") / f"{runs[0].stem}.html"
    write_report(results, page, files=[str(run) for run in runs], **others)
    return page

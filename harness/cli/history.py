"""The command ``history``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli.run_files import PATH

__all__ = ["history"]

# the values of harness.regression.history.series.TrendMetric, which takes a second to import
METRICS = ("speed", "time", "error", "peak-memory", "saved-memory", "operators")


@click.command()
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--case",
    "pattern",
    metavar="PATTERN",
    help="only cases whose id holds this text, or matches it with * and ?",
)
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    default="speed",
    show_default=True,
    help="speed: relative to the reference, above 1 is faster",
)
@click.option("--json", "as_json", is_flag=True, help="print the history as JSON")
def history(folder: Path, pattern: str | None, metric: str, as_json: bool) -> None:
    """How did each case change over the runs in DIR?

    DIR holds one results file per commit or per day. Each case has a series of values, and runs
    that cannot be compared, such as of another machine, start another series. A change point is
    shown with its range of commits. The latest values are last, and series that changed most come
    first. A change does not alter the exit code: `check RUN --against-history DIR` is the gate.

    Exit code 0: printed. 2: there is no such folder. 3: no file in it can be read, or no case has
    the metric.
    """
    from harness.regression.compare import NotMeasuredError
    from harness.regression.history.runs import read_history
    from harness.regression.history.series import TrendMetric, is_of, series_of
    from harness.regression.history.text import history_as_plain, history_lines

    found = read_history(folder)
    trend = series_of(found, TrendMetric(metric), is_of(pattern))
    if not trend.series:
        some = found.runs[-1].results.records[0].case.id
        raise NotMeasuredError(
            f"{folder}: no case{f' that matches {pattern}' if pattern else ''} has a value of "
            f"{metric}; a case is called, for example, {some}"
        )
    if as_json:
        click.echo(json.dumps(history_as_plain(found, trend), allow_nan=False))
    else:
        click.echo("\n".join(history_lines(found, trend)))

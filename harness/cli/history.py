"""The command ``history``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli.run_files import PATH
from harness.records.metrics import metrics_in

__all__ = ["history"]

_METRICS = tuple(metric.heading("trend") for metric in metrics_in("trend"))


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
    type=click.Choice(_METRICS),
    default="speed",
    show_default=True,
    help="speed: relative to the reference, above 1 is faster",
)
@click.option(
    "--run",
    "command",
    default="",
    metavar="TEXT",
    help='only runs whose command has this text, such as "preset ci"',
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="only the last N of these runs")
@click.option(
    "--worst",
    type=click.IntRange(1),
    metavar="N",
    help="only the N cases with the worst values in the last run of each environment, such as the "
    "slowest",
)
@click.option("--json", "as_json", is_flag=True, help="print the history as JSON")
def history(
    folder: Path,
    pattern: str | None,
    metric: str,
    command: str,
    last: int | None,
    worst: int | None,
    as_json: bool,
) -> None:
    """How did each case change over the runs in DIR?

    DIR holds one results file per commit or per day. Each case has a series of values, and runs
    that cannot be compared, such as of another machine, start another series. A change point is
    shown with its range of commits. The latest values are last. Series that changed most come
    first, or with --worst those of the worst values. A change does not alter the exit code: `check
    RUN --against-history DIR` is the gate.

    Of each file only the columns of the metric are read, and of these only the wanted cases, so
    that millions of records can be searched. More than a million without --case or --worst are
    refused.

    Exit code 0: printed. 2: there is no such folder or run, or too much to read. 3: no file in it
    can be read, or no case has the metric.
    """
    from harness.regression import NotMeasuredError
    from harness.regression.history import TREND_METRICS, query_history
    from harness.report.document import show
    from harness.report.history import document_of_history, history_as_plain

    found, trend = query_history(
        folder, TREND_METRICS[metric], pattern=pattern, command=command, last=last, worst=worst
    )
    if not trend.series:
        raise NotMeasuredError(
            f"{folder}: no case{f' that matches {pattern}' if pattern else ''} has a value of "
            f"{metric}; `layernorm-bench history {folder} --last 1` has the cases of the last run"
        )
    if as_json:
        click.echo(json.dumps(history_as_plain(found, trend), allow_nan=False))
    else:
        show(document_of_history(found, trend))

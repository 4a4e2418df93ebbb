"""The command ``choose``: parse, read, choose, print, exit."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import click

from harness.cli.arguments import SHAPES, Parsed, Words, max_condition_option
from harness.cli.exit_code import ExitCode
from harness.cli.run_files import PATH, read_run


def _axis(
    name: str, kind: Parsed, values: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an option that filters the scenarios by an axis."""
    text = f"choose only for {values}"
    return click.option(f"--{name}", type=kind, multiple=True, help=text)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@_axis("shape", SHAPES, "these shapes of x")
@_axis("dtype", Words(), "these dtypes of x")
@_axis("device", Words(), "these kinds of device")
@_axis("direction", Words(), "forward, backward or forward+backward")
@click.option(
    "--max-error",
    "max_error_ulp",
    type=click.FloatRange(min=0),
    metavar="E",
    help="largest allowed error of the worst output, in scaled ulp; 0.5 is correctly rounded",
)
@max_condition_option()
@click.option(
    "--workload",
    metavar="NAME|FILE",
    help="choose one implementation for all calls of a workload: a name (see `list workloads`) "
    "or a TOML file",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "json", "python"]),
    default="table",
    show_default=True,
    help="a table to read, Markdown for a README or a pull request, JSON, or Python code that runs",
)
def choose(
    runs: tuple[Path, ...],
    shape: tuple[tuple[Any, ...], ...],
    dtype: tuple[tuple[str, ...], ...],
    device: tuple[tuple[str, ...], ...],
    direction: tuple[tuple[str, ...], ...],
    max_error_ulp: float | None,
    max_condition: float,
    workload: str | None,
    form: str,
) -> None:
    """Choose the implementation to run, for each scenario of RUN.

    A scenario is a shape, dtype, device and direction with its settings.

    The choice is the fastest candidate that was accurate in every case of inputs up to
    --max-condition. If the intervals of other candidates close to it overlap with its own, accuracy
    decides, then memory. Speeds are relative to native: higher is faster.

    Exit code 0: every scenario has a choice. 1: at least one has no eligible candidate. 3: nothing
    was measured. 4: no scenario of RUN matches.
    """
    if max_error_ulp is not None and isnan(max_error_ulp):
        raise click.UsageError("--max-error takes a number, not nan")
    from harness.records import Direction

    for name in sum(direction, ()):
        if name not in set(Direction):
            raise click.UsageError(
                f"--direction {name}: write forward, backward or forward+backward"
            )
    from harness.report.choice import (
        choices_as_json,
        choices_document,
        evidence_lines,
        workload_document,
    )
    from harness.report.choice_code import python_lines
    from harness.report.document import markdown, show
    from harness.selection import FILTERS, Requirements
    from harness.selection import choose as choose_among
    from harness.selection.workload import choose_for_workload, find_workload

    wanted = None if workload is None else find_workload(workload)
    filters = dict(zip(FILTERS, (shape, dtype, device, direction), strict=True))
    choices = choose_among(
        [read_run(run, samples=False) for run in runs],
        {axis: sum(values, ()) for axis, values in filters.items()},
        Requirements(max_error_ulp=max_error_ulp, max_condition=max_condition),
    )
    workload_choices = () if wanted is None else choose_for_workload(wanted, choices)
    evidence = list(evidence_lines(choices, [run.name for run in runs]))
    if form == "json":
        click.echo(json.dumps(choices_as_json(choices, workload_choices, evidence)))
    elif form == "python":
        click.echo("\n".join(python_lines(choices, workload_choices, [*evidence, *choices.notes])))
    else:
        document = (
            workload_document(choices, workload_choices, evidence)
            if workload_choices
            else choices_document(choices, evidence)
        )
        if form == "markdown":
            click.echo(markdown(document).rstrip())
        else:
            show(document)
    has_choice = (
        all(one.best is not None or one.per_shape_s is not None for one in workload_choices)
        if workload_choices
        else choices.is_complete
    )
    if not has_choice:
        raise SystemExit(ExitCode.FAILED)

"""The command ``choose``: parse, read, choose, print, exit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import click

from harness.cli.arguments import ShapeText, Words, max_condition_option
from harness.cli.exit_code import ExitCode
from harness.cli.run_files import PATH, read_run

__all__ = ["choose"]


def _axis(
    name: str, kind: ShapeText | Words, values: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an option that filters the scenarios by an axis."""
    text = f"choose only for {values}"
    return click.option(f"--{name}", type=kind, metavar=kind.name, multiple=True, help=text)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@_axis("shape", ShapeText(), "these shapes of x")
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
@max_condition_option
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
    from harness.selection.choose import ScenarioFilter
    from harness.selection.choose import choose as choose_among
    from harness.selection.evidence_text import evidence_lines
    from harness.selection.requirement import Requirements
    from harness.selection.workload import find_workload
    from harness.selection.workload_choice import choose_for_workload

    wanted = None if workload is None else find_workload(workload)
    results = [read_run(run, samples=False) for run in runs]
    scenario_filter = ScenarioFilter(
        shapes=sum(shape, ()),
        dtypes=sum(dtype, ()),
        devices=sum(device, ()),
        directions=sum(direction, ()),
    )
    requirements = Requirements(max_error_ulp=max_error_ulp, max_condition=max_condition)
    choices = choose_among(results, scenario_filter, requirements)
    workload_choices = () if wanted is None else choose_for_workload(wanted, choices)
    evidence = list(evidence_lines(choices, [run.name for run in runs]))
    if form == "json":
        from harness.selection.as_json import choices_as_json

        click.echo(json.dumps(choices_as_json(choices, workload_choices, evidence)))
    elif form == "python":
        from harness.selection.python_code import python_lines

        click.echo("\n".join(python_lines(choices, workload_choices, [*evidence, *choices.notes])))
    elif form == "markdown":
        from harness.exports.choices_markdown import choices_markdown

        click.echo(choices_markdown(choices, workload_choices, [*choices.notes, *evidence]))
    else:
        from harness.cli.choice_table import print_choices, print_workload_choices

        if workload_choices:
            print_workload_choices(workload_choices, sys.stdout)
        else:
            print_choices(choices, sys.stdout)
        for line in (*choices.notes, *evidence):
            click.echo(line)
    has_choice = (
        all(each.best is not None or each.per_shape_s is not None for each in workload_choices)
        if workload_choices
        else choices.is_complete
    )
    if not has_choice:
        raise SystemExit(ExitCode.FAILED)

"""The command ``choose``: parse, read, choose, print, exit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import click

from harness.cli.arguments import ShapeText, Words

__all__ = ["choose"]

NONE_CHOSEN = 1


def _axis(
    name: str, kind: ShapeText | Words, values: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an option that filters the scenarios by an axis."""
    text = f"choose only for {values}"
    return click.option(f"--{name}", type=kind, metavar=kind.name, multiple=True, help=text)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@_axis("shape", ShapeText(), "these shapes of x")
@_axis("dtype", Words(), "these dtypes of x")
@_axis("device", Words(), "these kinds of device")
@_axis("direction", Words(), "forward, backward or forward+backward")
@click.option(
    "--max-error",
    "max_error_ulp",
    type=click.FloatRange(min=0),
    metavar="E",
    help="largest error of the worst output, in scaled ulp; 0.5 is correctly rounded",
)
@click.option(
    "--max-condition",
    type=click.FloatRange(min=1),
    metavar="K",
    help="ignore records of inputs with a larger condition number",
)
@click.option(
    "--workload",
    metavar="NAME|FILE",
    help="choose one implementation for a workload: calls and their counts, by name or in TOML",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "python"]),
    default="table",
    show_default=True,
    help="a table to read, JSON, or Python code that runs",
)
def choose(
    runs: tuple[Path, ...],
    shape: tuple[tuple[Any, ...], ...],
    dtype: tuple[tuple[str, ...], ...],
    device: tuple[tuple[str, ...], ...],
    direction: tuple[tuple[str, ...], ...],
    max_error_ulp: float | None,
    max_condition: float | None,
    workload: str | None,
    form: str,
) -> None:
    """Choose the implementation to run, for each scenario of RUN.

    A scenario is a shape, dtype, device and direction with its settings.

    The fastest candidate is chosen that was accurate wherever it was measured. Candidates close to
    the fastest whose intervals overlap are a tie, broken by accuracy, then by memory. Exit code 0:
    every scenario has a choice. 1: at least one has no eligible candidate. 3: nothing was measured.
    4: no scenario of RUN matches.
    """
    if any(limit is not None and isnan(limit) for limit in (max_error_ulp, max_condition)):
        raise click.UsageError("--max-error and --max-condition take a number, not nan")
    from harness.records import Direction

    for name in sum(direction, ()):
        if name not in set(Direction):
            raise click.UsageError(
                f"--direction {name}: write forward, backward or forward+backward"
            )
    from harness.selection.choose import Requirements, ScenarioFilter
    from harness.selection.choose import choose as choose_among
    from harness.selection.text import evidence_lines
    from harness.selection.workload import find_workload
    from harness.selection.workload_choice import choose_for_workload
    from harness.store import read, read_journal

    wanted = None if workload is None else find_workload(workload)
    results = [
        read_journal(run) if run.suffix == ".jsonl" else read(run, samples=False) for run in runs
    ]
    scenario_filter = ScenarioFilter(
        shapes=sum(shape, ()),
        dtypes=sum(dtype, ()),
        devices=sum(device, ()),
        directions=sum(direction, ()),
    )
    requirements = Requirements(max_error_ulp=max_error_ulp, max_condition=max_condition)
    choices = choose_among(results, scenario_filter, requirements)
    wholes = () if wanted is None else choose_for_workload(wanted, choices)
    evidence = list(evidence_lines(choices, [run.name for run in runs]))
    if form == "json":
        from harness.selection.as_json import choices_as_json

        click.echo(json.dumps(choices_as_json(choices, wholes, evidence)))
    elif form == "python":
        from harness.selection.python_code import python_lines

        click.echo("\n".join(python_lines(choices, wholes, [*evidence, *choices.notes])))
    else:
        from harness.cli.choice_table import print_choices, print_workload_choices

        if wholes:
            print_workload_choices(wholes, sys.stdout)
        else:
            print_choices(choices, sys.stdout)
        for line in (*choices.notes, *evidence):
            click.echo(line)
    has_choice = (
        all(whole.best is not None or whole.per_shape_s is not None for whole in wholes)
        if wholes
        else choices.is_complete
    )
    if not has_choice:
        raise SystemExit(NONE_CHOSEN)

"""The command ``choose``: parse, read, ask, print, exit."""

from __future__ import annotations

import json
import sys
from math import isnan
from pathlib import Path
from typing import Any

import click

from harness.cli.arguments import ShapeText, Words

__all__ = ["choose"]

NONE_CHOSEN = 1


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--shape",
    type=ShapeText(),
    metavar=ShapeText.name,
    multiple=True,
    help="answer for these shapes of x alone",
)
@click.option(
    "--dtype",
    type=Words(),
    metavar=Words.name,
    multiple=True,
    help="answer for these dtypes of x alone",
)
@click.option(
    "--device",
    type=Words(),
    metavar=Words.name,
    multiple=True,
    help="answer for these kinds of device alone",
)
@click.option(
    "--direction",
    type=Words(),
    metavar=Words.name,
    multiple=True,
    help="answer for forward, backward or forward+backward alone",
)
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
    help="leave out what was measured on inputs of a larger condition number",
)
@click.option(
    "--workload",
    metavar="NAME|FILE",
    help="calls and how often each occurs, by name or in TOML: one choice for all of them",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "python"]),
    default="table",
    show_default=True,
    help="for people, for machines, or code that runs",
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
    """Which implementation to run for each shape, dtype, device and direction of RUN.

    The fastest that kept its accuracy wherever it was measured; intervals that overlap, close to
    the fastest, are a tie, broken by accuracy, then by memory. Exit code 0: each has a choice. 1:
    for at least one none is to be relied on. 3: nothing was measured. 4: nothing measured is as
    asked for.
    """
    if any(each is not None and isnan(each) for each in (max_error_ulp, max_condition)):
        raise click.UsageError("nan is no limit: give a number to --max-error, --max-condition")
    from harness.records import Direction

    for each in sum(direction, ()):
        if each not in set(Direction):
            raise click.UsageError(
                f"--direction {each}: write forward, backward or forward+backward"
            )
    from harness.selection.choose import Requirements, ScenarioFilter
    from harness.selection.choose import choose as choose_among
    from harness.selection.whole import choose_for_whole
    from harness.selection.words_of_evidence import evidence_lines
    from harness.selection.workload import find_workload
    from harness.store import read, read_journal

    asked = None if workload is None else find_workload(workload)
    results = [
        read_journal(each) if each.suffix == ".jsonl" else read(each, samples=False)
        for each in runs
    ]
    wanted = ScenarioFilter(
        shapes=sum(shape, ()),
        dtypes=sum(dtype, ()),
        devices=sum(device, ()),
        directions=sum(direction, ()),
    )
    requirements = Requirements(max_error_ulp=max_error_ulp, max_condition=max_condition)
    choices = choose_among(results, wanted, requirements)
    wholes = () if asked is None else choose_for_whole(asked, choices)
    evidence = list(evidence_lines(choices, [each.name for each in runs]))
    if form == "json":
        from harness.selection.as_json import choices_as_plain

        click.echo(json.dumps(choices_as_plain(choices, wholes, evidence)))
    elif form == "python":
        from harness.selection.python_code import python_lines

        click.echo("\n".join(python_lines(choices, wholes, [*evidence, *choices.notes])))
    else:
        from harness.cli.choice_table import print_choices, print_wholes

        if wholes:
            print_wholes(wholes, sys.stdout)
        else:
            print_choices(choices, sys.stdout)
        for line in (*choices.notes, *evidence):
            click.echo(line)
    has_choice = (
        all(each.best is not None or each.dispatch_s is not None for each in wholes)
        if wholes
        else choices.is_complete
    )
    if not has_choice:
        raise SystemExit(NONE_CHOSEN)

"""The command ``explain``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from harness.cli.arguments import SHAPE
from harness.cli.sweep_options import SweepChoice, axis_options
from harness.records.refusal import Refusal
from harness.records.text import count

if TYPE_CHECKING:
    from harness.verify.explain import Explanation

__all__ = ["explain"]

_TIMEOUT_S = 600  # trade-off: enough for the exact values of a large shape on a slow machine
# the axes whose values can be explained: y of an eager forward pass
_AXES = (
    "normalized_dims", "dtype", "param_dtype", "device", "distribution", "layout", "affine",
    "eps", "seed",
)  # fmt: skip


@click.command()
@click.argument("target")
@click.option("--shape", type=SHAPE, required=True, help="shape of x")
@axis_options(*_AXES)
@click.option(
    "--row",
    default="worst",
    show_default=True,
    metavar="worst|K",
    help="the row to show: the one with the largest error, or row K, counted from 0",
)
@click.option("--json", "as_json", is_flag=True, help="print the steps as JSON")
def explain(
    target: str, shape: tuple[int, ...], row: str, as_json: bool, **axes: tuple[Any, ...]
) -> None:
    """In which step does the error of a result arise?

    Shows the mean, variance, rstd and y of one row: the exact values beside the computed ones.
    TARGET is a name, package.module:name or path/to/file.py:name. The options choose one case.

    Exit code 0: shown, whatever the error. 2: wrong use, or TARGET cannot be run.
    """
    if row != "worst" and not row.isdecimal():
        raise click.UsageError(f"--row {row}: write worst, or the number of a row from 0")
    choice = SweepChoice.of_axes({"shapes": ((shape,),), **axes})
    explanation = _explain(target, choice, None if row == "worst" else int(row))
    if as_json:
        from harness.store import to_plain

        click.echo(json.dumps(to_plain(explanation)))
    else:
        from harness.verify.text import explanation_lines

        click.echo("\n".join(explanation_lines(explanation)))


def _explain(target: str, choice: SweepChoice, row: int | None) -> Explanation:
    from harness.run.fleet import EndedError, Fleet
    from harness.run.session import plan
    from harness.verify.workers import explain_in_worker

    with Fleet() as fleet:
        planned = plan(choice.load().with_axes({"implementations": (target,)}), fleet)
        if len(planned) != 1:
            raise Refusal(f"the options choose {count(len(planned), 'case')}: choose one")
        try:
            answer = fleet.call(explain_in_worker, (planned[0].case, row), _TIMEOUT_S)
        except EndedError as ended:
            raise Refusal(f"{target} {ended}") from None
    if isinstance(answer, str):  # why it cannot be explained
        raise Refusal(answer)
    return answer

"""The command ``explain``."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING

import click

from harness.cli.arguments import DTYPES, Shape
from harness.cli.verify import check_names
from harness.records import Affine, Case
from harness.records.refusal import Refusal
from harness.records.text import count

if TYPE_CHECKING:
    from harness.verify.explain import Explanation

__all__ = ["explain"]

_TIMEOUT_S = 600  # trade-off: enough for the exact values of a large shape on a slow machine


@click.command()
@click.argument("target")
@click.option("--shape", type=Shape(), metavar="64x768", required=True, help="shape of x")
@click.option(
    "--normalized-dims",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="number of trailing axes to normalise over",
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="dtype of x"
)
@click.option(
    "--param-dtype",
    type=click.Choice(DTYPES),
    help="dtype of weight and bias  [default: that of x]",
)
@click.option(
    "--device", default="cpu", show_default=True, metavar="cpu|cuda", help="kind of device"
)
@click.option(
    "--distribution",
    default="normal",
    show_default=True,
    metavar="NAME",
    help="input distribution; see `list distributions`",
)
@click.option(
    "--layout",
    default="contiguous",
    show_default=True,
    metavar="NAME",
    help="layout of x in memory; see `list layouts`",
)
@click.option(
    "--affine",
    type=click.Choice([member.value for member in Affine]),
    default="both",
    show_default=True,
    help="parameters to give",
)
@click.option(
    "--eps",
    type=click.FloatRange(min=0),
    default=1e-5,
    show_default=True,
    metavar="E",
    help="eps, which is added to the variance",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="seed of the random inputs",
)
@click.option(
    "--row",
    default="worst",
    show_default=True,
    metavar="worst|K",
    help="the row to show: the one with the largest error, or row K, counted from 0",
)
@click.option("--json", "as_json", is_flag=True, help="print the steps as JSON")
def explain(
    target: str,
    shape: tuple[int, ...],
    normalized_dims: int,
    dtype: str,
    param_dtype: str | None,
    device: str,
    distribution: str,
    layout: str,
    affine: str,
    eps: float,
    seed: int,
    row: str,
    as_json: bool,
) -> None:
    """In which step does the error of a result arise?

    Shows the mean, variance, rstd and y of one row: the exact values beside the computed ones.
    TARGET is a name, package.module:name or path/to/file.py:name.

    Exit code 0: shown, whatever the error. 2: wrong use, or TARGET cannot be run.
    """
    if row != "worst" and not row.isdecimal():
        raise click.UsageError(f"--row {row}: write worst, or the number of a row from 0")
    if not isfinite(eps):
        raise click.UsageError(f"--eps {eps}: write a finite number")
    if len(shape) < normalized_dims:
        raise click.UsageError(
            f"--normalized-dims {normalized_dims}: x has {count(len(shape), 'axis', 'axes')}"
        )
    case = Case(
        implementation=target,
        shape=shape,
        normalized_dims=normalized_dims,
        dtype=dtype,
        param_dtype=param_dtype or dtype,
        device=device,
        distribution=distribution,
        layout=layout,
        affine=Affine(affine),
        eps=eps,
        seed=seed,
    )
    explanation = _explain(case, None if row == "worst" else int(row))
    if as_json:
        from harness.store.plain import to_plain

        click.echo(json.dumps(to_plain(explanation)))
    else:
        from harness.verify.text import explanation_lines

        click.echo("\n".join(explanation_lines(explanation)))


def _explain(case: Case, row: int | None) -> Explanation:
    from harness.run.fleet import EndedError, Fleet
    from harness.verify.messages import ExplainCase
    from harness.verify.worker_verdicts import check_device, check_targets

    with Fleet() as fleet:
        info = fleet.info
        check_names("distribution", (case.distribution,), info.distributions)
        check_names("layout", (case.layout,), info.layouts)
        check_device(case.device, info)
        check_targets(fleet, (case.implementation,))
        try:
            answer = fleet.ask(ExplainCase(case, row), _TIMEOUT_S)
        except EndedError as ended:
            raise Refusal(f"{case.implementation} {ended}") from None
    if isinstance(answer, str):  # why it cannot be explained
        raise Refusal(answer)
    return answer

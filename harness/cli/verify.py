"""The commands ``verify`` and ``explain``: parse, ask a worker process, print, exit."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import click

from harness.cli.arguments import Assignment, Duration, Shape, Words
from harness.cli.exit_code import INTERRUPTED, fail
from harness.records.refusal import Refusal

__all__ = ["explain", "verify"]

FAILED, NOT_MEASURED = 1, 3
DTYPES = ("float32", "bfloat16", "float16", "float64")
DIRECTIONS = ("forward", "backward")


@click.command()
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--quick", is_flag=True, help="seconds per target, not minutes")
@click.option("--strict", is_flag=True, help="fail for remarks too")
@click.option("--dtype", "dtypes", type=Words(), default=",".join(DTYPES), show_default=True)
@click.option(
    "--direction",
    "directions",
    type=Words(),
    default="forward,backward",
    show_default=True,
    help="forward alone looks at no gradient",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda")
@click.option(
    "--eps",
    type=click.FloatRange(min=0),
    help="verify at this eps, of a target that takes none [measured]",
)
@click.option(
    "--normalized-dims",
    type=click.IntRange(min=1, max=5),
    metavar="N",
    help="verify over the last N axes only [found out]",
)
@click.option(
    "--channels-first",
    is_flag=True,
    help="x is (batch, channels, ...) and the channels are normalised [found out]",
)
@click.option(
    "--init",
    "init",
    type=Assignment(),
    multiple=True,
    metavar="KEY=VALUE",
    help="an argument of the target's constructor, or of the function",
)
@click.option("--huge", is_flag=True, help="also 2^31 elements and more: 10 GiB, 20 with gradients")
@click.option(
    "--time-budget",
    "time_budget_s",
    type=Duration(),
    metavar="1m",
    help="begin no case after this time per target; the most telling come first",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    metavar="10m",
    default="10m",
    show_default=True,
    help="for each target; one that takes longer is ended",
)
@click.option("--json", "as_json", is_flag=True, help="print the verdicts as JSON")
@click.option("--self-test", is_flag=True, help="verify the verifier, beside the peers' own tests")
def verify(
    targets: tuple[str, ...],
    dtypes: tuple[str, ...],
    directions: tuple[str, ...],
    device: str,
    timeout_s: float,
    strict: bool,
    as_json: bool,
    self_test: bool,
    **more: Any,
) -> None:
    """Is TARGET a LayerNorm, how good a one, and if it is none, which mistake is it?

    TARGET is a name, package.module:name or path/to/file.py:name, of a function, a torch.nn.Module
    class or instance, or a torch.autograd.Function class. Exit code 0: each is a LayerNorm, within
    the scope that is printed. 1: at least one is wrong. 3: one answers too little to tell.
    """
    _check("dtype", dtypes, DTYPES)
    _check("direction", directions, DIRECTIONS)
    if more["eps"] is not None and not isfinite(more["eps"]):
        raise click.UsageError(f"--eps {more['eps']}: write a finite number")
    if bool(targets) == self_test:
        raise click.UsageError("give targets, or --self-test alone")
    if self_test:
        _self_test()
        return
    from harness.verify.worker_verdicts import INTERRUPTED as INTERRUPTED_VERDICT
    from harness.verify.worker_verdicts import Asked, verdicts_of

    asked = Asked(dtypes=dtypes, directions=directions, device=device, **more)
    verdicts: list[tuple[str, Any]] = []
    interrupted = False
    for target, found in verdicts_of(targets, asked, timeout_s):
        verdicts.append((target, found))
        interrupted = found.ended == INTERRUPTED_VERDICT
        if not as_json:
            _show(found)
    if as_json:
        click.echo(json.dumps([_plain(target, found) for target, found in verdicts]))
    if interrupted:
        done = f"{len(verdicts) - 1} of {len(targets)}"
        fail(f"interrupted; targets verified to the end: {done}", INTERRUPTED)
    if any(found.is_wrong or (strict and found.remarks) for _, found in verdicts):
        raise SystemExit(FAILED)
    if not all(found.passed for _, found in verdicts):
        raise SystemExit(NOT_MEASURED)


@click.command()
@click.argument("target")
@click.option("--shape", type=Shape(), metavar="64x768", required=True)
@click.option("--normalized-dims", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--param-dtype", type=click.Choice(DTYPES), help="of weight and bias [that of x]")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda")
@click.option("--distribution", default="normal", show_default=True)
@click.option("--layout", default="contiguous", show_default=True)
@click.option(
    "--affine",
    type=click.Choice(["both", "weight", "bias", "none"]),
    default="both",
    show_default=True,
)
@click.option("--eps", type=click.FloatRange(min=0), default=1e-5, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--row", default="worst", show_default=True, metavar="worst|K")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def explain(
    target: str,
    shape: tuple[int, ...],
    normalized_dims: int,
    dtype: str,
    param_dtype: str | None,
    row: str,
    as_json: bool,
    **axes: Any,
) -> None:
    """Show mean, variance, rstd and y of one row, exact beside computed, step by step."""
    from harness.records import Affine, Case
    from harness.run.fleet import EndedError, Fleet
    from harness.run.worker import ExplainCase
    from harness.verify.worker_verdicts import check_device, check_targets

    if row != "worst" and not row.isdecimal():
        raise click.UsageError(f"--row {row}: write worst, or the number of a row from 0")
    if not isfinite(axes["eps"]):
        raise click.UsageError(f"--eps {axes['eps']}: write a finite number")
    if len(shape) < normalized_dims:
        raise click.UsageError(f"--normalized-dims {normalized_dims}: x has {len(shape)} axes")
    case = Case(
        implementation=target,
        shape=shape,
        normalized_dims=normalized_dims,
        dtype=dtype,
        param_dtype=param_dtype or dtype,
        affine=Affine(axes.pop("affine")),
        **axes,
    )
    with Fleet() as fleet:
        hello = fleet.hello
        _check("distribution", (case.distribution,), hello.distributions)
        _check("layout", (case.layout,), hello.layouts)
        check_device(case.device, hello)
        check_targets(fleet, (target,))
        try:
            found: Any = fleet.ask(ExplainCase(case, None if row == "worst" else int(row)), 600)
        except EndedError as ended:
            raise Refusal(f"{target} {ended}") from None
    if isinstance(found, str):
        raise Refusal(found)
    if as_json:
        from harness.store.plain import to_plain

        click.echo(json.dumps(to_plain(found)))
        return
    from harness.verify.explain import explanation_lines

    click.echo("\n".join(explanation_lines(found)))


def _show(found: Any) -> None:
    from harness.verify.text import verdict_lines

    click.echo("\n".join(verdict_lines(found)))


def _plain(target: str, found: Any) -> dict[str, Any]:
    from harness.store.plain import to_plain
    from harness.verify.text import headline

    plain = to_plain(found)
    if found.scope is not None:
        plain["scope"]["axes"] = found.scope.axes
    return {
        **plain,
        "target": target,
        "outcome": found.outcome,
        "passed": found.passed,
        "headline": headline(found),
        "reproduce": found.reproduce,
    }


def _self_test() -> None:
    from harness.verify.self_test import matrix_lines, run_self_test

    matrix = run_self_test(lambda line: click.echo(line, err=True))
    click.echo("\n".join(matrix_lines(matrix)))
    if not matrix.passed:
        raise SystemExit(FAILED)


def _check(what: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            from harness.sweep import suggest

            raise Refusal(
                f"no {what} named {name!r}{suggest(name, known)}; known: {', '.join(known)}"
            )

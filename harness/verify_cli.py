"""The commands ``verify`` and ``explain``: parse, ask a worker process, print, exit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

import click

from harness.arguments import Duration, Shape, Words
from harness.ending import INTERRUPTED, fail
from harness.refusal import Refusal

__all__ = ["explain", "verify"]

FAILED, NOT_MEASURED = 1, 3
DTYPES = ("float32", "bfloat16", "float16", "float64")
DIRECTIONS = ("forward", "backward")


@click.command()
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--quick", is_flag=True, help="seconds a target, not minutes")
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
@click.option("--huge", is_flag=True, help="also 2^31 elements and more: 10 GiB, 20 with gradients")
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
    quick: bool,
    dtypes: tuple[str, ...],
    directions: tuple[str, ...],
    device: str,
    huge: bool,
    timeout_s: float,
    as_json: bool,
    self_test: bool,
) -> None:
    """Is TARGET a LayerNorm, how good a one, and if it is none, which mistake is it?

    TARGET is a name, package.module:function, path/to/file.py:function, or a torch.nn.Module class
    given in the same ways. Exit code 0: each is one. 1: at least one is not. 3: one answers too
    little to tell.
    """
    _check("dtype", dtypes, DTYPES)
    _check("direction", directions, DIRECTIONS)
    if bool(targets) == self_test:
        raise click.UsageError("give targets, or --self-test alone")
    if self_test:
        _self_test()
        return
    verdicts: list[tuple[str, Any]] = []
    interrupted = ""
    try:
        for each in _verdicts(targets, quick, dtypes, directions, device, huge, timeout_s):
            verdicts.append(each)
            if not as_json:
                _show(*each)
    except KeyboardInterrupt:
        if not verdicts:
            raise
        were = "was" if len(verdicts) == 1 else "were"
        interrupted = f"interrupted; {len(verdicts)} of {len(targets)} targets {were} verified"
    if as_json:
        click.echo(json.dumps([_plain(target, found) for target, found in verdicts]))
    if interrupted:
        fail(interrupted, INTERRUPTED)
    if any(isinstance(found, str) or found.is_wrong for _, found in verdicts):
        raise SystemExit(FAILED)
    if not all(not isinstance(found, str) and found.is_verified for _, found in verdicts):
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
        _check_device(case.device, hello)
        _resolve(fleet, (target,))
        try:
            found: Any = fleet.ask(ExplainCase(case, None if row == "worst" else int(row)), 600)
        except EndedError as ended:
            raise _fault(f"{target} {ended}") from None
    if isinstance(found, str):
        raise _fault(found)
    if as_json:
        from harness.store.plain import to_plain

        click.echo(json.dumps(to_plain(found)))
        return
    from harness.verify.explain import explanation_lines

    click.echo("\n".join(explanation_lines(found)))


def _verdicts(
    targets: tuple[str, ...],
    quick: bool,
    dtypes: tuple[str, ...],
    directions: tuple[str, ...],
    device: str,
    huge: bool,
    timeout_s: float,
) -> Iterator[tuple[str, Any]]:
    """Ask a worker for each target's verdict; a text says how its process was ended instead."""
    from harness.records import Direction
    from harness.run.fleet import EndedError, Fleet
    from harness.run.worker import VerifyTarget

    asked = tuple(map(Direction, directions))
    # a worker keeps the memory that it has had: huge cases each want another
    for some in [(each,) for each in targets] if huge else [targets]:
        with Fleet() as fleet:
            _check_device(device, fleet.hello)
            _resolve(fleet, targets)
            for target in some:
                click.echo(f"verifying {target}", err=True)
                request = VerifyTarget(target, quick, dtypes, asked, device, huge)
                try:
                    found = fleet.ask(request, timeout_s)
                except EndedError as ended:
                    found = str(ended)
                yield target, found


def _show(target: str, found: Any) -> None:
    if isinstance(found, str):
        click.echo(f"{target}: NOT verified: it {found}")
        return
    from harness.verify.words import verdict_lines

    click.echo("\n".join(verdict_lines(found)))


def _plain(target: str, found: Any) -> dict[str, Any]:
    if isinstance(found, str):
        return {"target": target, "passed": False, "ended": found}
    from harness.store.plain import to_plain

    return {"passed": found.passed, **to_plain(found), "reproduce": found.reproduce}


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

            raise _fault(
                f"no {what} named {name!r}{suggest(name, known)}; known: {', '.join(known)}"
            )


def _check_device(device: str, hello: Any) -> None:
    _check("device", (device,), (*hello.device_counts, *hello.unavailable))
    if device in hello.unavailable:
        raise _fault(f"device {device!r} cannot be used: {hello.unavailable[device]}")


def _resolve(fleet: Any, targets: tuple[str, ...]) -> None:
    unresolved = fleet.unresolved(targets)
    if unresolved:
        raise _fault("\n".join(unresolved))


def _fault(message: str) -> Refusal:
    return Refusal(message)

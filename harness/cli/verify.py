"""The command ``verify``."""

from __future__ import annotations

import json
import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from harness.cases.axes import DTYPES
from harness.cli.arguments import ASSIGNMENT, DURATION, Words
from harness.cli.exit_code import ExitCode, announce, exit_with_error
from harness.records.refusal import Refusal
from harness.records.text import suggest

if TYPE_CHECKING:
    from harness.verify.result import Verdict

__all__ = ["verify"]

DIRECTIONS = ("forward", "backward")


@click.command()
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option(
    "--quick", is_flag=True, help="run fewer cases: seconds per target; the same as --strength 2"
)
@click.option(
    "--strength",
    type=click.IntRange(2, 4),
    metavar="2|3|4",
    help="try every combination of so many conditions (shape, layout, distribution, ...): 2 takes "
    "seconds per target, 3 a minute, 4 many minutes  [default: 3]",
)
@click.option("--strict", is_flag=True, help="exit with 1 for remarks, too")
@click.option(
    "--dtype",
    "dtypes",
    type=Words(DTYPES),
    default=",".join(DTYPES),
    show_default=True,
    help="dtypes of x",
)
@click.option(
    "--direction",
    "directions",
    type=Words(DIRECTIONS),
    default=",".join(DIRECTIONS),
    show_default=True,
    help="passes to verify; forward alone computes no gradients",
)
@click.option(
    "--device", default="cpu", show_default=True, metavar="cpu|cuda", help="kind of device"
)
@click.option(
    "--eps",
    type=click.FloatRange(min=0),
    metavar="E",
    help="eps of a target that takes no eps argument  [default: measured]",
)
@click.option(
    "--normalized-dims",
    type=click.IntRange(min=1, max=5),
    metavar="N",
    help="verify over the last N axes only  [default: every N that the target supports]",
)
@click.option(
    "--channels-first",
    is_flag=True,
    help="x is (batch, channels, ...) and the channels are normalised  [default: found by trial]",
)
@click.option(
    "--init",
    "init",
    type=ASSIGNMENT,
    multiple=True,
    metavar="KEY=VALUE",
    help="an argument of the target's constructor, or of the function; repeatable",
)
@click.option(
    "--huge",
    is_flag=True,
    help="also verify tensors of 2^31 elements and more; needs 10 GiB of memory, 20 with gradients",
)
@click.option(
    "--time-budget",
    "time_budget_s",
    type=DURATION,
    metavar="1m",
    help="start no new case after this time per target; the most revealing cases come first  "
    "[default: no limit]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    metavar="10m",
    default="10m",
    show_default=True,
    help="end the verification of a target that takes longer",
)
@click.option("--json", "as_json", is_flag=True, help="print the verdicts as JSON")
@click.option(
    "--self-test", is_flag=True, help="verify the verifier: which planted mistakes does it find?"
)
def verify(
    targets: tuple[str, ...],
    dtypes: tuple[str, ...],
    directions: tuple[str, ...],
    init: tuple[tuple[str, object], ...],
    huge: bool,
    timeout_s: float,
    as_json: bool,
    self_test: bool,
    **options: Any,
) -> None:
    """Is TARGET a LayerNorm? If not, which mistake does it make?

    TARGET is a name (see `list implementations`), package.module:name or path/to/file.py:name. It
    is a function, a torch.nn.Module class or instance, or a torch.autograd.Function class.

    Exit code 0: each target is a LayerNorm, within the scope that is printed. 1: at least one is
    wrong. 2: a target cannot be found or imported. 3: a target supports too few cases to tell.
    """
    _check_names("--dtype", dtypes, DTYPES)
    _check_names("--direction", directions, DIRECTIONS)
    eps, strength = options["eps"], options["strength"]
    if eps is not None and not isfinite(eps):
        raise click.UsageError(f"--eps {eps}: write a finite number")
    if options["quick"] and strength not in {None, 2}:
        raise click.UsageError(
            f"--quick means --strength 2: leave out one of --quick and --strength {strength}"
        )
    if bool(targets) == self_test:
        raise click.UsageError("give targets, or --self-test alone")
    if self_test:
        _run_self_test(as_json)
        return
    announce(f"verifying {', '.join(targets)} in {', '.join(dtypes)}")
    from harness.records import Direction
    from harness.verify.result import VerifyOptions
    from harness.verify.workers import INTERRUPTED, verdicts_of

    chosen = VerifyOptions(
        dtypes=dtypes,
        directions=tuple(map(Direction, directions)),
        init=dict(init),
        huge_bytes=sys.maxsize if huge else None,
        **options,
    )
    verdicts: list[tuple[str, Verdict]] = []
    is_interrupted = False
    for target, verdict in verdicts_of(targets, chosen, timeout_s):
        verdicts.append((target, verdict))
        is_interrupted = verdict.ended == INTERRUPTED
        if not as_json:
            _print_verdict(verdict)
    if as_json:
        from harness.verify.text import verdict_as_json

        click.echo(json.dumps([verdict_as_json(target, verdict) for target, verdict in verdicts]))
    if is_interrupted:
        done = f"{len(verdicts) - 1} of {len(targets)}"
        exit_with_error(f"interrupted; targets fully verified: {done}", ExitCode.INTERRUPTED)
    if any(verdict.is_wrong or (chosen.strict and verdict.remarks) for _, verdict in verdicts):
        raise SystemExit(ExitCode.FAILED)
    if not all(verdict.passed for _, verdict in verdicts):
        raise SystemExit(ExitCode.NOT_MEASURED)


def _check_names(option: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(known)
        raise Refusal(
            "\n".join(
                f"{option}: {name!r} is not one of {listed}{suggest(name, known)}"
                for name in unknown
            )
        )


def _print_verdict(verdict: Verdict) -> None:
    from harness.verify.text import verdict_lines

    click.echo("\n".join(verdict_lines(verdict)))


def _run_self_test(as_json: bool) -> None:
    from harness.verify.self_test import run_self_test

    result = run_self_test(lambda line: click.echo(line, err=True))
    if as_json:
        from harness.store import to_plain

        click.echo(json.dumps({**to_plain(result), "passed": result.passed}))
    else:
        from harness.verify.self_test import self_test_lines

        click.echo("\n".join(self_test_lines(result)))
    if not result.passed:
        raise SystemExit(ExitCode.FAILED)

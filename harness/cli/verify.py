"""The commands ``verify`` and ``explain``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from harness.cases.axes import DTYPES
from harness.cli.exit_code import ExitCode, announce, exit_with_error
from harness.cli.options import (
    ASSIGNMENT,
    DURATION,
    SHAPE,
    Number,
    SweepChoice,
    Words,
    axis_options,
    flag,
    given_axes,
    json_option,
    option,
    print_as,
    time_budget_option,
)
from harness.records.refusal import Refusal
from harness.records.text import count

if TYPE_CHECKING:
    from harness.verify.result import Verdict

_DIRECTIONS = Words(("forward", "backward"), is_closed=True)
_STRENGTH_HELP = (
    "try every combination of so many conditions (shape, layout, distribution, ...): 2 takes "
    "some ten seconds per target and dtype, 3 about a minute, 4 many minutes  [default: 3]"
)


@click.command()
@click.argument("targets", nargs=-1, metavar="TARGET...")
@flag("--quick", "run fewer cases: the same as --strength 2")
@option("--strength", _STRENGTH_HELP, click.IntRange(2, 4), metavar="2|3|4")
@flag("--strict", "exit with 1 for remarks, and for calls that raise, too")
@option("--dtype dtypes", "dtypes of x", Words(DTYPES, is_closed=True), default=",".join(DTYPES))
@option("--direction directions", "passes to verify", _DIRECTIONS, default="forward,backward")
@option("--device", "kind of device", default="cpu", metavar="cpu|cuda")
@option("--eps", "eps of a target without such an argument", Number(min=0), metavar="E")
@option("--normalized-dims", "verify over the last N axes only", click.IntRange(1, 5), metavar="N")
@flag("--channels-first", "x is (batch, channels, ...), and the channels are normalised")
@option("--init", "an argument of the target's constructor; repeatable", ASSIGNMENT, multiple=True)
@flag("--huge", "also verify tensors of 2^31 elements: 10 GiB of memory, 20 with gradients")
@time_budget_option()
@option("--timeout timeout_s", "end a target that takes longer", DURATION, default="10m")
@flag("--verbose", "print every failed case, cause, count and reason, too")
@json_option
@flag("--self-test", "verify the verifier: which planted mistakes does it find?")
def verify(
    targets: tuple[str, ...],
    directions: tuple[str, ...],
    init: tuple[tuple[str, object], ...],
    huge: bool,
    timeout_s: float,
    verbose: bool,
    as_json: bool,
    self_test: bool,
    **options: Any,
) -> None:
    """Is TARGET a LayerNorm? If not, which mistake does it make?

    TARGET is a name (see `list implementations`), package.module:name or path/to/file.py:name. It
    is a function, a torch.nn.Module class or instance, or a torch.autograd.Function class.

    Exit code 0: each target is a right LayerNorm, within the scope that is printed. 1: at least one
    is wrong or inaccurate or, with --strict, has a remark or raises in calls that models make. 2: a
    target cannot be found or imported. 3: a target supports too few cases to tell.
    """
    if options["quick"] and options["strength"] not in {None, 2}:
        raise click.UsageError("--quick means --strength 2: give one of --quick and --strength")
    if bool(targets) == self_test:
        raise click.UsageError("give targets, or --self-test alone")
    if self_test:
        _run_self_test(as_json)
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a waiting thread of a worker takes no CPU
    announce(f"verifying {', '.join(targets)} in {', '.join(options['dtypes'])}")
    from harness.records import Direction
    from harness.report import document_of_verdict, json_text, show, verdict_as_json
    from harness.verify.result import Outcome, VerifyOptions
    from harness.verify.workers import INTERRUPTED, verdicts_of

    chosen = VerifyOptions(
        directions=tuple(map(Direction, directions)),
        init=dict(init),
        huge_bytes=sys.maxsize if huge else None,
        **options,
    )
    verdicts: list[tuple[str, Verdict]] = []
    for target, verdict in verdicts_of(targets, chosen, timeout_s):
        if not as_json:
            click.echo("\n" if verdicts else "", nl=False)
            show(document_of_verdict(verdict, verbose=verbose))
        verdicts.append((target, verdict))
    if as_json:
        click.echo(json_text([verdict_as_json(target, verdict) for target, verdict in verdicts]))
    if any(verdict.ended == INTERRUPTED for _, verdict in verdicts):
        done = f"{len(verdicts) - 1} of {len(targets)}"
        exit_with_error(f"interrupted; targets fully verified: {done}", ExitCode.INTERRUPTED)
    rejected = [one for _, one in verdicts if not one.is_accepted(strict=chosen.strict)]
    if any(verdict.outcome is not Outcome.NOT_VERIFIED for verdict in rejected):
        raise SystemExit(ExitCode.FAILED)
    if rejected:
        raise SystemExit(ExitCode.NOT_MEASURED)


def _run_self_test(as_json: bool) -> None:
    from harness.report import document_of_self_test
    from harness.store import to_plain
    from harness.verify.self_test import run_self_test

    result = run_self_test(lambda line: click.echo(line, err=True))
    plain = {**to_plain(result), "passed": result.passed}
    print_as(as_json, lambda: document_of_self_test(result), lambda: plain)
    if not result.passed:
        raise SystemExit(ExitCode.FAILED)


# --- explain -------------------------------------------------------------------------------------

_TIMEOUT_S = 600  # trade-off: enough for the exact values of a large shape on a slow machine
# the axes whose values can be explained: y of an eager forward pass
_AXES = (
    "normalized_dims", "dtype", "param_dtype", "device", "distribution", "layout", "affine",
    "eps", "seed",
)  # fmt: skip


@click.command()
@click.argument("target")
@option("--shape", "shape of x", SHAPE, required=True)
@axis_options(*_AXES)
@option("--row", "the row to show, counted from 0", default="worst", metavar="worst|K")
@json_option
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
    from harness.report import document_of_explanation
    from harness.run.fleet import EndedError, Fleet
    from harness.run.session import plan
    from harness.verify.workers import explain_in_worker

    choice = SweepChoice({**given_axes(axes), "shapes": (shape,)})
    with Fleet() as fleet:
        planned = plan(choice.load().with_axes({"implementations": (target,)}), fleet)
        if len(planned) != 1:
            raise Refusal(f"the options choose {count(len(planned), 'case')}: choose one")
        which = None if row == "worst" else int(row)
        try:
            answer = fleet.call(explain_in_worker, (planned[0].case, which), _TIMEOUT_S)
        except EndedError as ended:
            raise Refusal(f"{target} {ended}") from None
    if isinstance(answer, str):  # why it cannot be explained
        raise Refusal(answer)
    print_as(as_json, lambda: document_of_explanation(answer), lambda: answer)

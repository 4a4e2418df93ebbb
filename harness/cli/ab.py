"""The command ``ab``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from harness.cli.ci_outputs import CiOutputs, gate_options
from harness.cli.exit_code import ExitCode
from harness.cli.sweep_options import SweepChoice, sweep_options
from harness.records.refusal import Refusal

if TYPE_CHECKING:
    from harness.regression import Comparison

__all__ = ["ab"]


class InterruptedComparisonError(Refusal):
    """A comparison was interrupted, and nothing of it is kept."""

    exit_code = ExitCode.INTERRUPTED


@click.command()
@click.option(
    "--base", "revision", required=True, metavar="REV", help="branch, tag or commit to compare with"
)
@sweep_options("ci")
@gate_options
def ab(
    revision: str,
    choice: SweepChoice,
    outputs: CiOutputs,
) -> None:
    """Did my working copy get worse than revision REV?

    This is the gate of a pull request. Both revisions are imported side by side and measured in
    turn in the same processes, so that a busy machine does not matter. Statuses, errors and
    memory are compared exactly. A case that looks slower is timed again in up to five fresh
    processes, and fails only if all five agree. The revisions are those of the repository that
    holds the implementations: this package's, or yours if -i names functions in it.

    Exit code 0: nothing got worse. 1: a case got worse. 2: there is no such revision, or it
    cannot be imported. 3: nothing was measured. 4: nothing can be compared.
    """
    with outputs.prepared(*([choice.file] if choice.file else [])):
        try:
            comparison = _compare(choice, revision)
        except KeyboardInterrupt:
            raise InterruptedComparisonError(
                "interrupted: an unfinished comparison has no result, so nothing was kept"
            ) from None
    outputs.report(comparison)
    if comparison.failed:
        raise SystemExit(ExitCode.FAILED)


def _compare(choice: SweepChoice, revision: str) -> Comparison:
    from harness.run.fleet import Fleet

    sweep = choice.load()
    with Fleet() as fleet:  # its process imports torch while the revision is checked out
        from harness.cli.terminal import RunProgress
        from harness.regression.ab import Bench, ab, pair_up, repository_of_sweep
        from harness.regression.revision import checked_out

        with checked_out(repository_of_sweep(sweep), revision) as checkout:
            name = f"{revision} ({checkout.commit[:12]})"
            planned, lacks = pair_up(sweep, fleet, checkout, name)
            with ExitStack() as bar:
                progress = bar.enter_context(RunProgress(len(planned)))

                def say(line: str) -> None:
                    bar.close()  # or the line would be printed into the progress bar
                    click.echo(line, err=True)

                bench = Bench(
                    fleet=fleet,
                    make_fleet=Fleet,
                    checkout=checkout,
                    timeout_s=sweep.timeout_s,
                    expect=progress.expect,
                    on_record=progress.show,
                    say=say,
                )
                return ab(planned, lacks, bench, baseline_name=name, head_name="the working copy")

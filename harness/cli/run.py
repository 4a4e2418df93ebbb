"""The command ``run``."""

from __future__ import annotations

import shlex
import sys
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from harness.cli.exit_code import ExitCode, announce, print_error
from harness.cli.options import (
    DURATION,
    MACHINE,
    RESULTS,
    SHARD,
    SweepChoice,
    Words,
    flag,
    json_option,
    option,
    print_as,
    read_run,
    sweep_options,
    time_budget_option,
    typed_command,
)
from harness.cli.results import write_page
from harness.records.refusal import Refusal
from harness.records.text import count, install_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cases import Planned, Sweep
    from harness.run.fleet import Fleet
    from harness.run.ray_fleet import RayFleet
    from harness.run.session import SessionOutcome

_STARTED = monotonic()
# results that a user may not want; a failure, such as a crash, fails the run in any case
FAIL_ON = Words(
    ("wrong", "inaccurate", "out_of_guarantee", "unsupported", "out_of_memory"), is_closed=True
)


@click.command()
@sweep_options("quick")
@option("--out", "the results file  [default: results/NAME-TIME.parquet]", RESULTS)
@flag("--resume", "continue the run in --out; finished cases are not run again")
@flag("--report with_report", "also write the HTML page")
@option("--shard", "run only part i of n of the cases, such as 2/4", SHARD)
@option("--on", "run on the nodes of a Ray cluster; needs the extra ray", MACHINE)
@time_budget_option("; instructions are counted afterwards")
@option("--case-timeout timeout_s", "end a case after this time  [default: 2m]", DURATION)
@option("--processes", "time each case in N processes", click.IntRange(1, 40), metavar="N")
@flag("--instructions", "also count the CPU instructions per call; needs valgrind")
@option(
    "--fail-on",
    f"exit with 1 for these statuses: {', '.join(FAIL_ON.known)}",
    FAIL_ON,
    multiple=True,
)
@flag("--dry-run", "print the id of each case, and measure nothing")
@flag("--verbose", "print a row for every case, however many there are")
@flag("--quiet", "print the results, but no progress")
@json_option
def run(
    choice: SweepChoice,
    out: Path | None,
    resume: bool,
    with_report: bool,
    shard: tuple[int, int] | None,
    on: str | None,
    time_budget_s: float | None,
    instructions: bool,
    fail_on: tuple[tuple[str, ...], ...],
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    **of_sweep: float | None,
) -> None:
    """How accurate, fast and memory-hungry is each implementation?

    Measures implementations on every combination of the axes: shapes, dtypes, devices and so on.
    Without --preset, --sweep or an axis the preset "quick" is run. An axis given here replaces
    that axis of the preset or sweep file. Several values are joined by commas, or the option is
    given several times.

    Exit code 0: the cases were measured; wrong and inaccurate results are results, unless
    --fail-on wrong,inaccurate is given. 1: a case has a status of --fail-on. 2: wrong use, or a
    file that cannot be read or written. 3: nothing was measured, or a case crashed, timed out or
    raised an exception.
    """
    if on is not None and instructions:
        raise click.UsageError("--instructions is for this machine; leave out --on")
    if resume and out is None:
        raise click.UsageError("--resume needs --out, the results file to continue")
    out = out or Path("results") / f"{choice.name}-{datetime.now():%Y%m%d-%H%M%S}.parquet"
    if not (quiet or dry_run):
        announce(f"measuring {choice.name}; results go to {out}")
    # its process imports torch while the sweep is read
    with _fleet(on) as fleet:
        from harness.cli.terminal import RunProgress
        from harness.report import document_of_run, run_as_plain
        from harness.run.session import Session, plan, run_session

        given = {name: value for name, value in of_sweep.items() if value}
        sweep = choice.load().model_copy(update=given)
        planned = plan(sweep, fleet, shard)
        if instructions or on is not None:
            planned = tuple(_with_counts(row, wanted=on is None) for row in planned)
        if dry_run:
            _print_plan(planned, sweep, as_json=as_json)
            return
        session = Session(
            planned=planned,
            sweep=sweep,
            out=out,
            command=typed_command(),
            resume=resume,
            began=_STARTED,
            stop_at=_STARTED + (time_budget_s or float("inf")),
        )
        with RunProgress(len(session.planned), quiet=quiet) as progress:
            try:
                outcome = run_session(
                    session, fleet, progress.show, progress.expect, print_error, progress.count
                )
            except KeyboardInterrupt:
                print_error(f"interrupted; finished cases are in {session.journal}; continue with")
                click.echo(f"  {_command_to_continue(out)}", err=True)
                raise SystemExit(ExitCode.INTERRUPTED) from None

        for what in fleet.lost:
            print_error(what)

    page, no_page = None, ""
    if with_report and outcome.results.records:
        try:
            page = write_page([read_run(outcome.path)], [out])
        except Refusal as refusal:  # the results are printed nevertheless
            no_page = f"{refusal}; make it with `layernorm-bench report {outcome.path}`"
    statuses = tuple(dict.fromkeys(sum(fail_on, ())))
    print_as(
        as_json,
        lambda: document_of_run(outcome, page, statuses, verbose=verbose),
        lambda: run_as_plain(outcome, page, statuses),
    )
    if no_page:
        print_error(no_page)
    code = _print_failures(outcome, out, statuses)
    if code or no_page:
        raise SystemExit(code or ExitCode.WRONG_USE)


def _fleet(on: str | None) -> AbstractContextManager[Fleet | RayFleet]:
    """Return what runs the cases: this machine, or a Ray cluster."""
    if on is not None:
        try:
            from harness.run.ray_fleet import RayFleet
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "ray":
                raise
            raise Refusal(f"--on ray needs the extra ray: {install_extra('ray')}") from error
        return RayFleet(on or None)
    from harness.run import fleet

    return fleet.Fleet()


def _with_counts(row: Planned, *, wanted: bool) -> Planned:
    """Add the count of instructions to what is measured, or take it out."""
    from harness.cases import Planned
    from harness.records import Measurement

    others = tuple(one for one in row.measurements if one is not Measurement.INSTRUCTIONS)
    return Planned(row.case, (*others, Measurement.INSTRUCTIONS) if wanted else others)


def _print_plan(planned: Sequence[Planned], sweep: Sweep, *, as_json: bool) -> None:
    """Print the cases that would be measured, and how long sampling them takes at most."""
    from harness.records.text import seconds_text
    from harness.report import json_text
    from harness.run.fleet import TIMINGS

    timings = sum(len(TIMINGS.intersection(row.measurements)) for row in planned)
    sampling_s = timings * sweep.seconds_per_case * sweep.processes
    ids = [row.case.id for row in planned]
    if as_json:
        click.echo(json_text({"cases": ids, "sampling_s_at_most": sampling_s}))
        return
    click.echo("".join(f"{name}\n" for name in ids), nl=False)
    total = f"{count(len(ids), 'case')}; sampling takes up to {seconds_text(sampling_s)}"
    click.echo(total, err=True)


def _print_failures(
    outcome: SessionOutcome, out: Path, fail_on: tuple[str, ...]
) -> ExitCode | None:
    """Print on standard error why the run failed or is incomplete, and return its exit code."""
    from harness.report import statuses_text

    records, code = outcome.results.records, None
    if outcome.left:
        print_error(f"cases not started: {outcome.left:,}; continue with")
        click.echo(f"  {_command_to_continue(out)}", err=True)
    if not outcome.measured:
        why = "the time budget was spent" if outcome.left else "this part of the sweep has no case"
        print_error(f"nothing was measured: {'the reasons are above' if records else why}")
        code = ExitCode.NOT_MEASURED
    elif outcome.failed:
        listed = statuses_text([record for record in records if record.status.is_failure])
        could_not = f"{count(outcome.failed, 'case')} could not be measured"
        print_error(f"{could_not} ({listed}); the reasons are above")
        code = ExitCode.NOT_MEASURED
    if unwanted := statuses_text([record for record in records if record.status in fail_on]):
        print_error(f"failed because of --fail-on {','.join(fail_on)}: {unwanted}")
        code = ExitCode.FAILED
    return code


def _command_to_continue(out: Path) -> str:
    """Return the typed command with the options that continue its run."""
    words = [word.partition("=")[0] for word in sys.argv]
    more = "" if "--out" in words else f" --out {shlex.quote(str(out))}"
    return f"{typed_command()}{'' if '--resume' in words else ' --resume'}{more}"

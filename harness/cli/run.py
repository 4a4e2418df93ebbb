"""The command ``run``: parse, have a sweep measured, print, exit."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

import click

from harness.cli.arguments import AXIS_OPTIONS, ChosenWords, Duration, Shard, axis_options
from harness.cli.exit_code import INTERRUPTED, say
from harness.records.refusal import Refusal

__all__ = ["run", "write_page"]

_BEGAN = monotonic()

FAILED, NOT_MEASURED = 1, 3
# statuses that are results of a run; the others, such as crashed, fail it in any case
FAIL_ON = ("wrong", "out_of_guarantee", "unsupported", "out_of_memory")
_MOST_PROBLEMS, _MOST_NOTES = 10, 3  # ours: lines per status; the page has them all


@click.command()
@click.option("--preset", help="a sweep that comes with the package; see `list presets`")
@click.option(
    "--sweep", "sweep_file", type=click.Path(path_type=Path), help="a sweep of your own, in TOML"
)
@axis_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="results file [results/NAME-TIME.parquet]"
)
@click.option("--resume", is_flag=True, help="continue the run of --out; measured cases stay")
@click.option("--report", "with_report", is_flag=True, help="write the HTML page too")
@click.option("--shard", type=Shard(), metavar="i/n", help="run only part i of n of the cases")
@click.option(
    "--time-budget", type=Duration(), metavar="10m", help="start no case after this, such as 10m"
)
@click.option(
    "--processes",
    type=click.IntRange(1, 40),
    help="time each case in so many processes; the interval then covers their differences",
)
@click.option(
    "--instructions", is_flag=True, help="also count the instructions of a call, with valgrind"
)
@click.option(
    "--fail-on",
    type=ChosenWords(FAIL_ON),
    metavar="wrong[,...]",
    multiple=True,
    help=f"exit with 1 if a case has one of these statuses: {', '.join(FAIL_ON)}",
)
@click.option("--verbose", is_flag=True, help="a row for each case, however many there are")
@click.option("--quiet", is_flag=True, help="print the results, but no progress")
@click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")
def run(
    preset: str | None,
    sweep_file: Path | None,
    out: Path | None,
    resume: bool,
    with_report: bool,
    shard: tuple[int, int] | None,
    time_budget: float | None,
    processes: int | None,
    instructions: bool,
    fail_on: tuple[tuple[str, ...], ...],
    verbose: bool,
    quiet: bool,
    as_json: bool,
    **axes: tuple[tuple[Any, ...], ...],
) -> None:
    """Sweep implementations over shapes, dtypes and devices: errors, latency, memory.

    Without --preset, --sweep or an axis the preset "quick" is run. An axis given here replaces
    that of the preset or the sweep file. Several values of an axis are joined by commas, or the
    option is given several times.

    Exit code 0: the cases were measured; wrong results are results, unless --fail-on wrong is
    given. 1: a case has a status of --fail-on. 2: wrong use, or a file that cannot be read or
    written. 3: nothing was measured, or a case crashed, timed out or raised.
    """
    from harness.run.fleet import Fleet

    if preset and sweep_file:
        raise click.UsageError("give --preset or --sweep, not both")
    given = {axis: sum(values, ()) for axis, values in axes.items() if values}
    name = preset or (sweep_file.stem if sweep_file else "sweep" if given else "quick")
    if out is None:
        if resume:
            raise click.UsageError("--resume needs --out, the results file to continue")
        out = Path("results") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.parquet"
    if out.suffix != ".parquet":
        raise click.UsageError(f"--out {out}: a results file ends in .parquet")
    with Fleet() as fleet:  # its process imports torch while the sweep is read
        from harness.cli.terminal import RunProgress
        from harness.run.session import Campaign, plan, run_campaign
        from harness.sweep import Sweep, load_preset, load_sweep

        if sweep_file:
            sweep = load_sweep(sweep_file)
        else:
            sweep = load_preset(name) if preset or not given else Sweep()
        sweep = sweep.with_axes(given, AXIS_OPTIONS)
        if processes:
            sweep = sweep.model_copy(update={"processes": processes})
        campaign = Campaign(
            planned=plan(sweep, fleet, shard),
            sweep=sweep,
            out=out,
            command=shlex.join(["layernorm-bench", *sys.argv[1:]]),
            resume=resume,
            instructions=instructions,
            began=_BEGAN,
            stop_at=_BEGAN + (time_budget or float("inf")),
        )
        with RunProgress(len(campaign.planned), quiet=quiet) as progress:
            try:
                outcome = run_campaign(campaign, fleet, progress.show, progress.expect)
            except KeyboardInterrupt:
                say(f"interrupted; the measured cases are in {campaign.journal}; continue with")
                click.echo(f"  {_continuing(out)}", err=True)
                raise SystemExit(INTERRUPTED) from None

    page, no_page = None, ""
    if with_report and outcome.results.records:
        try:
            page = write_page([outcome.results], out)
        except Refusal as refusal:  # the results are shown all the same
            no_page = f"{refusal}; make it with `layernorm-bench report {outcome.path}`"
    statuses = tuple(dict.fromkeys(sum(fail_on, ())))
    if as_json:
        click.echo(json.dumps(_as_json(outcome, page, statuses)))
    else:
        from harness.cli.terminal import print_records

        print_records(outcome.results.records, every=verbose)
        for line in _summary_lines(outcome, page, statuses, verbose=verbose):
            click.echo(line)
    if no_page:
        say(no_page)
    _exit(outcome, out, statuses)
    if no_page:
        raise SystemExit(Refusal.exit_code)


def _summary_lines(
    outcome: Any, page: Path | None, fail_on: Sequence[str], *, verbose: bool
) -> Iterator[str]:
    """What stands below the table: the remarks first, what to act upon and the next step last."""
    from harness.cli.run_summary import (
        case_lines,
        next_step,
        note_lines,
        outcome_line,
        problems_of,
        warning_lines,
    )
    from harness.cli.terminal import MOST_ROWS

    records, run = outcome.results.records, outcome.run
    problems = problems_of(records, fail_on)
    most_notes = _MOST_PROBLEMS if len(records) <= MOST_ROWS else _MOST_NOTES
    yield from note_lines(records, fail_on, None if verbose else most_notes)
    yield from warning_lines(records)
    yield outcome_line(records, run.wall_s or 0.0, run.overhead_ratio, outcome.earlier)
    yield f"results: {outcome.path}"
    if page:
        yield f"page:    {page}"
    yield from case_lines(problems, None if verbose else _MOST_PROBLEMS)
    step = next_step(records, problems, outcome.path, has_page=page is not None)
    if step is not None:
        yield f"to {step.purpose}:"
        yield f"  {step.command}"


def _as_json(outcome: Any, page: Path | None, fail_on: Sequence[str]) -> dict[str, Any]:
    from harness.cli.run_summary import next_step, problems_of, status_counts

    records = outcome.results.records
    step = next_step(
        records, problems_of(records, fail_on), outcome.path, has_page=page is not None
    )
    return {
        "results": str(outcome.path),
        "page": str(page) if page else None,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "left": outcome.left,
        "wall_s": outcome.run.wall_s,
        "overhead_ratio": outcome.run.overhead_ratio,
        "statuses": status_counts(records),
        "wrong": [each.case.id for each in records if each.status == "wrong"],
        "fail_on": list(fail_on),
        "failed_on": [each.case.id for each in records if each.status in fail_on],
        "next_command": step.command if step else None,
        "cases": [
            {"id": each.case.id, "status": each.status, "reason": each.reason} for each in records
        ],
    }


def _exit(outcome: Any, out: Path, fail_on: Sequence[str]) -> None:
    """Say on standard error what keeps the run from being complete, and exit if it failed."""
    from harness.cli.run_summary import status_counts
    from harness.records.text import count

    records = outcome.results.records
    if outcome.left:
        verb = "was" if outcome.left == 1 else "were"
        say(f"{count(outcome.left, 'case')} {verb} not started; continue with")
        click.echo(f"  {_continuing(out)}", err=True)
    code = 0
    if not records:
        why = "the time budget was spent" if outcome.left else "this part of the sweep has no case"
        say(f"nothing was measured: {why}")
        code = NOT_MEASURED
    elif not outcome.measured:
        say("nothing was measured; the reasons are above")
        code = NOT_MEASURED
    elif outcome.failed:
        failures = status_counts([each for each in records if each.status.is_failure])
        listed = ", ".join(f"{number} {status}" for status, number in failures.items())
        could = f"{count(outcome.failed, 'case')} could not be measured"
        say(f"{could} ({listed}); the reasons are above")
        code = NOT_MEASURED
    found = status_counts([each for each in records if each.status in fail_on])
    if found:
        listed = ", ".join(f"{count(number, 'case')} {status}" for status, number in found.items())
        say(f"failed, as --fail-on {','.join(fail_on)} asks: {listed}")
        code = FAILED
    if code:
        raise SystemExit(code)


def write_page(results: list[Any], run: Path, out: Path | None = None) -> Path:
    """Write the page of some results, by default to reports/ under the name of the run."""
    import gc

    from harness.report import write_report

    gc.disable()  # thousands of records are alive, and would be walked again and again
    page = out or Path("reports") / f"{run.stem}.html"
    write_report(results, page)
    return page


def _continuing(out: Path) -> str:
    """Return the command line that continues this run."""
    rest = iter(sys.argv[1:])
    kept = []
    for each in rest:
        if each == "--out":
            next(rest, None)
        elif each != "--resume" and not each.startswith("--out="):
            kept.append(each)
    return shlex.join(["layernorm-bench", *kept, "--resume", "--out", str(out)])

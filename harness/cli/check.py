"""The command ``check``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.ci_outputs import CiOutputs, gate_options
from harness.cli.exit_code import ExitCode, exit_with_error
from harness.cli.run_files import PATH, check_results_name, read_run, typed_command
from harness.records.refusal import Refusal
from harness.records.text import count

if TYPE_CHECKING:
    from harness.store import Results

__all__ = ["check"]


class UnfinishedError(Refusal):
    """A run that was cut short cannot pass a gate."""

    exit_code = ExitCode.NOT_MEASURED


@click.command()
@click.argument("run", type=PATH)
@click.option("--baseline", type=PATH, metavar="FILE", help="results file to compare with")
@click.option(
    "--against-history",
    "folder",
    type=PATH,
    metavar="DIR",
    help="compare with the last comparable runs of a folder instead; RUN itself may lie in it",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="with --against-history: how many runs",
)
@click.option(
    "--no-confirm",
    is_flag=True,
    help="do not time again the cases that look slower; they are reported as inconclusive",
)
@click.option("--accept", is_flag=True, help="show the changes, then make RUN the baseline")
@click.option(
    "--record-baseline",
    "record",
    is_flag=True,
    help="compare nothing: measure each case of RUN in ten processes and write the result to the "
    "baseline FILE, which is replaced; an interrupted recording is continued",
)
@gate_options
def check(
    run: Path,
    baseline: Path | None,
    folder: Path | None,
    last: int,
    no_confirm: bool,
    accept: bool,
    record: bool,
    outputs: CiOutputs,
) -> None:
    """Did RUN get worse than a baseline, or than the runs before it? The gate of a CI job.

    Statuses and memory are compared exactly, on any machine. So are errors on the same machine;
    on another one they may differ as by another order of the same sums. Latency is compared as
    the ratio to the reference, and only between runs on the same machine with the same software.
    A case that looks slower is timed again in up to five fresh processes, and fails only if all
    five agree. With a history, a run counts as one process, so that the differences between runs
    are part of the judgement; times are judged from ten comparable runs on.

    Exit code 0: nothing got worse. 1: a case got worse. 2: a file cannot be read. 3: nothing was
    measured, or RUN was cut short. 4: nothing can be compared.
    """
    if record and (accept or no_confirm or outputs.is_given):
        raise click.UsageError("--record-baseline compares nothing: give no other option")
    if folder is not None and (baseline is not None or record or accept):
        raise click.UsageError(
            "--against-history takes the place of --baseline, and records nothing"
        )
    if folder is None and baseline is None:
        raise click.UsageError("give --baseline FILE or --against-history DIR")
    if baseline is not None and (record or accept):
        check_results_name("--baseline", baseline)
        if record:
            _record(read_run(run), baseline)
            return
        if not baseline.exists():
            _accept(_read_finished(run), None, baseline)
            return
    with outputs.prepared(run, *([baseline] if baseline else [])):
        from harness.regression import RECORD_BASELINE, compare, confirm_here, refuse_unacceptable
        from harness.regression.history import (
            FEW_RUNS,
            baseline_of_history,
            history_name,
            read_history,
        )
        from harness.run.fleet import Fleet

        head = _read_finished(run)
        notes: tuple[str, ...] = ()
        if baseline is not None:
            before, name, advice = _read_baseline(baseline, run), str(baseline), RECORD_BASELINE
        else:
            assert folder is not None  # checked above
            history = read_history(folder, samples=True, without=run)
            before = baseline_of_history(history, head, last)
            name, notes, advice = history_name(history, last), history.notes, FEW_RUNS
        if accept:  # before cases are timed again for a minute
            refuse_unacceptable(head, before)
        comparison = compare(
            before,
            head,
            baseline_name=name,
            head_name=str(run),
            confirm=None if no_confirm else confirm_here(head, Fleet, _print_progress),
            advice=advice,
        )
        comparison = replace(comparison, notes=(*comparison.notes, *notes))
    outputs.report(comparison)
    if accept and baseline is not None:
        _accept(head, before, baseline)
    elif comparison.failed:
        raise SystemExit(ExitCode.FAILED)


def _read_finished(run: Path) -> Results:
    head = read_run(run)
    if why := head.why_unfinished:
        complete = run.with_suffix(".parquet")
        raise UnfinishedError(
            f"{run}: was cut short, {why}; continue the run with --resume --out {complete}"
        )
    return head


def _read_baseline(path: Path, run: Path) -> Results:
    if not path.exists():
        again = shlex.join(["check", str(run), "--baseline", str(path), "--record-baseline"])
        raise Refusal(f"{path}: no such file; make the baseline with `layernorm-bench {again}`")
    baseline = read_run(path)
    if why := baseline.why_unfinished:
        raise UnfinishedError(
            f"{path}: cannot be a baseline: the run was cut short, {why}; continue it with --resume"
        )
    return baseline


def _record(head: Results, baseline: Path) -> None:
    from harness.cli.terminal import RunProgress
    from harness.regression import is_steady, passes_left, record_baseline
    from harness.run.fleet import Fleet

    command = typed_command()
    try:
        with RunProgress(passes_left(baseline) * len(head.records)) as progress:
            recorded = record_baseline(
                head,
                baseline,
                make_fleet=Fleet,
                command=command,
                on_record=progress.show,
            )
    except KeyboardInterrupt:
        exit_with_error(f"interrupted; continue with\n  {command}", ExitCode.INTERRUPTED)
    timed = [record for record in recorded.records if record.latency is not None]
    steady = sum(map(is_steady, timed))
    click.echo(f"baseline: {baseline}, {count(len(recorded.records), 'case')}")
    if timed:
        click.echo(f"cases steady enough to judge small changes: {steady} of {len(timed)} timed")
    if steady < len(timed):
        click.echo("to get more steady cases, record again with other programs closed", err=True)


def _accept(head: Results, before: Results | None, baseline: Path) -> None:
    from harness.regression import refuse_unacceptable
    from harness.store import write

    refuse_unacceptable(head, before)
    write(head, baseline)
    click.echo(f"accepted: {baseline} now holds the run", err=True)


def _print_progress(line: str) -> None:
    click.echo(line, err=True)

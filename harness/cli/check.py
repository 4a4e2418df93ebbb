"""The commands ``check`` and ``compare``: parse, read, ask, print, exit."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from harness.cli.ci_outputs import GateOutlets, gate_options
from harness.records.refusal import Refusal

__all__ = ["check", "compare"]

FAILED, UNFINISHED, INTERRUPTED = 1, 3, 130
_RESULTS = click.Path(path_type=Path)


class UnfinishedError(Refusal):
    """A run that was cut short cannot pass a gate."""

    exit_code = UNFINISHED


class InterruptedRecordingError(Refusal):
    """Recording a baseline was interrupted, and can be continued."""

    exit_code = INTERRUPTED


@click.command()
@click.argument("run", type=_RESULTS)
@click.option(
    "--baseline", type=_RESULTS, required=True, metavar="FILE", help="results to compare with"
)
@click.option("--no-confirm", is_flag=True, help="time nothing again; suspects stay unsure")
@click.option("--accept", is_flag=True, help="show what changed, then make RUN the baseline")
@click.option(
    "--record-baseline",
    "record",
    is_flag=True,
    help="measure the cases of RUN in ten processes each, and write or replace FILE; compare "
    "nothing",
)
@click.option("--resume", is_flag=True, help="continue a recording that was interrupted")
@gate_options
@click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
def check(
    run: Path,
    baseline: Path,
    no_confirm: bool,
    accept: bool,
    record: bool,
    resume: bool,
    junit: Path | None,
    summary: Path | None,
    annotations: bool | None,
    as_json: bool,
) -> None:
    """Did RUN get worse than the baseline? The gate of a CI job.

    Verdicts, errors and memory are compared exactly, on any machine; latency as the ratio to the
    reference, on the same machine with the same software alone. What looks slower is timed again
    in five fresh processes, and fails only if all of them agree.

    Exit code 0: no. 1: yes. 2: a file cannot be read. 3: nothing was measured, or RUN was cut
    short. 4: nothing can be compared.
    """
    if record and (accept or no_confirm or as_json or junit or summary):
        raise click.UsageError("--record-baseline compares nothing: give it alone or with --resume")
    if resume and not record:
        raise click.UsageError("--resume continues a --record-baseline")
    if (record or accept) and baseline.suffix != ".parquet":
        raise click.UsageError(f"--baseline {baseline}: a results file ends in .parquet")
    if record:
        _record(_read(run), baseline, resume)
        return
    if accept and not baseline.exists():
        _accept(_read_finished(run), None, baseline)
        return
    outlets = GateOutlets(junit=junit, summary=summary, annotations=annotations, to_stderr=as_json)
    with outlets.open(run, baseline):
        head = _read_finished(run)
        before = _read_baseline(baseline, run)
        if accept:  # before suspects are timed for a minute
            _refuse_unacceptable(head, before)
        from harness.regression.compare import compare as compare_results
        from harness.regression.confirm import ConfirmHere
        from harness.run.fleet import Fleet

        comparison = compare_results(
            before,
            head,
            baseline_name=str(baseline),
            head_name=str(run),
            confirm=None if no_confirm else ConfirmHere(head, Fleet, _say),
        )
    _show(comparison, as_json)
    outlets.tell(comparison)
    if accept:
        _accept(head, before, baseline)
    elif comparison.failed:
        raise SystemExit(FAILED)


@click.command()
@click.argument("before", type=_RESULTS, metavar="A")
@click.argument("after", type=_RESULTS, metavar="B")
@click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
def compare(before: Path, after: Path, as_json: bool) -> None:
    """What changed from A to B, worst first. For people: nothing fails, and nothing is timed again.

    Between machines the latencies are shown and not compared.
    """
    from harness.regression.compare import compare as compare_results
    from harness.regression.confirm import confirm_from

    old, new = _read(before), _read(after)
    comparison = compare_results(
        old,
        new,
        baseline_name=str(before),
        head_name=str(after),
        confirm=confirm_from(old, new),
        least_processes=1,
    )
    _show(comparison, as_json)
    for path, results in ((before, old), (after, new)):
        if why := results.why_unfinished:
            click.echo(f"note: {path} was cut short, {why}", err=as_json)


def _read(path: Path) -> Any:
    """Read results with their samples, finished or not."""
    from harness.store import read, read_journal

    journal = path.with_suffix(".jsonl")
    if path.suffix == ".jsonl":
        return read_journal(path)
    if not path.exists() and journal.exists():
        return read_journal(journal)
    return read(path)


def _read_finished(run: Path) -> Any:
    head = _read(run)
    if why := head.why_unfinished:
        whole = run.with_suffix(".parquet")
        raise UnfinishedError(f"{run}: was cut short, {why}; go on with --resume --out {whole}")
    return head


def _read_baseline(path: Path, run: Path) -> Any:
    if not path.exists():
        again = shlex.join(["check", str(run), "--baseline", str(path), "--record-baseline"])
        raise Refusal(f"{path}: no such file; make the baseline with `layernorm-bench {again}`")
    baseline = _read(path)
    if why := baseline.why_unfinished:
        raise UnfinishedError(f"{path}: is no baseline: it was cut short, {why}")
    return baseline


def _record(head: Any, baseline: Path, resume: bool) -> None:
    from harness.cli.terminal import RunProgress
    from harness.regression.baseline import passes_left, record_baseline
    from harness.regression.latency_test import is_steady
    from harness.run.fleet import Fleet

    command = shlex.join(["layernorm-bench", *sys.argv[1:]])
    with RunProgress(passes_left(baseline) * len(head.records)) as progress:
        try:
            found = record_baseline(
                head,
                baseline,
                make_fleet=Fleet,
                command=command,
                resume=resume,
                on_record=progress.show,
            )
        except KeyboardInterrupt:
            raise InterruptedRecordingError(
                f"interrupted; continue with\n  {command}{'' if resume else ' --resume'}"
            ) from None
    timed = [each for each in found.records if each.latency is not None]
    steady = sum(map(is_steady, timed))
    click.echo(f"baseline: {baseline}, {len(found.records)} cases")
    if timed:
        click.echo(f"{steady} of {len(timed)} timed ones are steady enough to judge small changes")
    if steady < len(timed):
        click.echo("a machine with less else to do makes more of them so", err=True)


def _refuse_unacceptable(head: Any, before: Any) -> None:
    from harness.regression.baseline import refuse_unacceptable

    refuse_unacceptable(head, before)


def _accept(head: Any, before: Any, baseline: Path) -> None:
    from harness.regression.baseline import accept

    accept(head, before, baseline)
    _say(f"accepted: {baseline} holds the run now")


def _show(comparison: Any, as_json: bool) -> None:
    from harness.regression.text import comparison_as_plain, comparison_lines

    if as_json:
        click.echo(json.dumps(comparison_as_plain(comparison)))
    else:
        click.echo("\n".join(comparison_lines(comparison)))


def _say(line: str) -> None:
    click.echo(line, err=True)

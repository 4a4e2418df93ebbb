"""The commands ``check``, ``ab`` and ``compare``, and what a gate of CI prints and writes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.exit_code import ExitCode, exit_with_error
from harness.cli.options import (
    FOLDER,
    PATH,
    TEXT,
    SweepChoice,
    flag,
    json_option,
    option,
    read_run,
    sweep_options,
    typed_command,
)
from harness.records.refusal import NotMeasuredError, Refusal, refusing
from harness.records.text import count

if TYPE_CHECKING:
    from harness.regression import Comparison
    from harness.report import Document
    from harness.store import Results

_FORMATS = ("text", "markdown", "json")
_LAST_RUNS = 10  # of a history. Trade-off: fewer have no interval, older ones another machine state
_say = partial(click.echo, err=True)


class InterruptedComparisonError(Refusal):
    """A comparison was interrupted, and nothing of it is kept."""

    exit_code = ExitCode.INTERRUPTED


# --- what a gate writes --------------------------------------------------------------------------


def refuse_input(out: Path, *inputs: Path) -> None:
    """Refuse to write over a file that the command reads.

    Raises:
        Refusal: ``out`` is one of the inputs, under this name or another.
    """
    for path in inputs:
        if path.exists() and out.exists() and out.samefile(path):
            raise Refusal(
                f"{out}: this command reads the file and would overwrite it: choose another"
            )


def add_summary(path: Path, document: Document, rest: str) -> None:
    """Write a job summary: append it if the file is GitHub's, else replace the file.

    GitHub's file collects the summaries of all commands of a step, and its limit is for their sum.

    Args:
        path: the file.
        document: the summary.
        rest: a clause that says where to find the rows for which there is no room.

    Raises:
        Refusal: the file cannot be written.
    """
    from harness.report import LIMIT_BYTES, markdown, write_whole

    used = path.stat().st_size if _is_github_summary(path) and path.exists() else 0
    separator = "\n" if used else ""  # a heading begins its line
    text = markdown(document, limit_bytes=LIMIT_BYTES - used - len(separator), rest=rest)
    if not text:
        _say(f"{path}: has no room for a summary, with {used} bytes in it already")
    elif _is_github_summary(path):
        with refusing(path, "written"), path.open("ab") as file:
            file.write((separator + text).encode())
    else:
        write_whole(path, text)


def _is_github_summary(path: Path) -> bool:
    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return name != "" and path.resolve() == Path(name).resolve()


def _gate(command: Callable[..., Comparison | None]) -> Callable[..., None]:
    """Add the options of what a gate prints and writes of the comparison that it returns.

    The files are emptied first, so that no report of an earlier run can be taken for one of this
    run, even after a crash; a refusal is written to them.
    """

    @option("--junit", "also write JUnit XML, for GitLab, Jenkins, ...", TEXT)
    @option("--summary", "also write Markdown; it is appended to $GITHUB_STEP_SUMMARY", TEXT)
    @json_option
    @wraps(command)
    def printing(junit: Path | None, summary: Path | None, as_json: bool, **values: Any) -> None:
        from harness.report import reports_of_gate, write_whole

        read = (*values.values(), getattr(values.get("choice"), "file", None))
        inputs = [value for value in read if isinstance(value, Path)]
        if junit and summary and junit.resolve() == summary.resolve():
            raise Refusal(f"{junit}: --junit and --summary name the same file")
        for out in filter(None, (junit, summary)):
            refuse_input(out, *inputs)
            if not _is_github_summary(out):
                write_whole(out, "")

        def write(found: Comparison | str) -> None:
            xml, document, annotations = reports_of_gate(found)
            if junit:
                write_whole(junit, xml)
            if summary:
                rest = f"all are in {junit}" if junit else "--junit FILE has all of them"
                add_summary(summary, document, rest)
            if os.environ.get("GITHUB_ACTIONS") == "true":
                for line in annotations:  # GitHub reads both streams
                    click.echo(line, err=as_json)

        try:
            found = command(**values)
        except Refusal as refusal:
            write(str(refusal))
            raise
        if found is not None:
            _print_comparison(found, "json" if as_json else "text")
            write(found)
            if found.failed and not values.get("accept"):
                raise SystemExit(ExitCode.FAILED)

    return printing


def _print_comparison(comparison: Comparison, form: str) -> None:
    from harness.report import (
        LIMIT_BYTES,
        MOST_ROWS,
        comparison_as_plain,
        document_of_comparison,
        end_of_comparison,
        json_text,
        markdown,
        show,
        summary_of_comparison,
    )

    if form == "json":
        click.echo(json_text(comparison_as_plain(comparison)))
    elif form == "markdown":
        click.echo(markdown(summary_of_comparison(comparison), limit_bytes=LIMIT_BYTES))
    else:
        document = document_of_comparison(comparison, most_rows=MOST_ROWS)
        show([*document, *end_of_comparison(comparison)])


# --- check ---------------------------------------------------------------------------------------


@click.command()
@click.argument("run", type=PATH)
@option("--baseline", "results file to compare with", PATH)
@option("--against-history folder", "compare with a folder's last ten comparable runs", FOLDER)
@flag("--no-confirm", "do not time again what looks slower; it is reported as inconclusive")
@flag("--accept", "show the changes, then make RUN the baseline")
@flag(
    "--record-baseline record",
    "only measure RUN in ten processes, and make them the baseline FILE or add them to it",
)
@_gate
def check(
    run: Path,
    baseline: Path | None,
    folder: Path | None,
    no_confirm: bool,
    accept: bool,
    record: bool,
) -> Comparison | None:
    """Did RUN get worse than a baseline, or than the runs before it? The gate of a CI job.

    Statuses and memory are compared exactly, on any machine. So are errors on the same machine;
    on another one they may differ as by another order of the same sums. Latency is compared as
    the speed relative to native, and only between runs on the same machine with the same software.
    A case that looks slower is timed again in up to five fresh processes, and fails only if all
    five agree. With a history, a run counts as one process, so that the differences between runs
    are part of the judgement; times are judged from ten comparable runs on.

    Exit code 0: nothing is known to have got worse, even if all cases are inconclusive. 1: a case
    got worse. 2: a file cannot be read. 3: nothing was measured, or RUN was cut short. 4: nothing
    can be compared.
    """
    outputs = map(click.get_current_context().params.get, ("junit", "summary", "as_json"))
    if record and (accept or no_confirm or any(outputs)):
        raise click.UsageError("--record-baseline compares nothing: give no other option")
    if (folder is None) == (baseline is None) or (folder is not None and (record or accept)):
        raise click.UsageError(
            "give --baseline FILE, or --against-history DIR, which records and accepts nothing"
        )
    if baseline is not None and (record or accept) and baseline.suffix != ".parquet":
        raise click.UsageError(f"--baseline {baseline}: a results file ends in .parquet")
    if baseline is not None and record:
        _record(read_run(run), baseline)
        return None
    from harness import regression
    from harness.run import Fleet
    from harness.store import write

    head = _read_finished(
        run, f"continue the run with --resume --out {run.with_suffix('.parquet')}"
    )
    notes: tuple[str, ...] = ()
    before = None
    if folder is not None:
        history = regression.read_history(folder, samples=True, without=run)
        before = regression.baseline_of_history(history, head, _LAST_RUNS)
        name, notes = regression.history_name(history, _LAST_RUNS), history.notes
        advice = regression.FEW_RUNS
    elif baseline is not None and baseline.exists():
        before = _read_finished(baseline, "cannot be a baseline: continue it with --resume")
        name, advice = str(baseline), regression.RECORD_BASELINE
    elif not accept:
        names = f"{shlex.quote(str(run))} --baseline {shlex.quote(str(baseline))}"
        raise Refusal(
            f"{baseline}: no such file; make the baseline with `layernorm-bench check {names} "
            "--record-baseline`"
        )
    if accept:  # before cases are timed again for a minute
        regression.refuse_unacceptable(head, before)
    comparison = None
    if before is not None:
        comparison = regression.compare(
            before,
            head,
            (name, str(run)),
            confirm=None if no_confirm else regression.confirm_here(head, Fleet, _say),
            advice=advice,
        )
        comparison = replace(comparison, notes=(*comparison.notes, *notes))
    if accept and baseline is not None:
        write(head, baseline)
        _say(f"accepted: {baseline} now holds the run")
    return comparison


def _read_finished(path: Path, advice: str) -> Results:
    results = read_run(path)
    if why := results.why_unfinished:
        raise NotMeasuredError(f"{path}: was cut short, {why}; {advice}")
    return results


def _record(head: Results, baseline: Path) -> None:
    from harness.cli.terminal import RunProgress
    from harness.regression import ENOUGH_RECORDINGS, is_steady, record_baseline, records_left
    from harness.report import Text, show
    from harness.run import Fleet

    command = typed_command()
    try:
        with RunProgress(records_left(head, baseline)) as progress:
            recorded = record_baseline(
                head, baseline, make_fleet=Fleet, command=command, on_record=progress.show
            )
    except KeyboardInterrupt:
        exit_with_error(f"interrupted; continue with\n  {command}", ExitCode.INTERRUPTED)
    timed = [record for record in recorded.records if record.latency is not None]
    steady = sum(map(is_steady, timed))
    recordings = count(len(recorded.runs), "recording")
    lines = [
        f"baseline: {baseline}, {count(len(recorded.records), 'case')}, {recordings}",
        f"cases steady enough to judge small changes: {steady} of {len(timed)} timed",
    ]
    if len(recorded.runs) < ENOUGH_RECORDINGS:
        lines.append(
            f"record again some hours later, {ENOUGH_RECORDINGS} times in all: a change then has "
            "to exceed what differs between hours"
        )
    show([*map(Text, lines)])


# --- ab ------------------------------------------------------------------------------------------


@click.command()
@option("--base revision", "branch, tag or commit to compare with", required=True, metavar="REV")
@sweep_options("ci")
@flag("--instructions", "also count the CPU instructions per call; needs valgrind")
@_gate
def ab(revision: str, choice: SweepChoice, instructions: bool) -> Comparison:
    """Did my working copy get worse than revision REV?

    This is the gate of a pull request. Both revisions are imported side by side and measured in
    turn in the same processes, so that a busy machine does not matter. Statuses, errors and
    memory are compared exactly. A case that looks slower is timed again in up to five fresh
    processes, and fails only if all five agree. The revisions are those of the repository that
    holds the implementations: this package's, or yours if -i names functions in it. Counts of
    instructions decide where times cannot tell.

    Exit code 0: nothing is known to have got worse, even if all cases are inconclusive. 1: a case
    got worse. 2: there is no such revision, or it cannot be imported. 3: nothing was measured. 4:
    nothing can be compared.
    """
    from harness.run import Fleet, count_instructions

    try:
        sweep = choice.load()
        with Fleet() as fleet:  # its process imports torch while the revision is checked out
            from harness import regression
            from harness.cli.terminal import RunProgress

            repository = regression.repository_of_sweep(sweep)
            with regression.checked_out(repository, revision) as checkout, ExitStack() as bar:
                name = f"{revision} ({checkout.commit[:12]})"
                planned, lacks = regression.pair_up(sweep, fleet, checkout, name)
                progress = bar.enter_context(RunProgress(len(planned)))

                def say(line: str) -> None:
                    bar.close()  # or the line would be printed into the progress bar
                    _say(line)

                find = partial(regression.found_in_either, checkout=checkout)
                counted = partial(count_instructions, timeout_s=sweep.timeout_s, find=find)
                bench = regression.Bench(
                    fleet=fleet,
                    make_fleet=Fleet,
                    checkout=checkout,
                    timeout_s=sweep.timeout_s,
                    expect=progress.expect,
                    on_record=progress.show,
                    say=say,
                    count=counted if instructions else None,
                )
                return regression.ab(planned, lacks, bench, (name, "the working copy"))
    except KeyboardInterrupt:
        raise InterruptedComparisonError(
            "interrupted: an unfinished comparison has no result, so nothing was kept"
        ) from None


# --- compare -------------------------------------------------------------------------------------


@click.command()
@click.argument("before", type=PATH, metavar="BEFORE")
@click.argument("after", type=PATH, metavar="AFTER")
@json_option
@option("--format form", "how to print", click.Choice(_FORMATS), default="text")
def compare(before: Path, after: Path, as_json: bool, form: str) -> None:
    """What changed between two runs?

    The worst changes come first. Nothing is measured again, and a regression does not change the
    exit code: `check` and `ab` are the gates. Latencies of different machines are not compared.

    Exit code 0: compared. 2: a file cannot be read. 3: nothing was measured. 4: the runs have
    nothing in common.
    """
    from harness.regression import compare_as_stored

    old, new = read_run(before), read_run(after)
    comparison = compare_as_stored(old, new, (str(before), str(after)))
    unfinished = tuple(
        f"{path} was cut short, {results.why_unfinished}"
        for path, results in ((before, old), (after, new))
        if results.why_unfinished
    )
    comparison = replace(comparison, notes=(*comparison.notes, *unfinished))
    _print_comparison(comparison, "json" if as_json else form)

"""The commands that read results files: choose, report, export, history, merge, import."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cases import AXES
from harness.cli.exit_code import ExitCode
from harness.cli.gates import add_summary, refuse_input
from harness.cli.options import (
    FOLDER,
    PAGE,
    PATH,
    RESULTS,
    TEXT,
    Number,
    given_axes,
    json_option,
    max_condition_option,
    option,
    print_as,
    read_run,
    stored_file,
    type_of,
    typed_command,
)
from harness.records import Run
from harness.records.metrics import metrics_in
from harness.records.refusal import NotMeasuredError, Refusal
from harness.records.text import count
from harness.selection import FILTERS, Accuracy

if TYPE_CHECKING:
    from harness.cli.options import Command
    from harness.report import Panel, Table
    from harness.store import Results

_FORMATS = ("table", "markdown", "json", "python")
_RUNS = click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")

# --- choose --------------------------------------------------------------------------------------


def _filters(command: Command) -> Command:
    for name in reversed(FILTERS):
        axis = AXES[name]
        text = f"choose only for these values of {name}"
        command = option(axis.option, text, type_of(axis), multiple=True)(command)
    return command


@click.command()
@_RUNS
@_filters
@option(
    "--accuracy",
    "which results are good enough: right ones, or inaccurate ones too",
    click.Choice([accuracy.value for accuracy in Accuracy]),
    default="right",
)
@option("--max-error max_error_ulp", "largest error to accept, in ulp", Number(min=0), metavar="E")
@max_condition_option
@option("--workload", "one choice for all calls; see `list workloads`", metavar="NAME|FILE")
@option("--format form", "how to print the choice", click.Choice(_FORMATS), default="table")
def choose(
    runs: tuple[Path, ...],
    accuracy: str,
    max_error_ulp: float | None,
    max_condition: float,
    workload: str | None,
    form: str,
    **filters: tuple[tuple[Any, ...], ...],
) -> None:
    """Choose the implementation to run, for each scenario of RUN.

    A scenario is a shape, dtype, device and direction with its settings.

    The choice is the fastest candidate that was right in every case of inputs up to
    --max-condition. With --accuracy inaccurate, inaccurate candidates are eligible too, and their
    rows say how far off they are. If the intervals of other candidates close to it overlap with its
    own, accuracy decides, then memory. Speeds are relative to native: higher is faster.

    Exit code 0: every scenario has a choice. 1: at least one has no eligible candidate. 3: nothing
    was measured. 4: no scenario of RUN matches.
    """
    from harness.report import choices_as_json, choices_document, evidence_lines, python_lines
    from harness.selection import Requirements, choose_for_workload, find_workload
    from harness.selection import choose as choose_among

    wanted = find_workload(workload) if workload is not None else None
    found = choose_among(
        [read_run(run, samples=False) for run in runs],
        given_axes(filters),
        Requirements(
            accuracy=Accuracy(accuracy), max_error_ulp=max_error_ulp, max_condition=max_condition
        ),
    )
    of_workload = choose_for_workload(wanted, found) if wanted else ()
    evidence = list(evidence_lines(found, [run.name for run in runs]))
    if form == "python":
        click.echo("\n".join(python_lines(found, of_workload, [*evidence, *found.notes])))
    else:
        print_as(
            form,
            lambda: choices_document(found, of_workload, evidence),
            lambda: choices_as_json(found, of_workload, evidence),
        )
    has_choice = all(one.best is not None or one.per_shape_s is not None for one in of_workload)
    if not (has_choice if of_workload else found.is_complete):
        raise SystemExit(ExitCode.FAILED)


# --- report --------------------------------------------------------------------------------------


@click.command()
@_RUNS
@option("--out", "the page to write  [default: reports/RUN.html]", PAGE)
@option("--baseline", "also show what changed since this run, as `compare` does", PATH)
@max_condition_option
def report(
    runs: tuple[Path, ...], out: Path | None, baseline: Path | None, max_condition: float
) -> None:
    """Make one HTML page of results files, with charts and tables.

    Its first sentence says which implementation to run. --max-condition sets what is required of
    it; a switch on the page shows the answer for other requirements.

    A folder of runs, given alone, is shown as a history: the trend of each case, change points and
    their commits, and the latest run of each environment.

    The page is self-contained. It needs neither torch nor the machine that was measured.
    """
    gc.disable()  # each collection would walk the thousands of records that are alive
    if "torch" not in sys.modules:  # a program that has it, such as a test, may need its last one
        atexit.register(gc.freeze)  # the interpreter's last collection would walk them, too
    is_history = any(path.is_dir() for path in runs)
    if baseline and (len(runs) > 1 or is_history):
        raise click.UsageError("--baseline is for one RUN: report RUN --baseline FILE")
    if is_history and len(runs) > 1:
        raise click.UsageError("a folder of runs is given alone: report DIR")
    more: dict[str, Any] = {"max_condition": max_condition}
    if is_history:
        from harness.regression import read_history

        history, name = read_history(runs[0]), runs[0].resolve().name
        results = [run.results for run in history.latest]
        runs = tuple(run.path for run in history.latest)
        out = out or Path("reports") / f"{name}.html"
        more |= {"title": f"LayerNorm: history of {name}", "history": history}
    else:
        results = [read_run(path, samples=baseline is not None) for path in runs]
    if baseline:
        from harness.regression import compare_as_stored

        names = (str(baseline), str(runs[0]))
        more["comparison"] = compare_as_stored(read_run(baseline), results[0], names)
    click.echo(write_page(results, runs, out, **more))


def write_page(
    results: Sequence[Results], runs: Sequence[Path], out: Path | None = None, **others: Any
) -> Path:
    """Write the page of ``results`` and return its path.

    Args:
        results: of one or several runs.
        runs: the results files; the page is named after the first.
        out: the page; by default in reports/.
        others: what else the page shows, as :func:`harness.report.build_page` takes it.

    Raises:
        Refusal: there is nothing to report, or the page cannot be written.
    """
    from harness.report import build_page, write_whole

    page = out or Path("reports") / f"{runs[0].stem}.html"
    write_whole(page, build_page(results, files=[str(run) for run in runs], **others))
    return page


# --- export and import ---------------------------------------------------------------------------

# the names in harness.report.exports, which takes a second to import
FORMATS = ("csv", "junit", "summary")
# what the page shows, in files of their own
PAGE_FORMATS = ("markdown", "svg", "png")
_FORMAT_HELP = (
    "csv: a row per case. junit, summary: the verdict of each case, for CI. markdown: tables of "
    "the page. svg, png: a figure of the page"
)


@click.command()
@click.argument("run", type=PATH)
@option("--format form", _FORMAT_HELP, click.Choice(FORMATS + PAGE_FORMATS), required=True)
@option("--figure", "a figure or table of the page; list: print the names", metavar="NAME")
@option("--out", "the file to write  [default: standard output]", TEXT)
def export(run: Path, form: str, figure: str | None, out: Path | None) -> None:
    """Convert RUN to CSV, JUnit XML, Markdown and figures.

    Wrong results do not change the exit code: `check` and `ab` are the gates.

    Exit code 0: written. 2: a file cannot be read or written. 3: RUN holds nothing that the
    format can express.
    """
    from harness.regression import refuse_duplicates
    from harness.report import AS_TEXT, summary_of_run, write_whole

    if figure and form not in PAGE_FORMATS:
        raise click.UsageError(f"--figure {figure}: goes with --format {', '.join(PAGE_FORMATS)}")
    if out:
        refuse_input(out, run)
    results = read_run(run, samples=False)
    if not results.records:
        raise NotMeasuredError(f"{run}: holds no cases; run the sweep again")
    refuse_duplicates(results, str(run))
    if why := results.why_unfinished:
        click.echo(f"note: {run} was cut short, {why}", err=True)
    if form == "summary" and out:
        rest = f"layernorm-bench export {run} --format csv has all of them"
        add_summary(out, summary_of_run(results, str(run)), rest)
        return
    if form in PAGE_FORMATS:
        content = _part_of_page(results, form, figure)
    else:
        content = AS_TEXT[form](results, str(run))
    if content is None:
        raise NotMeasuredError(
            f"{run}: no case in it has a figure for {form}; the status of each case is in "
            f"`layernorm-bench export {run} --format csv`"
        )
    if out:
        write_whole(out, content)
    else:
        click.echo(content, nl=False)


def _part_of_page(results: Results, form: str, figure: str | None) -> str | bytes | None:
    """Return a figure or tables of the page, or their names; None if it has none."""
    from harness.report import drawings_of, file_of, markdown, tables_of

    tables: dict[str, Table] = tables_of([results]) if form == "markdown" else {}
    drawings: dict[str, Panel] = {} if form == "markdown" else drawings_of([results])
    names = [*tables, *drawings]
    if not names:
        return None
    if figure == "list":
        return "".join(f"{name}\n" for name in names)
    if figure not in (names if drawings else [*names, None]):
        raise click.UsageError(f"--format {form} needs --figure, one of {', '.join(names)}")
    if figure in drawings:
        return file_of(drawings[figure], form)
    chosen = [tables[figure]] if figure else tables.values()
    return markdown([replace(table, is_folded=False) for table in chosen])


@click.command(name="import")
@click.argument("benchmark", type=PATH, metavar="BENCHMARK.json")
@option("--out", "the results file to write", RESULTS, required=True)
def import_results(benchmark: Path, out: Path) -> None:
    """Convert a file of pytest-benchmark to a results file.

    BENCHMARK.json was written by `pytest --layernorm-sweep PRESET --benchmark-json
    BENCHMARK.json`. Its times are marked as pytest-benchmark's; they are never compared with
    times that layernorm-bench measured.

    Exit code 0: written. 2: the file cannot be read, or holds other benchmarks. 3: it holds no
    benchmark.
    """
    if out.exists():
        raise Refusal(f"{out} exists; choose another --out")
    from harness.report import import_benchmarks
    from harness.store import write

    results = import_benchmarks(benchmark, typed_command())
    write(results, out)
    click.echo(f"results: {out}, {count(len(results.records), 'case')}")


# --- many files ----------------------------------------------------------------------------------

_METRICS = [metric.heading("trend") for metric in metrics_in("trend")]


@click.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@option("--case pattern", "only cases whose id holds this text, or matches it with * and ?")
@option("--metric", "what to show", click.Choice(_METRICS), default="speed")
@option("--run command", 'only runs whose command has this text: "preset ci"', default="")
@option("--last", "only the last N of these runs", click.IntRange(1), metavar="N")
@option("--worst", "only the N worst cases of the last runs", click.IntRange(1), metavar="N")
@json_option
def history(folder: Path, pattern: str | None, metric: str, as_json: bool, **wanted: Any) -> None:
    """How did each case change over the runs in DIR?

    DIR holds one results file per commit or per day. Each case has a series of values, and runs
    that cannot be compared, such as of another machine, start another series. A change point is
    shown with its range of commits. The latest values are last. Series that changed most come
    first, or with --worst those of the worst values. A change does not alter the exit code: `check
    RUN --against-history DIR` is the gate.

    Of each file only the columns of the metric are read, and of these only the wanted cases, so
    that millions of records can be searched. More than a million without --case or --worst are
    refused.

    Exit code 0: printed. 2: there is no such folder or run, or too much to read. 3: no file in it
    can be read, or no case has the metric.
    """
    from harness.regression import TREND_METRICS, query_history
    from harness.report import document_of_history, history_as_plain

    found, trend = query_history(folder, TREND_METRICS[metric], pattern=pattern, **wanted)
    if not trend.series:
        raise NotMeasuredError(
            f"{folder}: no case{f' that matches {pattern}' if pattern else ''} has a value of "
            f"{metric}; `layernorm-bench history {folder} --last 1` has the cases of the last run"
        )
    print_as(
        as_json, lambda: document_of_history(found, trend), lambda: history_as_plain(found, trend)
    )


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@option("--out", "the results file to write", RESULTS, required=True)
@json_option
def merge(files: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Merge results files, such as those of the shards of a sweep, into one.

    FILE is a results file, or the journal NAME.jsonl of an unfinished run. A record that is in
    several files is kept once. Records of different environments are kept apart. The file is as
    that of one run: `run --resume --out RUN.parquet` measures the cases that are missing in it.

    Exit code 0: written. 2: a file cannot be read, or two files have different results of a case
    in one environment. 3: the files hold no record.
    """
    from harness.report import Text
    from harness.store import merge as merge_files

    run = Run(
        name=out.stem,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=typed_command(),
        planned=0,
        version=version("layernorm-bench"),
    )
    merged = merge_files([stored_file(path) for path in files], run, out)
    missing = merged.planned - merged.records
    outcome = {"results": out, **asdict(merged), "missing": missing}
    where = count(merged.environments, "environment")
    lines = [f"results: {out}, {count(merged.records, 'case')} in {where}"]
    if merged.duplicates:
        lines.append(f"{count(merged.duplicates, 'record')} held by several files: kept once")
    if missing:
        listed = ", ".join(map(str, merged.unfinished))
        lines.append(
            f"{count(missing, 'case')} of {merged.planned:,} planned have no record, because a run "
            f"was cut short ({listed}); continue it with --resume, and merge again"
        )
    print_as(as_json, lambda: [*map(Text, lines)], lambda: outcome)

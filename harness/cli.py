"""The command line: parse, call, print, exit. It computes nothing, and imports torch for nothing.

Exit codes: 0 pass; 1 a verification or a gate failed; 2 used wrongly, or an input cannot be read;
3 nothing was measured, or a case ended that should not; 4 not comparable; 130 interrupted;
141 nobody reads what is printed.
"""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

import click

from harness.ab_cli import ab
from harness.arguments import AXIS_OPTIONS, Duration, Shard, axis_options
from harness.choose_cli import choose
from harness.decide_cli import check, compare
from harness.ending import INTERRUPTED, Commands, fail, say
from harness.export_cli import export, import_
from harness.refusal import Refusal
from harness.verify_cli import explain, verify

__all__ = ["main"]

_BEGAN = monotonic()

NOT_MEASURED = 3
KINDS = (
    "implementations",
    "presets",
    "workloads",
    "distributions",
    "layouts",
    "upstreams",
    "parameters",
    "devices",
)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="layernorm-bench")
def main() -> None:
    """Which LayerNorm should I run: how wrong, how fast and how hungry is each implementation."""


@main.command()
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
    help="processes to time each case in; over several the interval holds",
)
@click.option(
    "--instructions", is_flag=True, help="count the instructions of a call too, with valgrind"
)
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
    as_json: bool,
    **axes: tuple[tuple[Any, ...], ...],
) -> None:
    """Sweep implementations over shapes, dtypes and devices: errors, latency, memory.

    Without --preset, --sweep or an axis the preset "quick" is run. An axis given here replaces
    that of the preset or the sweep file.
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
        from harness.console import RunProgress, outcome_line, print_records
        from harness.run.campaign import Campaign, plan, run_campaign
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
        with RunProgress(len(campaign.planned)) as progress:
            try:
                outcome = run_campaign(campaign, fleet, progress.show, progress.expect)
            except KeyboardInterrupt:
                again = shlex.join([*_without_resume(sys.argv[1:]), "--resume", "--out", str(out)])
                fail(
                    f"interrupted; what was measured is in {campaign.journal}; continue with\n"
                    f"  layernorm-bench {again}",
                    INTERRUPTED,
                )

    page, no_page = None, ""
    if with_report and outcome.results.records:
        try:
            page = _write_page([outcome.results], out)
        except Refusal as refusal:  # what was measured is told all the same
            no_page = f"{refusal}; make it with `layernorm-bench report {outcome.path}`"
    if as_json:
        click.echo(json.dumps(_as_json(outcome, page)))
    else:
        print_records(outcome.results.records)
        click.echo(
            outcome_line(
                outcome.run.wall_s or 0.0, outcome.run.overhead_ratio, outcome.results.records
            )
        )
        click.echo(f"results: {outcome.path}")
        if page:
            click.echo(f"page:    {page}")
    if outcome.left:
        click.echo(f"{outcome.left} cases are left; continue with --resume --out {out}", err=True)
    if no_page:
        say(no_page)
    if not outcome.measured:
        fail("nothing was measured; the reasons are above", NOT_MEASURED)
    if outcome.failed:
        fail(f"{outcome.failed} cases ended that should not; the reasons are above", NOT_MEASURED)
    if no_page:
        raise SystemExit(Refusal.exit_code)


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="the page [reports/NAME.html]")
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Make one self-contained HTML page from results files alone."""
    if out and out.suffix.lower() not in {".html", ".htm"}:
        raise click.UsageError(f"--out {out}: a page ends in .html")
    from harness.store import read, read_journal

    found = [
        read_journal(each) if each.suffix == ".jsonl" else read(each, samples=False)
        for each in runs
    ]
    click.echo(_write_page(found, runs[0], out))


@main.command(name="list")
@click.argument(
    "what",
    default="all",
    type=click.Choice(["all", *KINDS]),
)
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def list_(what: str, as_json: bool) -> None:
    """Show what exists: implementations, presets, devices, and what inputs are made of."""
    from harness.catalogue import CATALOGUE

    wanted = CATALOGUE if what == "all" else {what: CATALOGUE[what]}
    found = {kind: entries() for kind, entries in wanted.items()}
    if as_json:
        click.echo(json.dumps(found))
        return
    for kind, entries in found.items():
        if what == "all":
            click.echo(f"{kind}:")
        width = max(map(len, entries), default=0)
        for name, text in entries.items():
            click.echo(f"  {name:<{width}}  {text}")


def _write_page(results: list[Any], run: Path, out: Path | None = None) -> Path:
    """Write the page of some results, by default to reports/ under the name of the run."""
    import gc

    from harness.report import write_report

    gc.disable()  # thousands of records are alive, and would be walked again and again
    page = out or Path("reports") / f"{run.stem}.html"
    write_report(results, page)
    return page


def _as_json(outcome: Any, page: Path | None) -> dict[str, Any]:
    return {
        "results": str(outcome.path),
        "page": str(page) if page else None,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "left": outcome.left,
        "wall_s": outcome.run.wall_s,
        "overhead_ratio": outcome.run.overhead_ratio,
        "cases": [
            {"id": each.case.id, "status": each.status, "reason": each.reason}
            for each in outcome.results.records
        ],
    }


def _without_resume(arguments: list[str]) -> list[str]:
    """Drop what is said again from a command line that is to be continued."""
    rest = iter(arguments)
    kept = []
    for each in rest:
        if each == "--out":
            next(rest, None)
        elif each != "--resume" and not each.startswith("--out="):
            kept.append(each)
    return kept


main.add_command(verify)
main.add_command(explain)
main.add_command(choose)
main.add_command(check)
main.add_command(compare)
main.add_command(ab)
main.add_command(export)
main.add_command(import_)

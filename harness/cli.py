"""The command line: parse, call, print, exit. It computes nothing, and imports torch for nothing.

Exit codes: 0 pass; 2 used wrongly, or an input cannot be read; 3 nothing was measured, or a case
ended that should not; 4 not comparable; 130 interrupted.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

import click

__all__ = ["main"]

_BEGAN = monotonic()

PASS, MISUSE, NOT_MEASURED, NOT_COMPARABLE, INTERRUPTED = 0, 2, 3, 4, 130


class Words(click.ParamType):
    """Values joined by commas."""

    name = "name[,name...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        words = tuple(word.strip() for word in value.split(","))
        if not all(words):
            self.fail(f"{value!r} has an empty name", param, ctx)
        return words


class Numbers(Words):
    """Numbers joined by commas."""

    def __init__(self, kind: Callable[[str], float]) -> None:
        self._kind = kind
        self.name = f"{kind.__name__}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        try:
            return tuple(self._kind(word) for word in super().convert(value, param, ctx))
        except ValueError:
            self.fail(f"{value!r} is not {self._kind.__name__} numbers joined by commas", param, ctx)


class ShapeText(Words):
    """Shapes joined by commas."""

    name = "4096x1024[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        from harness.sweep import parse_shape

        try:
            return tuple(parse_shape(word) for word in super().convert(value, param, ctx))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Shard(click.ParamType):
    """Which part of how many."""

    name = "i/n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        index, _, count = value.partition("/")
        if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
            self.fail(f"{value!r} is not a shard: write i/n with i from 1 to n, such as 2/4", param, ctx)
        return int(index), int(count)


class Duration(click.ParamType):
    """A time with its unit."""

    name = "10m"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        try:
            time_s = float(value[:-1]) * units[value[-1:]]
        except (ValueError, KeyError):
            time_s = 0.0
        if not 0 < time_s < float("inf"):
            self.fail(f"{value!r} is not a time: write 90s, 10m or 2h", param, ctx)
        return time_s


# option, axis of a sweep, type, help
_AXES: tuple[tuple[tuple[str, ...], str, click.ParamType, str], ...] = (
    (("-i", "--implementation"), "implementations", Words(), "names, module:function or file.py:function"),
    (("--shape",), "shapes", ShapeText(), "shapes of x; the last axis is normalised"),
    (("--normalized-dims",), "normalized_dims", Numbers(int), "trailing axes to normalise over"),
    (("--dtype",), "dtypes", Words(), "float16, bfloat16, float32, float64"),
    (("--param-dtype",), "param_dtypes", Words(), "of weight and bias; \"same\" is x's"),
    (("--device",), "devices", Words(), "cpu, cuda"),
    (("--distribution",), "distributions", Words(), "of the inputs; see `list distributions`"),
    (("--layout",), "layouts", Words(), "of x in memory; see `list layouts`"),
    (("--direction",), "directions", Words(), "forward, backward, forward+backward"),
    (("--mode",), "modes", Words(), "eager, compiled"),
    (("--affine",), "affines", Words(), "both, weight, bias, none"),
    (("--eps",), "eps", Numbers(float), "added to the variance"),
    (("--threads",), "threads", Numbers(int), "CPU threads"),
    (("--seed",), "seeds", Numbers(int), "of the inputs"),
    (("--measure",), "measure", Words(), "errors, latency, memory"),
)


def _axis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each axis; given twice or with commas, it has several values."""
    for flags, axis, kind, text in reversed(_AXES):
        command = click.option(*flags, axis, type=kind, multiple=True, help=text)(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="layernorm-bench")
def main() -> None:
    """Which LayerNorm should I run: how wrong, how fast and how hungry is each implementation."""


@main.command()
@click.option("--preset", help="a sweep that comes with the package; see `list presets`")
@click.option("--sweep", "sweep_file", type=click.Path(path_type=Path), help="a sweep of your own, in TOML")
@_axis_options
@click.option("--out", type=click.Path(path_type=Path), help="results file [results/NAME-TIME.parquet]")
@click.option("--resume", is_flag=True, help="continue the run of --out; measured cases stay")
@click.option("--report", "with_report", is_flag=True, help="write the HTML page too")
@click.option("--shard", type=Shard(), help="run only part i of n of the cases")
@click.option("--time-budget", type=Duration(), help="start no case after this, such as 10m")
@click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")
def run(
    preset: str | None,
    sweep_file: Path | None,
    out: Path | None,
    resume: bool,
    with_report: bool,
    shard: tuple[int, int] | None,
    time_budget: float | None,
    as_json: bool,
    **axes: tuple[tuple[Any, ...], ...],
) -> None:
    """Sweep implementations over shapes, dtypes and devices: errors, latency, memory.

    Without --preset, --sweep or an axis the preset "quick" is run. An axis given here replaces
    that of the preset or the sweep file.
    """
    from harness.console import RunProgress, outcome_line, print_records
    from harness.run.campaign import (
        Campaign,
        ForeignRunError,
        OutputExistsError,
        plan,
        run_campaign,
    )
    from harness.run.fleet import Fleet, HarnessError
    from harness.store import StoreError
    from harness.sweep import Sweep, SweepError, load_preset, load_sweep

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
    try:
        sweep = load_sweep(sweep_file) if sweep_file else Sweep() if name == "sweep" else load_preset(name)
        sweep = sweep.with_axes(given)
        with Fleet() as fleet:
            campaign = Campaign(
                planned=plan(sweep, fleet, shard),
                sweep=sweep,
                out=out,
                command=shlex.join(["layernorm-bench", *sys.argv[1:]]),
                resume=resume,
                began=_BEGAN,
                stop_at=_BEGAN + (time_budget or float("inf")),
            )
            with RunProgress(len(campaign.planned)) as progress:
                outcome = run_campaign(campaign, fleet, progress.show)
    except (SweepError, OutputExistsError, StoreError) as error:
        _fail(str(error), MISUSE)
    except ForeignRunError as error:
        _fail(str(error), NOT_COMPARABLE)
    except KeyboardInterrupt:
        _fail(f"interrupted; continue with --resume --out {out}", INTERRUPTED)
    except HarnessError as error:
        click.echo(str(error), err=True)
        _fail("this is a bug in layernorm-bench; what was measured before is kept", NOT_MEASURED)

    page = _write_page([outcome.results], out) if with_report else None
    if as_json:
        click.echo(json.dumps(_as_json(outcome, page)))
    else:
        print_records(outcome.results.records)
        click.echo(outcome_line(outcome.run.wall_s or 0.0, outcome.run.overhead_ratio, outcome.results.records))
        click.echo(f"results: {outcome.path}")
        if page:
            click.echo(f"page:    {page}")
    if outcome.left:
        click.echo(f"{outcome.left} cases are left; continue with --resume --out {out}", err=True)
    if not outcome.measured:
        _fail("nothing was measured; the reasons are above", NOT_MEASURED)
    if outcome.failed:
        _fail(f"{outcome.failed} cases ended that should not; the reasons are above", NOT_MEASURED)


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="the page [reports/NAME.html]")
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Make one self-contained HTML page from results files alone."""
    from harness.store import StoreError, read, read_journal

    try:
        found = [
            read_journal(each) if each.suffix == ".jsonl" else read(each, samples=False)
            for each in runs
        ]
    except StoreError as error:
        _fail(str(error), MISUSE)
    click.echo(_write_page(found, runs[0], out))


@main.command(name="list")
@click.argument(
    "what", default="all",
    type=click.Choice(["all", "implementations", "presets", "distributions", "layouts", "devices"]),
)
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def list_(what: str, as_json: bool) -> None:
    """Show what exists: implementations, presets, distributions, layouts, devices."""
    from harness.run.catalogue import CATALOGUE

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
    from harness.report import ReportError, write_report

    page = out or Path("reports") / f"{run.stem}.html"
    try:
        write_report(results, page)
    except ReportError as error:
        _fail(str(error), MISUSE)
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


def _fail(message: str, code: int) -> None:
    """Say what is wrong on standard error, and exit."""
    for line in message.splitlines():
        click.echo(f"layernorm-bench: {line}", err=True)
    raise SystemExit(code)

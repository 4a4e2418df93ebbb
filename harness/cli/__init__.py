"""The command line: parse, call, print, exit. It computes nothing, and imports torch for nothing.

Exit codes: 0 pass; 1 a verification or a gate failed; 2 used wrongly, or an input cannot be read;
3 nothing was measured, or a case crashed, timed out or raised; 4 not comparable; 130 interrupted;
141 the reader of standard output has gone.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli.ab import ab
from harness.cli.check import check, compare
from harness.cli.choose import choose
from harness.cli.exit_code import Commands
from harness.cli.export import export, import_
from harness.cli.run import run, write_page
from harness.cli.verify import explain, verify

__all__ = ["main"]

KINDS = (
    "implementations",
    "presets",
    "workloads",
    "distributions",
    "layouts",
    "grad_outputs",
    "parameters",
    "devices",
)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="layernorm-bench")
def main() -> None:
    """Which LayerNorm should I run: how wrong, how fast and how memory-hungry is each."""


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
    click.echo(write_page(found, runs[0], out))


@main.command(name="list")
@click.argument(
    "what",
    default="all",
    type=click.Choice(["all", *KINDS]),
)
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def list_(what: str, as_json: bool) -> None:
    """Show what exists: implementations, presets, devices, and what inputs are made of."""
    from harness.cli.listing import CATALOGUE

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


main.add_command(run)
main.add_command(verify)
main.add_command(explain)
main.add_command(choose)
main.add_command(check)
main.add_command(compare)
main.add_command(ab)
main.add_command(export)
main.add_command(import_)

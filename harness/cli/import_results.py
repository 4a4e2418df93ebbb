"""The command ``import``."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.run_files import PATH, check_results_name, typed_command
from harness.records.refusal import Refusal
from harness.records.text import count

__all__ = ["import_results"]


@click.command(name="import")
@click.argument("benchmark", type=PATH, metavar="BENCHMARK.json")
@click.option(
    "--out", type=PATH, required=True, metavar="RUN.parquet", help="the results file to write"
)
def import_results(benchmark: Path, out: Path) -> None:
    """Convert a file of pytest-benchmark to a results file.

    BENCHMARK.json was written by `pytest --layernorm-sweep PRESET --benchmark-json
    BENCHMARK.json`. Its times are marked as pytest-benchmark's; they are never compared with
    times that layernorm-bench measured.

    Exit code 0: written. 2: the file cannot be read, or holds other benchmarks. 3: it holds no
    benchmark.
    """
    check_results_name("--out", out)
    if out.exists():
        raise Refusal(f"{out} exists; choose another --out")
    from harness.report.exports.pytest_benchmark import import_benchmarks
    from harness.store import write

    results = import_benchmarks(benchmark, typed_command())
    write(results, out)
    click.echo(f"results: {out}, {count(len(results.records), 'case')}")

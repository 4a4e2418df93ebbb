"""Make the published files anew whose code has changed since, and then the pages and tables.

    tox run -e publish                 every file whose code has changed
    tox run -e publish -- FILE...      these files; no pages
    tox run -e publish -- --list       what is to be made, and with which commands; nothing is run

Each file is made by its experiment in a clean clone of HEAD, in results/publish/clone, and copied
to results/published; docs/made_at.json then holds its commit. Stop it at any time, and repeat the
command to go on. Times are measured one after another: close other programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import click

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED, UNFINISHED = Path("results", "published"), Path("results", "unfinished")
CLONE = ROOT / "results" / "publish" / "clone"
sys.path.append(str(ROOT / "docs"))

import measured_code  # noqa: E402 - of this checkout

from harness.regression import condensed  # noqa: E402
from harness.store import read, write  # noqa: E402


@dataclass(frozen=True, slots=True)
class Step:
    """An experiment."""

    files: tuple[str, ...]
    """That it makes."""
    command: tuple[str, ...]
    """Run in the clone."""
    folder: Path = PUBLISHED
    """Where it leaves the files."""


def _tox(environment: str, *files: str) -> Step:
    return Step(files, ("tox", "run", "-e", environment))


def _python(script: str, *files: str) -> Step:
    return Step(files, (sys.executable, *f"experiments/{script}".split()))


def _run(file: str, *options: str) -> Step:
    """Return a run, which a further start continues."""
    command = ("layernorm-bench", "run", *options, "--resume", "--out", str(UNFINISHED / file))
    return Step((file,), command, UNFINISHED)


STEPS = (
    _run("cpu.parquet", "--preset", "models", "--processes", "5"),
    _run(
        "cpu_recentred.parquet",
        *("-i", "cpu_recentred", "--shape", "1x768,8x1024,64x1024,512x768,4096x1024"),
        *("--dtype", "float32,bfloat16,float16", "--direction", "forward,backward"),
        *("--threads", "1,2", "--processes", "5"),
    ),
    _run(
        "conditioning.parquet",
        *("--preset", "conditioning", "--mode", "eager"),
        *("-i", "native,one_pass,two_pass,recentred,shifted,cpu_recentred"),
    ),
    _tox("compare-fail", "compare_fail.parquet"),
    _tox("gates", "gates.parquet"),
    _tox("timers", "timers.parquet"),
    _tox("peers", "peers.json", "peers.parquet"),
    _python("gates/counts.py", "counts.parquet"),
    _python("sizes/sizes.py", "sizes.parquet"),
    _python("sizes/many_files.py results/many_files", "many_files.parquet"),
    _python("faults/inject.py", "faults.parquet"),
    _tox("history", "history_detection.parquet"),
    _python("estimates/interval_coverage.py", "coverage.parquet"),
    _python("estimates/uneven_calls.py", "uneven_calls.parquet"),
    _python("detection_limits/detection_limits.py", "detection_limits.parquet"),
    _tox("findings", "findings.json"),
    _tox("bug-reports", "bug-reports.json"),
    _tox("peer-tests", "peer-tests.json"),
    _tox("real-modules", "real-modules.json"),
    _tox("red-team", "red_team.parquet"),
)
PAGES = (
    ("layernorm-bench", "report", "results/published/cpu.parquet",
     "results/published/conditioning.parquet", "--out", "reports/published/cpu.html"),
    (sys.executable, "experiments/history/real_history.py", "--out", "results/published/commits"),
    ("layernorm-bench", "report", "results/published/commits",
     "--out", "reports/published/history.html"),
    (sys.executable, "-m", "real_modules", "--report"),
    (sys.executable, "-m", "peer_tests", "--report"),
    (sys.executable, "-m", "bug_reports", "--report"),
    (sys.executable, "experiments/findings/findings.py", "--report"),
    (sys.executable, "experiments/peers/peer_findings.py", "--report"),
    (sys.executable, "docs/figures.py", "--write"),
    (sys.executable, "docs/make_picture.py"),
)  # fmt: skip


def call(command: tuple[str, ...], folder: Path) -> None:
    """Run a command in a folder, with the packages of its experiments."""
    click.echo(f"$ {' '.join(command)}")
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{folder / 'experiments'}"}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def update_clone() -> None:
    """Make the clone one of HEAD, in which nothing is changed; environments are kept."""
    changed = ("git", "status", "--porcelain", "--", "harness", "implementations", "experiments")
    if subprocess.run(changed, cwd=ROOT, check=True, capture_output=True).stdout:
        raise click.ClickException("commit the changes of the code first: files name their commit")
    if not CLONE.exists():
        subprocess.run(("git", "clone", "-q", str(ROOT), str(CLONE)), check=True)
    head = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    for command in (("fetch", "-q"), ("checkout", "-q", "-f", "--detach", head)):
        subprocess.run(("git", *command), cwd=CLONE, check=True)


def shorten(made: Path, kept: Path) -> None:
    """Write a run with one time per epoch, which is what is compared: a tenth of the bytes."""
    results = read(made)
    records = tuple(condensed(record) for record in results.records)
    write(replace(results, records=records), kept)


def make(step: Step) -> None:
    """Run an experiment in the clone, and keep its files."""
    update_clone()
    began = monotonic()
    call(step.command, CLONE)
    for file in step.files:
        made, kept = CLONE / step.folder / file, ROOT / PUBLISHED / file
        if step.folder is UNFINISHED:
            shorten(made, kept)
        else:
            shutil.move(made, kept)
    measured_code.renew(*step.files)
    click.echo(f"{', '.join(step.files)}: {(monotonic() - began) / 60:.0f} min")


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("files", nargs=-1)
@click.option("--list", "is_listed", is_flag=True, help="say what is to be made; run nothing")
def main(files: tuple[str, ...], is_listed: bool) -> None:
    known = {file for step in STEPS for file in step.files}
    if unknown := set(files) - known:
        raise click.UsageError(f"no such file: {', '.join(sorted(unknown))}")
    wanted = set(files) or set(measured_code.changed_files())
    steps = [step for step in STEPS if wanted & {*step.files}]
    for step in steps:
        if is_listed:
            click.echo(f"{', '.join(step.files)}: {' '.join(step.command)}")
        else:
            make(step)
    for command in () if files or is_listed else PAGES:
        call(command, ROOT)


if __name__ == "__main__":
    main()

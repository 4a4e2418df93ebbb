"""Measure the implementations of this repository's own commits into a folder of runs.

    python experiments/history/real_history.py --out results/history
    layernorm-bench report results/history --out reports/history.html

The harness of the working copy measures, so that the runs are comparable; the implementations are
those of each commit, imported as ``ab`` imports a base revision. The reference is the working
copy's. Every commit has a process of its own, and the commits come in random order, so that a
drift of the machine is not taken for a trend. Files that exist are kept: repeat the command to
continue. A case that a commit does not have is recorded as unsupported, and where a commit cannot
be imported every case is recorded as an error with the reason.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from random import Random
from time import monotonic

import click

from harness.cases import Planned, Sweep, load_sweep
from harness.records import Budget, Environment, Record, Run, Status
from harness.regression import condensed
from harness.regression.ab import BASE, missing_in_base, run_base_case
from harness.regression.revision import Checkout, checked_out
from harness.run.fleet import START_S, EndedError, Fleet, Job
from harness.run.session import plan
from harness.store import Results, write

ROOT = Path(__file__).parents[2]
SWEEP = Path(__file__).with_name("real_history.toml")
SEED = 1


def git(*arguments: str) -> str:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def chosen_commits(number: int) -> list[str]:
    """Return commits that changed the implementations, evenly spread, the last one included."""
    found = git("log", "--first-parent", "--format=%H", "HEAD", "--", "implementations").split()
    if number >= len(found):
        return found
    step = (len(found) - 1) / max(number - 1, 1)
    return [found[round(place * step)] for place in range(number)]


def measured(commit: str, sweep: Sweep, out: Path) -> Results:
    """Measure one commit in a fresh process."""
    began, started = monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with checked_out(ROOT, commit) as checkout, Fleet() as fleet:
        planned = plan(sweep, fleet)
        here = fleet.info.environment
        absent = why_absent(planned, checkout, fleet)
        records = [
            Record(
                case=planned_case.case,
                environment=here.fingerprint,
                status=status,
                reason=reason,
            )
            for planned_case in planned
            for status, reason in [absent.get(planned_case.case.implementation, (None, ""))]
            if status is not None
        ]
        budget = Budget(
            limit_s=sweep.seconds_per_case,
            max_epochs=sweep.max_epochs,
            min_epochs=min(sweep.min_epochs, sweep.max_epochs),
            processes=sweep.processes,
        )
        jobs = [
            Job(
                replace(row.case, implementation=BASE + row.case.implementation),
                row.measurements,
                budget,
                function=run_base_case,
                options=checkout,
            )
            for row in planned
            if row.case.implementation not in absent
        ]
        for record in fleet.run(jobs, sweep.timeout_s):
            name = record.case.implementation.removeprefix(BASE)
            records.append(replace(record, case=replace(record.case, implementation=name)))
    return results_of(commit, records, here, started, monotonic() - began, out)


def why_absent(
    planned: tuple[Planned, ...], checkout: Checkout, fleet: Fleet
) -> dict[str, tuple[Status, str]]:
    """Return the implementations that a commit cannot run, each with a status and a reason."""
    targets = tuple(dict.fromkeys(planned_case.case.implementation for planned_case in planned))
    try:
        lacks, broken = fleet.call(missing_in_base, (checkout, targets), START_S)
    except EndedError as ended:
        return dict.fromkeys(targets, (Status.ERROR, f"importing this commit {ended}"))
    return {
        target: (status, f"not in this commit: {reason}")
        for status, found in ((Status.UNSUPPORTED, lacks), (Status.ERROR, broken))
        for target, reason in found.items()
    }


def results_of(
    commit: str,
    records: list[Record],
    here: Environment,
    started: str,
    wall_s: float,
    out: Path,
) -> Results:
    """Return the records as a run of the commit that was measured."""
    by = f"{here.git_commit}{'+' if here.git_dirty else ''}"
    environment = replace(
        here,
        git_commit=commit,
        git_commit_utc=git("show", "-s", "--format=%cI", commit),
        git_dirty=False,
    )
    run = Run(
        name=out.stem,
        started_utc=started,
        command=f"python experiments/history/real_history.py (harness of commit {by[:12]})",
        planned=len(records),
        version=version("layernorm-bench"),
        environment=here.fingerprint,
        git_commit=commit,
        git_dirty=False,
        wall_s=wall_s,
    )
    return Results(
        records=tuple(condensed(record) for record in records),
        runs=(run,),
        environments={here.fingerprint: environment},
    )


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--commits", default=20, show_default=True, help="How many commits.")
@click.option("--out", "folder", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--sweep", "file", type=click.Path(path_type=Path, exists=True), default=SWEEP)
def main(commits: int, folder: Path, file: Path) -> None:
    sweep = load_sweep(file)
    chosen = chosen_commits(commits)
    Random(SEED).shuffle(chosen)
    folder.mkdir(parents=True, exist_ok=True)
    for number, commit in enumerate(chosen, 1):
        out = folder / f"{commit[:12]}.parquet"
        if out.exists():
            continue
        results = measured(commit, sweep, out)
        write(results, out)
        done = sum(record.status.is_measured for record in results.records)
        click.echo(
            f"{number} of {len(chosen)}: {commit[:12]}, {done} of {len(results.records)} cases "
            f"measured in {results.runs[0].wall_s:.0f} s"
        )


if __name__ == "__main__":
    main()

"""How often does ``ab`` fail unchanged code, and how many planted changes does it find?

    python experiments/gates/live_gates.py            prints the tables
    python experiments/gates/live_gates.py --quick    to see that all of it works
    python experiments/gates/live_gates.py --report   prints the tables of the stored rows

``ab --base HEAD --preset ci`` runs as in a CI job, in a repository made for the experiment, on a
quiet machine (close other programs first) and beside busy neighbours ("loaded"). With no change,
every failure is a false one. Then a change is planted in one of the four implementations, and each
of its timed cases is a trial: slower by a share of its own time in both directions, statistics in
bfloat16, a variance over N-1, or an extra copy of x.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from gate_tables import report

from harness.measure.environment import read_environment

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "timers"))
from neighbour import busy_neighbours  # noqa: E402 - the module is with the timers

ROOT = HERE.parents[1]
PUBLISHED = ROOT / "results" / "published" / "gates.parquet"
QUICK = ROOT / "results" / "gates-quick.parquet"
NOTHING = "nothing"
IMPLEMENTATIONS = ("native", "one_pass", "two_pass", "welford_chunked")
"""Those of the preset; the functions of subjects.py have the same names."""
SLOWER = ("0.03 slower", "0.10 slower")
WRONG = ("bfloat16 statistics", "variance over N-1", "extra copy")
# runs of each condition
UNCHANGED, PLANTED = 40, 4
COMMAND = [sys.executable, "-c", "from harness.cli import main; main()"]
TIMEOUT_S = 3600  # ends a hung command
VERDICTS = (0, 1)  # exit codes of a gate that passed or failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of ``ab``."""

    condition: str
    planted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The verdict of one run on one case."""

    condition: str
    """"quiet", or "loaded" with busy neighbours."""
    planted: str
    """The planted change: "0.03 slower" takes 3 % longer."""
    run: int
    """Counts the runs in this file, from 0."""
    failed: bool
    """Whether the run failed because of any case."""
    case: str
    """Id of the case."""
    kind: str
    """What ``ab`` called it: unchanged, slower, regressed, inconclusive, ..."""
    metric: str | None
    """The metric that changed most; None where none did."""
    ratio: float | None
    """Time now over time before; None where it was not compared."""
    reason: str
    """The reason that was given."""
    run_s: float
    """Seconds of the whole run."""
    load_average: float | None
    """Load average over the last minute, when the run started."""
    started: str
    """UTC time at which the run started."""
    commit: str
    """git commit of this project, with "+" if there were uncommitted changes."""
    cpu: str
    """Processor model, and the instruction set that torch uses on it."""
    cores: int
    """Cores that the process may use."""


class Repository:
    """A repository with the implementations, in which ``ab`` is run."""

    def __init__(self, folder: Path, sweep: Sequence[str] = ("--preset", "ci")) -> None:
        self.folder = folder
        self._options = [*sweep]
        for name in IMPLEMENTATIONS:
            self._options += ["-i", f"subjects.py:{name}"]
        self._source = (HERE / "subjects.py").read_text()
        self.plant(NOTHING)
        who = ["-c", "user.name=gates", "-c", "user.email=gates@localhost"]
        for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "implementations"]):
            subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)

    def plant(self, what: str) -> None:
        """Plant a change in an implementation of the working copy."""
        line = f'PLANTED = "{NOTHING}"'
        assert line in self._source
        text = self._source.replace(line, f'PLANTED = "{what}"')
        (self.folder / "subjects.py").write_text(text)

    def run(self) -> dict[str, Any]:
        """Compare the working copy with its revision; return the JSON output."""
        done = subprocess.run(
            [*COMMAND, "ab", "--base", "HEAD", *self._options, "--json"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode not in VERDICTS:
            raise RuntimeError(f"ab ended with {done.returncode}:\n{done.stderr[-2000:]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["failed"] is bool(done.returncode)
        return answer


def tasks_of(condition: str, unchanged: int, planted: int) -> list[Task]:
    """Return the runs of one condition: planted changes in turn with none."""
    found = []
    for number in range(max(unchanged, planted)):
        whats = [NOTHING] if number < unchanged else []
        whats += SLOWER if number < planted else ()
        whats += WRONG if number == 0 else ()  # deterministic, so one run is enough
        found += [Task(condition=condition, planted=what) for what in whats]
    return found


def run_tasks(tasks: Sequence[Task], first: int, *, with_neighbours: bool) -> Iterator[list[Row]]:
    """Run the tasks of one condition."""
    found = read_environment()
    commit = f"{found.git_commit or 'unknown'}{'+' if found.git_dirty else ''}"
    loaded = tasks[0].condition == "loaded" and with_neighbours
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        with busy_neighbours() if loaded else nullcontext():
            for number, task in enumerate(tasks, first):
                repository.plant(task.planted)
                started, began = datetime.now(UTC), monotonic()
                load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
                answer = repository.run()
                run_s = monotonic() - began
                yield [
                    Row(
                        **asdict(task),
                        run=number,
                        failed=answer["failed"],
                        case=change["id"],
                        kind=change["kind"],
                        metric=change["metric"],
                        ratio=change["ratio"]["value"] if change["ratio"] else None,
                        reason=change["reason"],
                        run_s=run_s,
                        load_average=load,
                        started=started.isoformat(timespec="seconds"),
                        commit=commit,
                        cpu=f"{found.cpu} {found.cpu_capability}",
                        cores=found.cpu_count,
                    )
                    for change in answer["changes"]
                ]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--quick", is_flag=True, help="One run of each on a quiet machine: three minutes.")
@click.option("--unchanged", type=click.IntRange(0), default=UNCHANGED, show_default=True)
@click.option("--planted", type=click.IntRange(0), default=PLANTED, show_default=True)
@click.option("--only", type=click.Choice(["quiet", "loaded"]), help="One condition.")
@click.option("--as-is", is_flag=True, help="Start no neighbours in the loaded condition.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The parquet.")
@click.option("--append", is_flag=True, help="Add to --out rather than replace it.")
@click.option(
    "--report", "report_only", is_flag=True, help="Print the tables of --out; measure nothing."
)
def main(
    quick: bool,
    unchanged: int,
    planted: int,
    only: str | None,
    as_is: bool,
    out: Path | None,
    append: bool,
    report_only: bool,
) -> None:
    out = out or (QUICK if quick else PUBLISHED)
    if quick:
        only, unchanged, planted = "quiet", 1, 1
    if not report_only:
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # so that the neighbours are ended too
        conditions = ("quiet", "loaded") if only is None else (only,)
        tasks = [tasks_of(state, unchanged, planted) for state in conditions]
        _measure(tasks, out, append, with_neighbours=not as_is)
    if not out.exists():
        raise click.ClickException(f"there is no {out}; measure first")
    click.echo(report(pq.read_table(out).to_pandas()))


def _measure(tasks: Sequence[Sequence[Task]], out: Path, append: bool, **more: Any) -> None:
    """Run all tasks; ``out`` is written after each run."""
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = pq.read_table(out).to_pylist() if append and out.exists() else []
    runs = 1 + max((row["run"] for row in rows), default=-1)
    for some in tasks:
        for found in run_tasks(some, runs, **more):
            runs += 1
            rows += [asdict(judged) for judged in found]
            pq.write_table(pa.Table.from_pylist(rows), out)
            first = found[0]
            kinds = sorted({judged.kind for judged in found} - {"unchanged"})
            click.echo(
                f"{first.condition}, {first.planted}: "
                f"{'failed' if first.failed else 'passed'} {' '.join(kinds)} {first.run_s:.0f} s",
                err=True,
            )


if __name__ == "__main__":
    main()

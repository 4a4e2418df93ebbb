"""How often do the gates fail unchanged code, and how many planted changes do they find?

    python experiments/gates/live_gates.py            prints the tables
    python experiments/gates/live_gates.py --quick    to see that all of it works
    python experiments/gates/live_gates.py --report   prints the tables of the stored rows

The commands run as in a CI job, in a repository made for the experiment: ``ab --base HEAD``, and
``run`` followed by ``check`` against a baseline that is recorded first. They run on a quiet machine
(close other programs first) and beside busy neighbours ("loaded"). With thirty-six cases and no
change, every failure is a false one. Then a change is planted in one of the three implementations,
and each of its twelve cases is a trial: slower by a share of its own time in both directions,
statistics in bfloat16, a variance over N-1, or an extra copy of x.
"""

from __future__ import annotations

import json
import os
import shutil
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
SWEEP = HERE / "thirty_six_cases.toml"

NOTHING = "nothing"
# what is planted, and in which implementation. check judges the ratio to native. On some machines
# that of two_pass differs between processes by more than a tenth, and is then inconclusive.
SLOWER = {
    "ab": (("0.03 slower", "two_pass"), ("0.10 slower", "two_pass")),
    "check": (("0.10 slower", "two_pass"), ("0.10 slower", "native")),
}
WRONG = tuple(
    (what, "two_pass") for what in ("bfloat16 statistics", "variance over N-1", "extra copy")
)
# runs per gate and condition; each run with a planted change has six trials in each direction
UNCHANGED, PLANTED = 40, 4
COMMAND = [sys.executable, "-c", "from harness.cli import main; main()"]
TIMEOUT_S = 3600  # ends a hung command
VERDICTS = (0, 1)  # exit codes of a gate that passed or failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of a gate."""

    condition: str
    gate: str
    planted: str
    implementation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The verdict of one run of a gate on one case."""

    condition: str
    """"quiet", or "loaded" with busy neighbours."""
    gate: str
    """"ab" or "check"."""
    planted: str
    """The planted change: "0.03 slower" takes 3 % longer."""
    implementation: str
    """The implementation in which it was planted."""
    run: int
    """Counts the runs of gates in this file, from 0."""
    failed: bool
    """Whether the gate failed because of any case."""
    case: str
    """Id of the case."""
    kind: str
    """What the gate called it: unchanged, slower, regressed, inconclusive, ..."""
    metric: str | None
    """The metric that changed most; None where none did."""
    ratio: float | None
    """Time now over time before; None where it was not compared."""
    reason: str
    """The reason that the gate gave."""
    run_s: float
    """Seconds of the whole run of the gate."""
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
    """A repository with the implementations, in which gates are run."""

    def __init__(self, folder: Path, sweep: Path = SWEEP) -> None:
        self.folder = folder
        self._sweep = sweep.name
        self._source = (HERE / "subjects.py").read_text()
        shutil.copy(sweep, folder / sweep.name)
        self.plant(NOTHING)
        who = ["-c", "user.name=gates", "-c", "user.email=gates@localhost"]
        for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "implementations"]):
            subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)

    def plant(self, what: str, implementation: str = "two_pass") -> None:
        """Plant a change in an implementation of the working copy."""
        line = 'PLANTED, SUBJECT = "nothing", "two_pass"'
        assert line in self._source
        text = self._source.replace(line, f'PLANTED, SUBJECT = "{what}", "{implementation}"')
        (self.folder / "subjects.py").write_text(text)

    def have_baseline(self, kept: Path | None) -> None:
        """Provide the baseline of ``check``: copy the one kept, or record one and keep it."""
        if kept is not None and kept.exists():
            shutil.copy(kept, self.folder / "base.parquet")
            return
        click.echo("recording a baseline on the machine as it is", err=True)
        self._measure("first.parquet")
        self._ask(["check", "first.parquet", "--baseline", "base.parquet", "--record-baseline"])
        if kept is not None:
            shutil.copy(self.folder / "base.parquet", kept)

    def run(self, gate: str) -> dict[str, Any]:
        """Run a gate; return its JSON output."""
        if gate == "ab":
            return self._ask(["ab", "--base", "HEAD", "--sweep", self._sweep, "--json"])
        self._measure("run.parquet")
        return self._ask(["check", "run.parquet", "--baseline", "base.parquet", "--json"])

    def _measure(self, out: str) -> None:
        (self.folder / out).unlink(missing_ok=True)
        self._ask(["run", "--sweep", self._sweep, "--out", out])

    def _ask(self, arguments: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode not in VERDICTS:
            raise RuntimeError(
                f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
            )
        answer: dict[str, Any] = json.loads(done.stdout) if "--json" in arguments else {}
        assert answer.get("failed", False) is bool(done.returncode)
        return answer


def tasks_of(condition: str, gates: Sequence[str], unchanged: int, planted: int) -> list[Task]:
    """Return the runs of one condition: planted changes in turn with none, gate by gate."""
    found = []
    for gate in gates:
        for number in range(max(unchanged, planted)):
            whats = [(NOTHING, "two_pass")] if number < unchanged else []
            whats += SLOWER[gate] if number < planted else ()
            whats += WRONG if number == 0 else ()  # deterministic, so one run is enough
            found += [
                Task(condition=condition, gate=gate, planted=what, implementation=implementation)
                for what, implementation in whats
            ]
    return found


def run_tasks(
    tasks: Sequence[Task], first: int, *, with_neighbours: bool, kept: Path | None
) -> Iterator[list[Row]]:
    """Run the tasks of one condition; record a baseline first where a gate needs one."""
    found = read_environment()
    commit = f"{found.git_commit or 'unknown'}{'+' if found.git_dirty else ''}"
    loaded = tasks[0].condition == "loaded" and with_neighbours
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        if any(planned_task.gate == "check" for planned_task in tasks):
            repository.have_baseline(kept)
        with busy_neighbours() if loaded else nullcontext():
            for number, task in enumerate(tasks, first):
                repository.plant(task.planted, task.implementation)
                started, began = datetime.now(UTC), monotonic()
                load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
                answer = repository.run(task.gate)
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
@click.option("--gate", type=click.Choice(["ab", "check"]), help="One gate.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The parquet.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use this baseline, or record it there.",
)
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
    gate: str | None,
    out: Path | None,
    baseline: Path | None,
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
        gates = ("ab", "check") if gate is None else (gate,)
        tasks = [tasks_of(state, gates, unchanged, planted) for state in conditions]
        _measure(tasks, out, append, with_neighbours=not as_is, kept=baseline)
    if not out.exists():
        raise click.ClickException(f"there is no {out}; measure first")
    click.echo(report(pq.read_table(out).to_pandas()))


def _measure(tasks: Sequence[Sequence[Task]], out: Path, append: bool, **more: Any) -> None:
    """Run all tasks; ``out`` is written after each run of a gate."""
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
                f"{first.condition} {first.gate}, {first.planted} ({first.implementation}): "
                f"{'failed' if first.failed else 'passed'} {' '.join(kinds)} {first.run_s:.0f} s",
                err=True,
            )


if __name__ == "__main__":
    main()

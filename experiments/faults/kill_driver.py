"""What does a run lose if its driver is killed with SIGKILL at a random moment?

    python experiments/faults/kill_driver.py      some minutes; prints the table
    ... --report                                  prints the table of the stored rows

The driver is ``driver.py`` beside this file. For each kill a phase is drawn, then a random time
after its begin; the phase in which the driver was hit is the last one that it named. It is started
again with the same output until the run is finished, and a new run begins. Of a finished run it is
checked that every case has one record, that a record which was acknowledged is the one that is
stored, and that its case was not measured again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import sleep

import click
import pyarrow as pa
import pyarrow.parquet as pq

from harness.store import read

DRIVER = Path(__file__).with_name("driver.py")
ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "driver_kills.parquet"
SEED = 1
CASES = 12  # as in driver.py
# how often a phase begins in a run, and about how long it takes on an idle core, in seconds
PHASES = {
    "start-up": (1, 0.4),
    "planning": (1, 0.1),
    "mid-case": (CASES, 0.005),
    "journalling": (CASES, 0.003),
    "conversion to parquet": (1, 0.03),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill of the driver."""

    phase: str
    """What it was doing."""
    acknowledged: int
    """Cases of the run whose records had been acknowledged."""
    is_torn: bool
    """Whether the last line of the journal was cut."""


class LossError(Exception):
    """A record was lost, or a case measured again."""


@dataclass(slots=True)
class Run:
    """What the drivers of one run have said so far."""

    out: Path
    measured: list[tuple[str, str]]
    acknowledged: dict[str, str]

    def start(self, wanted: str | None, random: Random) -> Kill | None:
        """Start the driver and kill it in a phase; None if it has finished before."""
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), str(self.out)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert driver.stdout is not None
        begins, length_s = PHASES.get(wanted or "", (0, 0.0))
        begin = random.randint(1, begins) if wanted else 0
        phase = "start-up"
        if wanted == phase:
            sleep(random.uniform(0, length_s))
            driver.kill()
        is_finished = False
        for line in driver.stdout:
            word, *rest = line.split(maxsplit=1)
            what = rest[0].strip() if rest else ""
            if word == "phase":
                phase = what
                begin -= phase == wanted
                if phase == wanted and not begin:
                    sleep(random.uniform(0, length_s))
                    driver.kill()  # what it has said until now is still to be read
            elif word == "measured":
                case, token = what.split()
                if case in self.acknowledged:
                    raise LossError(f"case {case} was measured again")
                self.measured.append((case, token))
            elif word == "acknowledged":
                case, token = what.split()
                self.acknowledged[case] = token
            else:
                is_finished = word == "finished"
        driver.stdout.close()
        if driver.wait() == 0 and is_finished:
            return None
        if driver.returncode != -9:
            raise LossError(f"the driver ended with exit code {driver.returncode}")
        journal = self.out.with_suffix(".jsonl")
        content = journal.read_bytes() if journal.exists() else b""
        return Kill(phase, len(self.acknowledged), bool(content) and not content.endswith(b"\n"))

    def check(self) -> None:
        """Check the finished run.

        Raises:
            LossError: a record is missing, stored twice, or not the one that was acknowledged.
        """
        stored = Counter(str(record.case.seed) for record in read(self.out).records)
        if stored != dict.fromkeys(map(str, range(CASES)), 1):
            raise LossError(f"stored: {stored}")
        for record in read(self.out).records:
            token, case = record.reason[:32], str(record.case.seed)
            if self.acknowledged.get(case, token) != token or (case, token) not in self.measured:
                raise LossError(f"case {case}: another record than the acknowledged one is stored")


def kill_in(phases: Iterable[str], folder: Path, random: Random) -> Iterator[Kill]:
    """Kill drivers in these phases, and check each run; the last one is brought to its end."""
    runs = 0
    run = Run(folder / "0.parquet", [], {})
    for phase in phases:
        while (kill := run.start(phase, random)) is None:  # the phase was not reached
            run.check()
            runs += 1
            run = Run(folder / f"{runs}.parquet", [], {})
        yield kill
    if run.start(None, random) is not None:
        raise LossError("the driver was killed by another process")
    run.check()


def table(kills: Sequence[Kill]) -> str:
    """Return the table for the documentation."""
    lines = ["| killed in | kills | journals with a torn last line |", "| --- | --- | --- |"]
    for phase in PHASES:
        own = [kill for kill in kills if kill.phase == phase]
        lines.append(f"| {phase} | {len(own)} | {sum(kill.is_torn for kill in own)} |")
    lines.append(f"| all | {len(kills)} | {sum(kill.is_torn for kill in kills)} |")
    return "\n".join(lines)


@click.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=PUBLISHED, show_default=True)
@click.option("--report", is_flag=True, help="print the table of the stored rows")
def main(kills: int, out: Path, report: bool) -> None:
    """Kill the driver, and store a row per kill."""
    if report:
        rows = pq.read_table(out).to_pylist()
        click.echo(table([Kill(**row) for row in rows]))
        return
    random = Random(SEED)
    phases = [random.choice([*PHASES]) for _ in range(kills)]
    found = []
    with TemporaryDirectory() as folder:
        for kill in kill_in(phases, Path(folder), random):
            found.append(kill)
            click.echo(f"\r{len(found)}/{kills} {kill.phase:24}", nl=False, err=True)
    click.echo(err=True)
    pq.write_table(pa.Table.from_pylist([asdict(kill) for kill in found]), out)
    click.echo(table(found))
    click.echo("no acknowledged record was lost, none was measured again")


if __name__ == "__main__":
    main()

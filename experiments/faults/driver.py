"""A run whose cases take milliseconds and need no torch, and which says what it is doing.

It is ``run_session`` with a fleet that stands for the workers; everything else is the real thing.
To standard output it writes each phase that begins after its start-up, ``measured CASE TOKEN`` once
a case has been measured, and ``acknowledged CASE TOKEN`` once its record is on disk. No token is
used twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from harness.cases import Grid, Sweep
from harness.records import Environment, Record, Status
from harness.run import session as module
from harness.run.fleet import Job, WorkerInfo
from harness.run.session import Session, plan, run_session
from harness.store import Journal

CASES = 12
CASE_S = 0.004
REASON = "x" * 200_000  # long lines, so that some are cut within


def _say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


class Fleet:
    """Stands for the worker processes."""

    info = WorkerInfo(
        environment=Environment(
            cpu="fake", cpu_count=1, cpu_capability="none", memory_bytes=None, platform="none",
            python="3", packages=(), compiler=None, gpus=(), nvml="none", git_commit=None,
            git_dirty=None, load_average=None,
        ),
        implementations={"native": frozenset({"cpu"})},
        names={},
        unavailable={},
        device_counts={"cpu": 1},
    )  # fmt: skip
    nodes = (info,)

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        return ()

    def run(self, jobs: Iterable[Job], timeout_s: float, stop_at: float) -> Iterator[Record]:
        for job in jobs:
            _say("phase", "mid-case")
            sleep(CASE_S)
            token = uuid4().hex
            _say("measured", str(job.case.seed), token)
            yield Record(
                case=job.case,
                environment=self.info.environment.fingerprint,
                status=Status.ERROR,
                reason=token + REASON,
            )


def _in_phase(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def said(*arguments: Any, **more: Any) -> Any:
        _say("phase", name)
        return work(*arguments, **more)

    return said


def _acknowledge(record: Record) -> None:
    _say("acknowledged", str(record.case.seed), record.reason.removesuffix(REASON))


def main(out: Path) -> None:
    """Run, or continue, all cases."""
    Journal.add = _in_phase("journalling", Journal.add)  # type: ignore[method-assign]
    writer = _in_phase("conversion to parquet", module.writing)
    module.writing = writer  # type: ignore[misc, assignment]
    _say("phase", "planning")
    sweep = Sweep(
        grids=(Grid(implementations=("native",), shapes=((4, 8),), seeds=tuple(range(CASES))),)
    )
    session = Session(
        planned=plan(sweep, Fleet()),
        sweep=sweep,
        out=out,
        command="driver",
        resume=True,
        began=monotonic(),
    )
    run_session(session, Fleet(), _acknowledge)
    _say("finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

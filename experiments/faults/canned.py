"""The command line with a fleet that stands for the workers, so that a trial is short.

    CANNED=RUN.parquet python experiments/faults/canned.py run --resume ...

It gives out the records of RUN.parquet, on its machine; everything else is the real thing. Each has
another cost, so that two measurements of a case differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import random

from harness.cli import main
from harness.records import Record
from harness.run import fleet
from harness.run.fleet import Job, WorkerInfo
from harness.store import read


class Fleet:
    """Stands for the worker processes."""

    lost = ()

    def __init__(self) -> None:
        results = read(os.environ["CANNED"])
        self._records = {record.case: record for record in results.records}
        (environment,) = results.environments.values()
        self.info = WorkerInfo(
            environment=environment,
            implementations={"native": frozenset({"cpu"})},
            names={},
            unavailable={},
            device_counts={"cpu": 1},
        )
        self.nodes = (self.info,)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        return ()

    def run(
        self, jobs: Iterable[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        for job in jobs:
            record = self._records[job.case]
            assert record.cost is not None
            yield replace(record, cost=replace(record.cost, oracle_s=random()))


if __name__ == "__main__":
    fleet.Fleet = Fleet  # type: ignore[misc, assignment]
    main()

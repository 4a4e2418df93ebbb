"""What a run needs of the machines that run its cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from harness.records import Record
from harness.run.messages import RunCase, WorkerInfo

__all__ = ["Machines"]


class Machines(Protocol):
    """What runs the cases: one machine, or those of a Ray cluster."""

    @property
    def info(self) -> WorkerInfo:
        """What exists there; with several machines, on any of them."""

    @property
    def nodes(self) -> Sequence[WorkerInfo]:
        """What exists on each machine."""

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Return why targets cannot be found: a message for each of those that cannot."""

    def run(self, jobs: Iterable[RunCase], timeout_s: float, stop_at: float) -> Iterator[Record]:
        """Yield a record for each job as it is done."""

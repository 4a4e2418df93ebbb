"""The parent's side of worker processes: one for each device, each ended when it misbehaves."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from types import TracebackType

from harness.records import Case, Record, Status
from harness.run.process import START_S, HarnessError, Seat, WorkerProcess
from harness.run.worker import Hello, Progress, Resolve, RunCase

__all__ = ["EndedError", "Fleet", "HarnessError"]


class EndedError(Exception):
    """What was asked ended the process that was to answer; the message says how."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        """Whether the process was ended because it took too long."""


class Fleet:
    """Worker processes of one machine. Use as a context manager: leaving it ends them all."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="layernorm-bench-")
        self._logs = 0
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Fleet:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._workers:
            each.process.kill()
            each.process.join()
        self._folder.cleanup()

    @property
    def hello(self) -> Hello:
        """What the first worker found on this machine."""
        return self._workers[0].hello

    def unresolved(
        self, targets: Iterable[str], init: tuple[tuple[str, object], ...] = ()
    ) -> tuple[str, ...]:
        """Say of each implementation that cannot be found why not."""
        return tuple(why for each in targets if (why := self._unresolved(each, init)))

    def _unresolved(self, target: str, init: tuple[tuple[str, object], ...]) -> str | None:
        try:
            answer = self.ask(Resolve(target, init), START_S)
        except EndedError as ended:
            return f"{target}: cannot be imported: it {ended}"
        return str(answer) if answer else None

    def ask(
        self,
        request: object,
        timeout_s: float,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> object:
        """Send a request to the first worker and wait for its answer.

        Args:
            request: one of the messages of :mod:`harness.run.worker`.
            timeout_s: seconds to wait for the answer.
            on_progress: called with each :class:`Progress` that comes before the answer.

        Raises:
            EndedError: the worker crashed over it, or took longer than ``timeout_s``; a new one
                takes its place.
        """
        worker = self._workers[0]
        assert worker.hello  # it is up: the request's time starts now
        try:
            worker.connection.send(request)
            stop_at = monotonic() + timeout_s
            while worker.connection.poll(max(0.0, stop_at - monotonic())):
                answer = worker.receive()
                if not isinstance(answer, Progress):
                    return answer
                on_progress(answer)
            timed_out, why = True, f"was not done after {timeout_s:g} s"
            last = worker.end().partition("; ")[2]
            why += f"; {last}" if last else ""
        except (EOFError, ConnectionError):
            timed_out, why = False, f"took its process down, which {worker.end()}"
        self._workers.remove(worker)
        self._start(place=0)
        raise EndedError(why, timed_out=timed_out)

    def run(
        self, jobs: Iterable[RunCase], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        """Yield a record for each job as it is done; one case at a time on each device.

        A case that takes its process down, or longer than ``timeout_s``, is recorded as that,
        and the next one gets a new process. Kinds of device take turns, so that the CPU times
        nothing while it feeds a GPU. After ``stop_at``, by the monotonic clock, none is started.

        Raises:
            HarnessError: the harness itself failed.
        """
        by_kind: dict[str, deque[RunCase]] = {}
        for job in jobs:
            by_kind.setdefault(job.case.device, deque()).append(job)
        for kind, queue in by_kind.items():
            if monotonic() < stop_at:
                yield from self._run_on(kind, queue, timeout_s, stop_at)

    def _run_on(
        self, kind: str, queue: deque[RunCase], timeout_s: float, stop_at: float
    ) -> Iterator[Record]:
        processes = max(each.budget.processes for each in queue)
        idle = self._seats_for(kind, len(queue), processes)
        busy: list[Seat] = []
        finished: list[Record] = []
        while busy or (queue and monotonic() < stop_at):
            while idle and queue and monotonic() < stop_at:
                seat = idle.pop()
                seat.begin(queue.popleft(), timeout_s)
                busy.append(seat)
            # only now: while records are written, the next cases draw their inputs
            yield from finished
            finished.clear()
            first = min(each.worker.deadline for each in busy)
            connections: list[Connection] = [each.worker.connection for each in busy]
            ready = wait(connections, timeout=max(0.0, first - monotonic()))
            for seat in list(busy):
                worker = seat.worker
                if worker.connection in ready or monotonic() >= worker.deadline:
                    turn = len(seat.records)
                    record, seat.workers[turn] = self._finish(
                        worker, worker.connection in ready, timeout_s
                    )
                    seat.records.append(record)
                    if not seat.goes_on(timeout_s):
                        busy.remove(seat)
                        idle.append(seat)
                        finished.append(seat.record())
        yield from finished

    def _finish(
        self, worker: WorkerProcess, answered: bool, timeout_s: float
    ) -> tuple[Record, WorkerProcess]:
        """Take the record of a worker's case, or make one of how the worker ended."""
        job = worker.job
        assert job is not None  # it was busy
        if answered:
            try:
                record = worker.receive()
            except (EOFError, ConnectionError):
                return self._replace(worker, job.case, Status.CRASHED, "its process")
            assert isinstance(record, Record)  # what a RunCase is answered with
            return record, worker
        why = f"not done after {timeout_s:g} s"
        return self._replace(worker, job.case, Status.TIMEOUT, why)

    def _replace(
        self, worker: WorkerProcess, case: Case, status: Status, why: str
    ) -> tuple[Record, WorkerProcess]:
        ended = worker.end()
        place = self._workers.index(worker)
        self._workers.remove(worker)
        reason = f"{why} {ended}" if status is Status.CRASHED else why
        record = Record(
            case=case,
            environment=worker.hello.environment.fingerprint,
            status=status,
            reason=reason,
        )
        return record, self._start(worker.cuda_device, place)

    def _seats_for(self, kind: str, jobs: int, processes: int) -> list[Seat]:
        """Return a seat for each device of a kind, no more than there are jobs."""
        if kind != "cuda":
            there = [each for each in self._workers if each.cuda_device is None][:processes]
            return [Seat([*there, *(self._start() for _ in range(processes - len(there)))])]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = (
            visible.split(",")
            if visible
            else [str(index) for index in range(self.hello.device_counts.get(kind, 0))]
        )
        return [Seat([self._start(name) for _ in range(processes)]) for name in names[:jobs]]

    def _start(self, cuda_device: str | None = None, place: int | None = None) -> WorkerProcess:
        self._logs += 1
        log = Path(self._folder.name) / f"worker{self._logs}.log"
        log.touch()
        worker = WorkerProcess(log, cuda_device)
        self._workers.insert(len(self._workers) if place is None else place, worker)
        return worker

"""The parent's side of worker processes: one for each device, each ended when it misbehaves."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from types import TracebackType

from harness.records import Case, Record, Status
from harness.refusal import Refusal
from harness.run.worker import Bug, Hello, Resolve, RunCase, serve

__all__ = ["EndedError", "Fleet", "HarnessError"]

_START_S = 300  # ours: importing torch takes seconds, on a machine that swaps a minute


class HarnessError(Refusal):
    """The harness itself failed; the message holds the worker's traceback."""

    exit_code = 3


class EndedError(Exception):
    """What was asked ended the process that was to answer; the message says how."""


class _Worker:
    """One worker process and the case it is busy with."""

    def __init__(self, log: Path, cuda_device: str | None = None) -> None:
        self._log = log
        # spawn: a forked child would share the parent's CUDA state and its threads' locks
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, str(log), cuda_device))
        self.process.start()
        theirs.close()
        self.cuda_device = cuda_device
        self.job: RunCase | None = None
        self.deadline = float("inf")

    @cached_property
    def hello(self) -> Hello:
        """The first thing a worker says; waited for only now, since importing torch takes long."""
        hello = self.ask_within(_START_S)
        assert isinstance(hello, Hello)
        return hello

    def ask_within(self, seconds: float) -> object:
        """Wait for an answer.

        Raises:
            HarnessError: none came in time, the process ended, or it reports a bug.
        """
        if not self.connection.poll(seconds):
            raise HarnessError(f"a worker did not answer within {seconds:.0f} s")
        try:
            return self.receive()
        except (EOFError, ConnectionError) as error:
            raise HarnessError(f"a worker {self.end()}") from error

    def receive(self) -> object:
        """Take an answer that is there.

        Raises:
            HarnessError: it reports a bug.
            EOFError: the process has ended instead.
        """
        answer = self.connection.recv()
        if isinstance(answer, Bug):
            raise HarnessError(
                f"{answer.traceback}\nthis is a bug in layernorm-bench; what was measured is kept"
            )
        return answer

    def start(self, job: RunCase, timeout_s: float) -> None:
        assert self.hello  # it is up: the case's time starts now
        self.job = job
        self.deadline = monotonic() + timeout_s
        with suppress(ConnectionError):  # a process that has ended is found out when it is heard
            self.connection.send(job)

    def end(self) -> str:
        """End the process; say how it ended by itself, if it did, and its last words."""
        self.process.join(timeout=0.5)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        said = f"; its last line was: {lines[-1][:200]}" if lines else ""
        if code is None:
            return f"had to be ended{said}"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}{said}"
        return f"ended with exit code {code}{said}"


class Fleet:
    """Worker processes of one machine. Use as a context manager: leaving it ends them all."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="layernorm-bench-")
        self._logs = 0
        self._workers: list[_Worker] = []

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

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Say of each implementation that cannot be found why not."""
        return tuple(why for each in targets if (why := self._unresolved(each)))

    def _unresolved(self, target: str) -> str | None:
        try:
            answer = self.ask(Resolve(target), _START_S)
        except EndedError as ended:
            return f"{target}: cannot be imported: it {ended}"
        return str(answer) if answer else None

    def ask(self, request: object, timeout_s: float) -> object:
        """Send a request to the first worker and wait for its answer.

        Raises:
            EndedError: the worker crashed over it, or took longer than ``timeout_s``; a new one
                takes its place.
        """
        worker = self._workers[0]
        assert worker.hello  # it is up: the request's time starts now
        try:
            worker.connection.send(request)
            if worker.connection.poll(timeout_s):
                return worker.receive()
            why = f"was not done after {timeout_s:g} s"
            last = worker.end().partition("; ")[2]
            why += f"; {last}" if last else ""
        except (EOFError, ConnectionError):
            why = f"took its process down, which {worker.end()}"
        self._workers.remove(worker)
        self._start(place=0)
        raise EndedError(why)

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
        idle = self._workers_for(kind, len(queue))
        busy: list[_Worker] = []
        finished: list[Record] = []
        while busy or (queue and monotonic() < stop_at):
            while idle and queue and monotonic() < stop_at:
                worker = idle.pop()
                worker.start(queue.popleft(), timeout_s)
                busy.append(worker)
            # only now: while records are written, the next cases draw their inputs
            yield from finished
            finished.clear()
            first = min(each.deadline for each in busy)
            connections: list[Connection] = [each.connection for each in busy]
            ready = wait(connections, timeout=max(0.0, first - monotonic()))
            for worker in list(busy):
                if worker.connection in ready or monotonic() >= worker.deadline:
                    busy.remove(worker)
                    record, worker = self._finish(worker, worker.connection in ready, timeout_s)
                    idle.append(worker)
                    finished.append(record)
        yield from finished

    def _finish(self, worker: _Worker, answered: bool, timeout_s: float) -> tuple[Record, _Worker]:
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
        self, worker: _Worker, case: Case, status: Status, why: str
    ) -> tuple[Record, _Worker]:
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

    def _workers_for(self, kind: str, jobs: int) -> list[_Worker]:
        """Return a worker for each device of a kind, no more than there are jobs."""
        if kind != "cuda":
            return self._workers[:1]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = (
            visible.split(",")
            if visible
            else [str(index) for index in range(self.hello.device_counts.get(kind, 0))]
        )
        return [self._start(name) for name in names[:jobs]]

    def _start(self, cuda_device: str | None = None, place: int | None = None) -> _Worker:
        self._logs += 1
        log = Path(self._folder.name) / f"worker{self._logs}.log"
        log.touch()
        worker = _Worker(log, cuda_device)
        self._workers.insert(len(self._workers) if place is None else place, worker)
        return worker

"""One worker process, and the processes that take turns at a case on one device."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from harness.records import Measurement, Record
from harness.records.refusal import Refusal
from harness.run.merge import ENOUGH_PROCESSES, is_narrow, merged
from harness.run.worker import Bug, Hello, RunCase, serve

__all__ = ["START_S", "HarnessError", "Seat", "WorkerProcess"]

_TIMINGS = {Measurement.LATENCY, Measurement.COLD}
START_S = 300  # ours: importing torch takes seconds, on a machine that swaps a minute


class HarnessError(Refusal):
    """The harness itself failed; the message holds the worker's traceback."""

    exit_code = 3


class WorkerProcess:
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
        hello = self.ask_within(START_S)
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


@dataclass(slots=True)
class Seat:
    """The workers of one device, which take turns at a case, and the case they are at."""

    workers: list[WorkerProcess]
    job: RunCase | None = None
    records: list[Record] = field(default_factory=list)
    """Of the processes that have run it so far."""

    @property
    def worker(self) -> WorkerProcess:
        """Whose turn it is."""
        return self.workers[len(self.records)]

    def begin(self, job: RunCase, timeout_s: float) -> None:
        self.job, self.records = job, []
        for each in self.workers:
            assert each.hello  # it is up: none imports torch while another is measuring
        self.worker.start(job, timeout_s)

    def goes_on(self, timeout_s: float) -> bool:
        """Let the next process run the case too, if there is something to gain from it."""
        assert self.job is not None  # it was begun
        last, count, budget = self.records[-1], len(self.records), self.job.budget
        if count == len(self.workers) or (last.latency is None and last.cold is None):
            return False
        if count >= ENOUGH_PROCESSES and is_narrow(merged(self.records, budget), budget):
            return False
        timings = [each for each in self.job.measurements if each in _TIMINGS]
        self.worker.start(replace(self.job, measurements=timings), timeout_s)
        return True

    def record(self) -> Record:
        """What all processes found."""
        assert self.job is not None  # it was begun
        return merged(self.records, self.job.budget)

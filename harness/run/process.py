"""One worker process, and the processes that run a case one after the other on one device."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

from harness.records import Record
from harness.records.refusal import Refusal
from harness.run.across_processes import ENOUGH_PROCESSES, merged
from harness.run.messages import (
    TIMINGS,
    Bug,
    KnownErrors,
    Progress,
    Reply,
    Request,
    RunCase,
    Update,
    WorkerInfo,
)
from harness.run.place import Place
from harness.run.worker import serve

__all__ = ["START_S", "HarnessError", "Slot", "WorkerProcess"]

_VMSTAT = Path("/proc/vmstat")
START_S = 300  # trade-off: importing torch takes seconds, but much longer on a machine that swaps


class HarnessError(Refusal):
    """The harness itself failed; the message holds the worker's traceback."""

    exit_code = 3


class WorkerProcess:
    """One worker process and the case it is busy with."""

    def __init__(self, log: Path, place: Place) -> None:
        self._log = log
        # spawn: a forked child would share the parent's CUDA state and its threads' locks
        context = get_context("spawn")
        self.connection, workers_end = context.Pipe()
        self.process = context.Process(target=serve, args=(workers_end, str(log), place))
        self.process.start()
        workers_end.close()
        self.place = place
        self._out_of_memory = _out_of_memory_kills()
        self.job: RunCase | None = None
        self.deadline = float("inf")
        self.measured: KnownErrors = ()
        """The errors that were measured for the last case, if it runs in several processes."""

    @cached_property
    def info(self) -> WorkerInfo:
        """The worker's first message; waited for when first read, since importing torch takes long.

        Raises:
            HarnessError: it did not come in time, the process ended, or it reports a bug.
        """
        if not self.connection.poll(START_S):
            raise HarnessError(f"a worker did not answer within {START_S:.0f} s")
        try:
            info: WorkerInfo = self._receive()
        except (EOFError, ConnectionError) as error:
            raise HarnessError(f"a worker {self.end()}") from error
        return info

    @property
    def is_ready(self) -> bool:
        """Whether ``info`` would not wait."""
        return "info" in vars(self) or self.connection.poll()

    def ask(
        self,
        request: Request[Reply, Update],
        timeout_s: float,
        on_update: Callable[[Update], None],
    ) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            TimeoutError: there was no reply in time.
            EOFError, ConnectionError: the process has ended.
            HarnessError: the worker reports a bug.
        """
        assert self.info  # the worker is ready: the request's time starts now
        self.connection.send(request)
        stop_at = monotonic() + timeout_s
        while self.connection.poll(max(0.0, stop_at - monotonic())):
            message: Reply | Progress[Update] = self._receive()
            if not isinstance(message, Progress):
                return message
            on_update(message.update)
        raise TimeoutError

    def start(self, job: RunCase, timeout_s: float) -> None:
        """Send a case without waiting for its record."""
        assert self.info  # the worker is ready: the case's time starts now
        self.job = job
        self.deadline = monotonic() + timeout_s
        self.measured = ()
        with suppress(ConnectionError):  # if the process has ended, ``record`` raises
            self.connection.send(job)

    def record(self) -> Record:
        """Return the record of the case that was started, once it is there.

        Raises:
            TimeoutError: only a part of the answer came in time.
            EOFError, ConnectionError: the process has ended.
            HarnessError: the worker reports a bug.
        """
        message: Record | Progress[KnownErrors] = self._receive()
        while isinstance(message, Progress):  # the record follows
            self.measured = message.update
            if not self.connection.poll(max(0.0, self.deadline - monotonic())):
                raise TimeoutError
            message = self._receive()
        return message

    def _receive(self) -> Any:
        """Take the next message, whose type follows from what was sent."""
        message = self.connection.recv()
        if isinstance(message, Bug):
            raise HarnessError(
                f"{message.traceback}\nthis is a bug in layernorm-bench; what was measured is kept"
            )
        return message

    def end(self) -> str:
        """End the process; return how it ended, and its last line of output."""
        self.process.join(timeout=0.5)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        last_line = f"; its last line was: {lines[-1][:200]}" if lines else ""
        if code is None:
            return f"had to be ended{last_line}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL and _out_of_memory_kills() > self._out_of_memory:
                how += ", while the kernel ended processes for lack of memory"
            return f"{how}{last_line}"
        return f"ended with exit code {code}{last_line}"


def _out_of_memory_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory; 0 if it does not say."""
    try:
        fields = _VMSTAT.read_text().split()
    except OSError:
        return 0
    return int(fields[fields.index("oom_kill") + 1]) if "oom_kill" in fields else 0


@dataclass(slots=True)
class Slot:
    """The worker processes of one device, which run a case one after the other."""

    workers: list[WorkerProcess]
    takes_last: bool = False
    """Whether it takes its cases from the end of the queue."""
    job: RunCase | None = None
    records: list[Record] = field(default_factory=list)
    """From the processes that have run the case so far."""
    known: KnownErrors = ()
    """Errors that these processes have measured."""

    @property
    def worker(self) -> WorkerProcess:
        """The process that runs the case now."""
        return self.workers[len(self.records)]

    @property
    def is_ready(self) -> bool:
        return all(each.is_ready for each in self.workers)

    def wait(self) -> None:
        """Wait until all are ready."""
        for each in self.workers:
            assert each.info

    def begin(self, job: RunCase, timeout_s: float) -> None:
        self.job, self.records, self.known = job, [], ()
        self.wait()  # for one that has replaced another
        self.worker.start(job, timeout_s)

    def continue_in_next_process(self, timeout_s: float) -> bool:
        """Start the case in the next process if that can narrow its interval; whether it did."""
        assert self.job is not None  # it was begun
        last, count = self.records[-1], len(self.records)
        if count == len(self.workers) or (last.latency is None and last.cold is None):
            return False
        if count >= ENOUGH_PROCESSES:
            so_far = self.record()
            latency = so_far.latency or so_far.cold
            if latency is None or latency.converged:
                return False
        timings = [each for each in self.job.measurements if each in TIMINGS]
        self.known += self.workers[count - 1].measured
        job = replace(self.job, measurements=timings, known=self.known)
        self.worker.start(job, timeout_s)
        return True

    def record(self) -> Record:
        """Return the record over all processes."""
        assert self.job is not None  # it was begun
        return merged(self.records, self.job.budget)

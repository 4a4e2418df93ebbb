"""The parent's side of the worker processes: each crash or hang costs one case and one process."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from harness.records import Environment, Record, Status
from harness.run.across_processes import ENOUGH_PROCESSES, merged
from harness.run.worker import (
    START_S,
    TIMINGS,
    Job,
    KnownErrors,
    Options,
    Reply,
    WorkerInfo,
    WorkerProcess,
    why_unresolved,
)

if TYPE_CHECKING:
    from harness.run.case import CaseRunner

_WORTH_A_PROCESS = 100  # trade-off: a process starts in 2 s, and runs as many small cases in 1 s
_SMALL = 1 << 24  # elements; two such cases at a time take 2 GB at most


class EndedError(Exception):
    """A call ended the worker process; the message says how."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        """Whether it was ended because it took too long."""


class Fleet:
    """Worker processes of one machine. Use as a context manager: leaving it ends them all."""

    lost: Sequence[str] = ()
    """What happened to machines that cannot be used any more: this one is never lost."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="layernorm-bench-")
        self._logs = 0
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Fleet:
        self._start(None)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _end(worker)
        self._folder.cleanup()

    @property
    def info(self) -> WorkerInfo:
        """What the first worker found on this machine."""
        return self._workers[0].info

    @property
    def nodes(self) -> tuple[WorkerInfo, ...]:
        """The same, as the only machine."""
        return (self.info,)

    def unresolved(
        self,
        targets: Iterable[str],
        init: tuple[tuple[str, object], ...] = (),
        why: Callable[[CaseRunner, tuple[str, Any]], str | None] = why_unresolved,
    ) -> tuple[str, ...]:
        """Return why targets cannot be found: a message for each of those that cannot.

        Args:
            targets: names, ``module:name`` or ``file.py:name``.
            init: arguments of their constructors, by name.
            why: what the worker runs; what its module imports is imported before any target.
        """
        messages = []
        for target in targets:
            try:
                messages.append(self.call(why, (target, init), START_S))
            except EndedError as ended:
                messages.append(f"{target}: cannot be imported: it {ended}")
        return tuple(message for message in messages if message)

    def call(
        self,
        function: Callable[[CaseRunner, Options], Reply],
        options: Options,
        timeout_s: float,
        on_update: Callable[[Any], None] = lambda update: None,
    ) -> Reply:
        """Run a function in the first worker and return what it returns.

        Args:
            function: importable; called with the :class:`harness.run.case.CaseRunner` of the
                worker, whose ``report`` sends updates.
            options: the second argument of the function.
            timeout_s: seconds to wait.
            on_update: called with each update that the function reports.

        Raises:
            EndedError: the worker crashed, or took longer than ``timeout_s``; a new worker
                replaces it.
        """
        worker = self._workers[0]
        try:
            return worker.call(function, options, timeout_s, on_update)
        except TimeoutError:
            why = f"was not done after {timeout_s:g} s{worker.end()[1]}"
            ended = EndedError(why, timed_out=True)
        except (EOFError, ConnectionError):
            ended = EndedError(f"took its process down, which {''.join(worker.end())}")
        self._replace(worker)
        raise ended

    def run(
        self, jobs: Iterable[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        """Yield a record for each job as it is done; one case at a time on each device.

        A case that crashes its process, or takes longer than ``timeout_s``, is recorded as such,
        and the next one gets a new process. One kind of device runs after the other, so that no
        CPU case is timed while the CPU feeds a GPU. CPU cases in which nothing is timed come first,
        if they are many then two at a time. No case starts after ``stop_at``, by the monotonic
        clock.

        Raises:
            HarnessError: the harness itself failed.
        """
        by_kind: dict[str, deque[Job]] = {}
        for job in jobs:
            by_kind.setdefault(job.case.device, deque()).append(job)
        for kind, queue in by_kind.items():
            untimed = deque(job for job in queue if not job.is_timed)
            if kind == "cpu" and untimed:
                queue = deque(job for job in queue if job.is_timed)
                yield from self._run_untimed(untimed, timeout_s, stop_at, _processes(queue))
            if queue and monotonic() < stop_at:
                slots = self._slots_for(kind, len(queue), _processes(queue))
                for worker in self._workers:  # none imports torch while another one measures
                    assert worker.info
                yield from self._run_in(slots, queue, timeout_s, stop_at)

    def _run_untimed(
        self, queue: deque[Job], timeout_s: float, stop_at: float, processes: int
    ) -> Iterator[Record]:
        """Run cases in which nothing is timed, two at a time if they are many and small.

        The second process takes its cases from the end of the queue, so that consecutive cases of
        a process have inputs in common. All processes that later time cases start meanwhile. A
        process that times none ends here: it holds memory, and threads of its targets may run.
        """
        timing = processes
        can_pair = self.info.environment.cpu_count > 1 and all(map(_is_small, queue))
        if can_pair and len(queue) >= _WORTH_A_PROCESS:
            processes = max(processes, 2)
        first, *others = self._workers_of(None, processes)
        slots = [Slot([first])]
        if can_pair and others:
            slots.append(Slot([others[0]], takes_last=True))
        yield from self._run_in(slots, queue, timeout_s, stop_at)
        for worker in self._workers_of(None, processes)[timing:]:
            self._workers.remove(worker)
            _end(worker)

    def _run_in(
        self, idle: list[Slot], queue: deque[Job], timeout_s: float, stop_at: float
    ) -> Iterator[Record]:
        """Run the cases of a queue in slots, each of which begins as soon as it is ready."""
        idle[0].wait()
        starting = [slot for slot in idle if not slot.is_ready]
        idle = [slot for slot in idle if slot.is_ready]
        busy: list[Slot] = []
        finished: list[Record] = []
        while busy or (queue and monotonic() < stop_at):
            while idle and queue and monotonic() < stop_at:
                slot = idle.pop()
                slot.begin(queue.pop() if slot.takes_last else queue.popleft(), timeout_s)
                busy.append(slot)
            # only now, so that the next cases draw their inputs while these are written
            yield from finished
            finished.clear()
            first = min(slot.worker.deadline for slot in busy)
            connections: list[Connection] = [slot.worker.connection for slot in (*busy, *starting)]
            ready = wait(connections, timeout=max(0.0, first - monotonic()))
            idle += [slot for slot in starting if slot.is_ready]
            starting = [slot for slot in starting if slot not in idle]
            for slot in list(busy):
                worker = slot.worker
                if worker.connection in ready or monotonic() >= worker.deadline:
                    turn = len(slot.records)
                    record, slot.workers[turn] = self._finish(worker, timeout_s)
                    slot.records.append(record)
                    if not slot.continue_in_next_process(timeout_s):
                        busy.remove(slot)
                        idle.append(slot)
                        finished.append(slot.record())
        yield from finished

    def _finish(self, worker: WorkerProcess, timeout_s: float) -> tuple[Record, WorkerProcess]:
        """Return the record of a worker's case, and the worker for the next case.

        If the worker ended, or is late, the record says so, and another one replaces it.
        """
        assert worker.job is not None  # it was busy
        try:
            return worker.record(), worker
        except (EOFError, ConnectionError):
            status, reason = Status.CRASHED, f"its process {''.join(worker.end())}"
        except TimeoutError:
            status, reason = Status.TIMEOUT, f"not done after {timeout_s:g} s"
            worker.end()
        fingerprint = worker.info.environment.fingerprint
        record = Record(case=worker.job.case, environment=fingerprint, status=status, reason=reason)
        return record, self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        """Start a worker in the place of one that has ended."""
        index = self._workers.index(worker)
        del self._workers[index]
        return self._start(worker.cuda_device, index)

    def _slots_for(self, kind: str, jobs: int, processes: int) -> list[Slot]:
        """Return a slot for each device of a kind, but no more than there are jobs."""
        devices: list[str | None] = [None]
        if kind == "cuda":
            names = visible_gpus(self.info.device_counts.get(kind, 0))
            devices = [*usable_gpus(names, self.info.environment)]
        return [Slot(self._workers_of(device, processes)) for device in devices[:jobs]]

    def _workers_of(self, device: str | None, processes: int) -> list[WorkerProcess]:
        own = [worker for worker in self._workers if worker.cuda_device == device][:processes]
        return [*own, *(self._start(device) for _ in range(processes - len(own)))]

    def _start(self, device: str | None, index: int | None = None) -> WorkerProcess:
        self._logs += 1
        log = Path(self._folder.name) / f"worker{self._logs}.log"
        log.touch()
        worker = WorkerProcess(log, device)
        self._workers.insert(len(self._workers) if index is None else index, worker)
        return worker


@dataclass(slots=True)
class Slot:
    """The worker processes of one device, which run a case one after the other."""

    workers: list[WorkerProcess]
    takes_last: bool = False
    """Whether it takes its cases from the end of the queue."""
    job: Job | None = None
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
        return all(worker.is_ready for worker in self.workers)

    def wait(self) -> None:
        """Wait until all are ready."""
        for worker in self.workers:
            assert worker.info

    def begin(self, job: Job, timeout_s: float) -> None:
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
        timings = [asked for asked in self.job.measurements if asked in TIMINGS]
        self.known += self.workers[count - 1].measured
        job = replace(self.job, measurements=timings, known=self.known)
        self.worker.start(job, timeout_s)
        return True

    def record(self) -> Record:
        """Return the record over all processes."""
        assert self.job is not None  # it was begun
        return merged(self.records, self.job.budget)


def visible_gpus(count: int) -> list[str]:
    """Return the names of the GPUs, ``count`` as torch sees them, for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(count)]


def usable_gpus(names: Sequence[str], environment: Environment) -> list[str]:
    """Return the GPUs that may be used at once; only one if the GPUs are of several models.

    A record does not name its GPU, so latencies of different models could be compared.

    Args:
        names: of the GPUs, for CUDA_VISIBLE_DEVICES.
        environment: of the machine, which describes its GPUs.
    """
    models = {(gpu.name, gpu.memory_bytes, gpu.power_limit_w) for gpu in environment.gpus}
    return list(names if len(models) <= 1 else names[:1])


def _end(worker: WorkerProcess) -> None:
    worker.process.kill()
    worker.process.join()


def _processes(jobs: Iterable[Job]) -> int:
    return max((job.budget.processes for job in jobs), default=1)


def _is_small(job: Job) -> bool:
    return job.case.rows * job.case.hidden <= _SMALL

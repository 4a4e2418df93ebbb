"""The parent's side of the worker processes: each crash or hang costs one case and one process."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from types import TracebackType

from harness.records import Case, Record, Status
from harness.run.messages import Reply, Request, Resolve, RunCase, Update, WorkerInfo
from harness.run.place import Place, gpu_places, visible_gpus
from harness.run.process import START_S, HarnessError, Slot, WorkerProcess

__all__ = ["EndedError", "Fleet", "HarnessError"]

_WORTH_A_PROCESS = 100  # trade-off: a process starts in 2 s, and runs as many small cases in 1 s
_SMALL = 1 << 24  # elements; two such cases at a time take 2 GB at most


class EndedError(Exception):
    """A request ended the worker process; the message says how."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        """Whether it was ended because it took too long."""


class Fleet:
    """Worker processes of one machine. Use as a context manager: leaving it ends them all."""

    lost: Sequence[str] = ()
    """What happened to machines that cannot be used any more: this one is never lost."""

    def __init__(self, cpu_places: Sequence[Place] = (Place(),)) -> None:
        """Choose where CPU cases run.

        Args:
            cpu_places: parts of the CPU, each of which runs a case at the same time; all alike.
        """
        self._cpu_places = cpu_places
        self._folder = tempfile.TemporaryDirectory(prefix="layernorm-bench-")
        self._logs = 0
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Fleet:
        self._start(self._cpu_places[0])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._workers:
            _end(each)
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
        resolve: type[Resolve] = Resolve,
    ) -> tuple[str, ...]:
        """Return why targets cannot be found: a message for each of those that cannot.

        Args:
            targets: names, ``module:name`` or ``file.py:name``.
            init: arguments of their constructors, by name.
            resolve: the request; what its module imports is imported before any target.
        """
        whys = (self._unresolved(resolve(target, init)) for target in targets)
        return tuple(why for why in whys if why)

    def _unresolved(self, resolve: Resolve) -> str | None:
        try:
            return self.ask(resolve, START_S)
        except EndedError as ended:
            return f"{resolve.target}: cannot be imported: it {ended}"

    def ask(
        self,
        request: Request[Reply, Update],
        timeout_s: float,
        on_update: Callable[[Update], None] = lambda update: None,
    ) -> Reply:
        """Send a request to the first worker and wait for its reply.

        Args:
            request: what to ask.
            timeout_s: seconds to wait for the reply.
            on_update: called with each update that comes before the reply.

        Raises:
            EndedError: the worker crashed, or took longer than ``timeout_s``; a new worker
                replaces it.
        """
        worker = self._workers[0]
        try:
            return worker.ask(request, timeout_s, on_update)
        except TimeoutError:
            last_line = worker.end().partition("; ")[2]
            why = f"was not done after {timeout_s:g} s{'; ' if last_line else ''}{last_line}"
            ended = EndedError(why, timed_out=True)
        except (EOFError, ConnectionError):
            ended = EndedError(f"took its process down, which {worker.end()}")
        self._workers.remove(worker)
        self._start(worker.place, 0)
        raise ended

    def run(
        self, jobs: Iterable[RunCase], timeout_s: float, stop_at: float = float("inf")
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
        by_kind: dict[str, deque[RunCase]] = {}
        for job in jobs:
            by_kind.setdefault(job.case.device, deque()).append(job)
        for kind, queue in by_kind.items():
            untimed = deque(each for each in queue if not each.is_timed)
            if kind == "cpu" and len(self._cpu_places) == 1 and untimed:
                queue = deque(each for each in queue if each.is_timed)
                yield from self._run_untimed(untimed, timeout_s, stop_at, _processes(queue))
            if queue and monotonic() < stop_at:
                slots = self._slots_for(kind, len(queue), _processes(queue))
                for each in self._workers:  # none imports torch while another one measures
                    assert each.info
                yield from self._run_in(slots, queue, timeout_s, stop_at)

    def _run_untimed(
        self, queue: deque[RunCase], timeout_s: float, stop_at: float, processes: int
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
        first, *others = self._workers_at(self._cpu_places[0], processes)
        slots = [Slot([first])]
        if can_pair and others:
            slots.append(Slot([others[0]], takes_last=True))
        yield from self._run_in(slots, queue, timeout_s, stop_at)
        for each in self._workers_at(self._cpu_places[0], processes)[timing:]:
            self._workers.remove(each)
            _end(each)

    def _run_in(
        self, idle: list[Slot], queue: deque[RunCase], timeout_s: float, stop_at: float
    ) -> Iterator[Record]:
        """Run the cases of a queue in slots, each of which begins as soon as it is ready."""
        idle[0].wait()
        starting = [each for each in idle if not each.is_ready]
        idle = [each for each in idle if each.is_ready]
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
            first = min(each.worker.deadline for each in busy)
            connections: list[Connection] = [each.worker.connection for each in (*busy, *starting)]
            ready = wait(connections, timeout=max(0.0, first - monotonic()))
            idle += [each for each in starting if each.is_ready]
            starting = [each for each in starting if each not in idle]
            for slot in list(busy):
                worker = slot.worker
                if worker.connection in ready or monotonic() >= worker.deadline:
                    turn = len(slot.records)
                    # asked again: it may have come while another worker was ended
                    is_ready = worker.connection.poll()
                    record, slot.workers[turn] = self._finish(worker, is_ready, timeout_s)
                    slot.records.append(record)
                    if not slot.continue_in_next_process(timeout_s):
                        busy.remove(slot)
                        idle.append(slot)
                        finished.append(slot.record())
        yield from finished

    def _finish(
        self, worker: WorkerProcess, is_ready: bool, timeout_s: float
    ) -> tuple[Record, WorkerProcess]:
        """Return the record of a worker's case, or one that says how the worker ended."""
        job = worker.job
        assert job is not None  # it was busy
        if is_ready:
            try:
                return worker.record(), worker
            except (EOFError, ConnectionError):
                return self._replace(worker, job.case, Status.CRASHED, "its process")
            except TimeoutError:
                pass
        why = f"not done after {timeout_s:g} s"
        return self._replace(worker, job.case, Status.TIMEOUT, why)

    def _replace(
        self, worker: WorkerProcess, case: Case, status: Status, why: str
    ) -> tuple[Record, WorkerProcess]:
        ended = worker.end()
        index = self._workers.index(worker)
        self._workers.remove(worker)
        reason = f"{why} {ended}" if status is Status.CRASHED else why
        record = Record(
            case=case,
            environment=worker.info.environment.fingerprint,
            status=status,
            reason=reason,
        )
        return record, self._start(worker.place, index)

    def _slots_for(self, kind: str, jobs: int, processes: int) -> list[Slot]:
        """Return a slot for each device of a kind, but no more than there are jobs."""
        places = self._cpu_places
        if kind == "cuda":
            names = visible_gpus(self.info.device_counts.get(kind, 0))
            places = gpu_places(names, self.info.environment)
        return [Slot(self._workers_at(place, processes)) for place in places[:jobs]]

    def _workers_at(self, place: Place, processes: int) -> list[WorkerProcess]:
        there = [each for each in self._workers if each.place == place][:processes]
        return [*there, *(self._start(place) for _ in range(processes - len(there)))]

    def _start(self, place: Place, index: int | None = None) -> WorkerProcess:
        self._logs += 1
        log = Path(self._folder.name) / f"worker{self._logs}.log"
        log.touch()
        worker = WorkerProcess(log, place)
        self._workers.insert(len(self._workers) if index is None else index, worker)
        return worker


def _end(worker: WorkerProcess) -> None:
    worker.process.kill()
    worker.process.join()


def _processes(jobs: Iterable[RunCase]) -> int:
    return max((each.budget.processes for each in jobs), default=1)


def _is_small(job: RunCase) -> bool:
    return job.case.rows * job.case.hidden <= _SMALL

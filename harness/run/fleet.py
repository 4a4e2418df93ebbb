"""Worker processes: each crash or hang costs one case and one process.

The parent imports no torch, and a worker only once CUDA_VISIBLE_DEVICES is set: functions that a
worker runs import what they need of torch when they are called. What implementations print goes to
a log file, never to the results on standard output.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from math import fsum
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from traceback import format_exc
from typing import TYPE_CHECKING, Any, TypeVar

from harness.measure import joined, uneven_advice
from harness.records import (
    Budget,
    Case,
    Cost,
    Environment,
    Measurement,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.records.refusal import Refusal, refusing
from harness.records.text import grouped

if TYPE_CHECKING:
    from harness.run.case import CaseRunner

START_S = 300  # trade-off: importing torch takes seconds, but much longer on a machine that swaps
# Simulated: fewer processes agree by chance too often. Where the interval over three is narrow, it
# covers 51 to 82 % if processes spread by 2 to 1 %; see experiments/estimates.
ENOUGH_PROCESSES = 5
TIMINGS = frozenset({Measurement.LATENCY, Measurement.COLD})
"""Measurements that differ from process to process."""

REPLY, _UPDATE, _BUG = "reply", "update", "bug"  # kinds of messages to the parent
_IS_BUG = "this is a bug in layernorm-bench; what was measured is kept"
_LOST_DEVICE = 70  # exit code; EX_SOFTWARE, internal error, in <sysexits.h>
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class HarnessError(Refusal):
    """The harness itself failed; the message holds the worker's traceback."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The description of a worker and its machine; the first message that it sends."""

    environment: Environment
    implementations: dict[str, frozenset[str]]
    """Names, each with the kinds of device it is written for."""
    names: dict[str, tuple[str, ...]]
    """Those of distributions and other inputs, by axis."""
    unavailable: dict[str, str]
    """Device kinds that cannot be used here, and why."""
    device_counts: dict[str, int]
    """How many devices there are of each kind that can be used."""
    peers: dict[str, frozenset[str]] = field(default_factory=dict)
    """Names of other people's implementations, each with its kinds of device."""


def run_case(runner: CaseRunner, job: Job) -> Record:
    """Run the case of a job to its record, in a worker."""
    return runner.run(job.case, job.measurements, job.budget)


@dataclass(frozen=True, slots=True)
class Job:
    """A case to run to its record."""

    case: Case
    measurements: Collection[Measurement]
    budget: Budget
    environment: str | None = field(default=None, kw_only=True)
    """Fingerprint of the only environment that may run it; None for any."""
    function: Callable[[CaseRunner, Job], Record] = field(default=run_case, kw_only=True)
    """What the worker runs."""
    options: Any = field(default=None, kw_only=True)
    """For the function."""


_Init = tuple[tuple[str, object], ...]
"""Arguments of a constructor, by name."""


def why_unresolved(runner: CaseRunner, options: tuple[str, _Init]) -> str | None:
    """Return why an implementation cannot be found; None if it can.

    Args:
        runner: of this worker.
        options: name of the implementation, and arguments of its constructor.
    """
    import implementations
    from harness.run.integrity import TamperingError

    target, init = options
    try:
        call_options = implementations.CallOptions(init=dict(init))
        with suppress(TamperingError):  # it is found; each of its cases will say so
            runner.trusted.imported(target, partial(implementations.find, options=call_options))
    except implementations.TargetError as error:
        path = Path(target)
        if path.is_dir():
            return f"{target}: is a folder; give {target.rstrip('/')}/FILE.py:NAME"
        if path.suffix == ".py" and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            names = ", ".join(re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE))
            return f"{target}: give {target}:NAME; it defines {names or 'no function or class'}"
        return str(error)
    return None


def serve(connection: Connection, log: str, cuda_device: str | None) -> None:
    """Run functions until the parent closes the connection.

    Args:
        connection: to the parent.
        log: file that takes standard output and standard error.
        cuda_device: the only CUDA device to use, as CUDA_VISIBLE_DEVICES names it; None for all.
    """
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        connection.send((_BUG, f"{log}: cannot be written: {error.strerror}"))
        return
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    # the parent handles Ctrl-C and a batch system's SIGTERM, and ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # a parent that is killed cannot end this process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if cuda_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = cuda_device
    try:
        _answer_all(connection)
    except (EOFError, BrokenPipeError):  # the parent has gone
        return
    except Exception as error:  # noqa: BLE001 - not handled: reported to the parent
        from harness.run.call import is_of_lost_device

        if is_of_lost_device(error):  # caused by the case; ends this process and no other
            sys.stderr.write(str(error).partition("\n")[0] + "\n")
            sys.stderr.flush()
            os._exit(_LOST_DEVICE)
        connection.send((_BUG, f"{format_exc()}\n{_IS_BUG}"))


def _answer_all(connection: Connection) -> None:
    import gc

    gc.disable()  # a collection inside a sample would be timed, and one during imports takes long

    import torch

    torch.set_num_threads(1)  # before the usual state of the process is recorded

    from harness.run.case import CaseRunner
    from harness.run.integrity import Trusted

    info = worker_info()
    connection.send((REPLY, info))
    runner = CaseRunner(
        info.environment.fingerprint,
        trusted=Trusted(),
        report=lambda update: connection.send((_UPDATE, update)),
    )
    gc.freeze()  # what is alive now is never examined again
    while True:
        function, options = connection.recv()
        connection.send((REPLY, function(runner, options)))
        gc.collect(1)  # autograd graphs may be cycles; the oldest generation is left alone


def worker_info() -> WorkerInfo:
    """Return what exists in this process and on this machine."""
    import torch

    import implementations
    from harness.cases.inputs import NAMED
    from harness.measure import DEVICES, read_environment

    unavailable = {kind: why for kind, make in DEVICES.items() if (why := make().unavailable())}
    return WorkerInfo(
        environment=read_environment(),
        implementations={known.name: known.devices for known in implementations.ALL},
        names={axis: tuple(makers) for axis, makers in NAMED.items()},
        unavailable=unavailable,
        device_counts={
            kind: torch.cuda.device_count() if kind == "cuda" else 1
            for kind in DEVICES.keys() - unavailable.keys()
        },
        peers={known.name: known.devices for known in implementations.PEERS},
    )


# --- the parent's side -------------------------------------------------------------------------

Options = TypeVar("Options")
Reply = TypeVar("Reply")


class EndedError(Exception):
    """A call ended the worker process; the message says how."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        """Whether it was ended because it took too long."""


class WorkerProcess:
    """The parent's side of one worker process.

    Args:
        log: file for what the process prints.
        cuda_device: the only CUDA device that it sees, as CUDA_VISIBLE_DEVICES names it.
        serve: what it runs, with its connection, the log and the device.
    """

    def __init__(
        self,
        log: Path,
        cuda_device: str | None,
        serve: Callable[[Connection, str, str | None], None] = serve,
    ) -> None:
        self._log = log
        # spawn: a forked child would share the parent's CUDA state and its threads' locks
        context = get_context("spawn")
        self.connection, workers_end = context.Pipe()
        self.process = context.Process(target=serve, args=(workers_end, str(log), cuda_device))
        self.process.start()
        workers_end.close()
        self.cuda_device = cuda_device
        self._timeout_s = self.deadline = float(START_S)

    @cached_property
    def info(self) -> WorkerInfo:
        """The worker's first message; waited for when first read, since importing torch takes long.

        Raises:
            HarnessError: it did not come in time, the process ended, or it reports a bug.
        """
        self._timeout_s, self.deadline = START_S, monotonic() + START_S
        try:
            info: WorkerInfo = self.reply()
        except EndedError as ended:
            raise HarnessError(f"a worker did not start: it {ended}") from ended
        return info

    def send(self, function: Callable[..., Any], options: object, timeout_s: float) -> None:
        """Have the worker run a function; its time starts once the worker is ready."""
        assert self.info
        self._timeout_s, self.deadline = timeout_s, monotonic() + timeout_s
        with suppress(ConnectionError):  # if the process has ended, ``reply`` raises
            self.connection.send((function, options))

    def reply(self, on_update: Callable[[Any], None] = lambda update: None) -> Any:
        """Wait for what the function returns.

        Raises:
            EndedError: it did not return in time, or the process ended; it has ended now.
            HarnessError: the worker reports a bug.
        """
        try:
            while self.connection.poll(max(0.0, self.deadline - monotonic())):
                kind, value = self.connection.recv()
                if kind == _BUG:
                    raise HarnessError(value)
                if kind == REPLY:
                    return value
                on_update(value)
        except (EOFError, ConnectionError):
            raise EndedError(f"took its process down, which {self._end()}") from None
        self.kill()
        raise EndedError(f"was not done after {self._timeout_s:g} s", timed_out=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _end(self) -> str:
        """End the process; return how it ended, and its last line of output, if any."""
        self.process.join(timeout=0.5)
        code = self.process.exitcode
        self.kill()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        how = "had to be ended" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += ", as the kernel does for lack of memory"
        return how + (f"; its last line was: {lines[-1][:200]}" if lines else "")


class Fleet:
    """Worker processes of one machine. Use as a context manager: leaving it ends them all."""

    lost: Sequence[str] = ()
    """What happened to machines that cannot be used any more: this one is never lost."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="layernorm-bench-", ignore_cleanup_errors=True)
        self._logs = itertools.count(1)
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Fleet:
        self._start(None)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
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
        init: _Init = (),
        why: Callable[[CaseRunner, tuple[str, Any]], str | None] = why_unresolved,
    ) -> tuple[str, ...]:
        """Return why targets cannot be found: a message for each of those that cannot.

        Args:
            targets: names, ``module:name`` or ``file.py:name``.
            init: arguments of their constructors.
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
        worker.send(function, options, timeout_s)
        try:
            reply: Reply = worker.reply(on_update)
        except EndedError:
            self._replace(worker)
            raise
        return reply

    def run(
        self, jobs: Iterable[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        """Yield a record for each job as it is done; one case at a time on each device.

        A case that crashes its process, or takes longer than ``timeout_s``, is recorded as such,
        and the next one gets a new process. One kind of device runs after the other, so that no
        CPU case is timed while the CPU feeds a GPU. No case starts after ``stop_at``, by the
        monotonic clock.

        Raises:
            HarnessError: the harness itself failed.
        """
        for kind, own in grouped((job.case.device, job) for job in jobs).items():
            if monotonic() >= stop_at:
                return
            queue = deque(own)
            processes = max(job.budget.processes for job in queue)
            devices = self._devices(kind)[: len(queue)]
            teams = [self._workers_of(device, processes) for device in devices]
            for worker in self._workers:  # none imports torch while another one measures
                assert worker.info
            yield from self._run_on(teams, queue, timeout_s, stop_at)

    def _run_on(
        self, idle: list[list[WorkerProcess]], queue: deque[Job], timeout_s: float, stop_at: float
    ) -> Iterator[Record]:
        """Run the cases of a queue; each device has a team of processes."""
        busy: dict[WorkerProcess, tuple[list[WorkerProcess], _Steps]] = {}
        finished: list[Record] = []
        while busy or (queue and monotonic() < stop_at):
            while idle and queue and monotonic() < stop_at:
                team = idle.pop()
                steps = self._steps(team, queue.popleft(), timeout_s)
                busy[next(steps)] = team, steps
            # only now, so that the next cases draw their inputs while these are written
            yield from finished
            finished.clear()
            first = min(worker.deadline for worker in busy)
            connections = [worker.connection for worker in busy]
            ready = wait(connections, timeout=max(0.0, first - monotonic()))
            for worker in [*busy]:
                if worker.connection in ready or monotonic() >= worker.deadline:
                    team, steps = busy.pop(worker)
                    try:
                        busy[next(steps)] = team, steps
                    except StopIteration as done:
                        finished.append(done.value)
                        idle.append(team)
        yield from finished

    def _steps(self, team: list[WorkerProcess], job: Job, timeout_s: float) -> _Steps:
        """Run a job in one process of a device after the other; yield each while it is busy.

        A process that ends is replaced, and the record says how it ended. Later processes measure
        times only.
        """
        records: list[Record] = []
        while not is_enough(records, job.budget):
            for worker in team:  # one that has replaced another may still import torch
                assert worker.info
            worker = team[len(records)]
            worker.send(job.function, job, timeout_s)
            yield worker
            try:
                record: Record = worker.reply()
            except EndedError as ended:
                record = Record(
                    case=job.case,
                    environment=worker.info.environment.fingerprint,
                    status=Status.TIMEOUT if ended.timed_out else Status.CRASHED,
                    reason=str(ended),
                )
                team[len(records)] = self._replace(worker)
            records.append(record)
            job = replace(job, measurements=[one for one in job.measurements if one in TIMINGS])
        return merged(records, job.budget)

    def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        """Start a worker in the place of one that has ended."""
        index = self._workers.index(worker)
        del self._workers[index]
        return self._start(worker.cuda_device, index)

    def _devices(self, kind: str) -> list[str | None]:
        """Return the names of a kind's devices for CUDA_VISIBLE_DEVICES; None for the CPU."""
        if kind != "cuda":
            return [None]
        count, visible = self.info.device_counts[kind], os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(index) for index in range(count)]
        # CUDA shows fewer where a name is none of a GPU's, and one slice of a GPU (MIG) at most
        return [*usable_gpus(names[:count], self.info.environment)]

    def _workers_of(self, device: str | None, processes: int) -> list[WorkerProcess]:
        own = [worker for worker in self._workers if worker.cuda_device == device][:processes]
        return [*own, *(self._start(device) for _ in range(processes - len(own)))]

    def _start(self, device: str | None, index: int | None = None) -> WorkerProcess:
        log = Path(self._folder.name) / f"worker{next(self._logs)}.log"
        with refusing(log, "written"):
            log.touch()
        worker = WorkerProcess(log, device)
        self._workers.insert(len(self._workers) if index is None else index, worker)
        return worker


_Steps = Generator[WorkerProcess, None, Record]


def usable_gpus(names: Sequence[str], environment: Environment) -> list[str]:
    """Return the GPUs that may be used at once; only one if the GPUs are of several models.

    A record does not name its GPU, so latencies of different models could be compared.

    Args:
        names: of the GPUs, for CUDA_VISIBLE_DEVICES.
        environment: of the machine, which describes its GPUs.
    """
    return list(names if len({*environment.gpus}) <= 1 else names[:1])


# --- one case in several processes -------------------------------------------------------------


def is_enough(records: Sequence[Record], budget: Budget) -> bool:
    """Whether the case needs no further process: it cannot narrow an interval, or none may run."""
    if not records or len(records) >= budget.processes:
        return len(records) >= budget.processes
    if records[-1].latency is None and records[-1].cold is None:
        return True
    if len(records) < ENOUGH_PROCESSES:
        return False
    so_far = merged(records, budget)
    latency = so_far.latency or so_far.cold
    return latency is None or latency.converged


def merged(records: Sequence[Record], budget: Budget) -> Record:
    """Return the first record, with the samples and the estimates of all processes.

    Errors and memory are the first process's, since they are the same in each. A measurement
    warning is kept once. If the case ended worse in one process, that record is returned.
    """
    if len(records) == 1:
        return records[0]
    worst = max(records, key=_severity)
    if _severity(worst) > min(map(_severity, records)):
        return worst
    warm = joined([record.latency for record in records if record.latency], budget)
    cold = joined([record.cold for record in records if record.cold], budget)
    timed = [latency for latency in (warm, cold) if latency is not None]
    advices = {warning.kind: warning.advice for record in records for warning in record.warnings}
    for kind in (WarningKind.NOT_CONVERGED, WarningKind.UNEVEN):
        advices.pop(kind, None)
    for latency in timed:
        if not latency.converged:
            advices[WarningKind.NOT_CONVERGED] = (
                f"the interval across {latency.processes} processes is wider than "
                f"±{budget.target_ratio:.1%}; give the case more processes"
            )
        if advice := uneven_advice(latency):
            advices[WarningKind.UNEVEN] = advice
    if all(latency.is_valid for latency in timed):
        advices.pop(WarningKind.FASTER_THAN_COPY, None)
    costs = [record.cost for record in records if record.cost is not None]
    parts = (part.name for part in fields(Cost))
    return replace(
        records[0],
        latency=warm,
        cold=cold,
        warnings=tuple(
            MeasurementWarning(kind=kind, advice=advice) for kind, advice in advices.items()
        ),
        cost=Cost(**{part: fsum(getattr(cost, part) for cost in costs) for part in parts}),
    )


def _severity(record: Record) -> tuple[bool, bool, bool]:
    """Order statuses: not measured is worst, then wrong, then any other that is not ok."""
    status = record.status
    return not status.is_measured, status is Status.WRONG, status is not Status.OK

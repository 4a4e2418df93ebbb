"""A worker process runs functions for its parent, so that a crash or a hang costs one of them.

The parent imports no torch, and the worker only once CUDA_VISIBLE_DEVICES is set: functions that a
worker runs import what they need of torch when they are called. What implementations print goes to
a log file, never to the results on standard output.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from traceback import format_exc
from typing import TYPE_CHECKING, Any, TypeVar

from harness.records import Budget, Case, Environment, Errors, Measurement, Record
from harness.records.refusal import Refusal

if TYPE_CHECKING:
    from harness.run.case import CaseRunner

START_S = 300  # trade-off: importing torch takes seconds, but much longer on a machine that swaps
TIMINGS = frozenset({Measurement.LATENCY, Measurement.COLD})
"""Measurements that differ from process to process."""

KnownErrors = tuple[tuple[bytes, Errors], ...]
"""Errors of outputs, each with a key that is the same in each process of a run."""

_REPLY, _UPDATE, _BUG = "reply", "update", "bug"  # kinds of messages to the parent
_LOST_DEVICE = 70  # exit code; EX_SOFTWARE, internal error, in <sysexits.h>
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_VMSTAT = Path("/proc/vmstat")
Options = TypeVar("Options")
Reply = TypeVar("Reply")


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
    environments: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Fingerprints of the environments that may run it; not used on a single machine."""
    known: KnownErrors = field(default=(), kw_only=True)
    """Errors that earlier processes have measured for the case."""
    function: Callable[[CaseRunner, Job], Record] = field(default=run_case, kw_only=True)
    """What the worker runs."""
    options: Any = field(default=None, kw_only=True)
    """For the function."""

    @property
    def is_timed(self) -> bool:
        return not TIMINGS.isdisjoint(self.measurements)


def run_job(runner: CaseRunner, job: Job) -> Record:
    """Run a job in a worker; errors that other processes need are reported before the record."""
    runner.learn(dict(job.known))
    record = job.function(runner, job)
    if job.budget.processes > 1:
        runner.report(tuple(runner.measured_errors.items()))
    return record


def why_unresolved(
    runner: CaseRunner, options: tuple[str, tuple[tuple[str, object], ...]]
) -> str | None:
    """Return why an implementation cannot be found; None if it can.

    Args:
        runner: of this worker.
        options: name of the implementation, and arguments of its constructor by name.
    """
    import implementations
    from harness.run.integrity import TamperingError

    target, init = options
    try:
        call_options = implementations.CallOptions(init=dict(init))
        runner.trusted.imported(target, partial(implementations.find, options=call_options))
    except implementations.TargetError as error:
        return str(error)
    except TamperingError:  # it is found; each of its cases will say so
        return None
    return None


def serve(connection: Connection, log: str, cuda_device: str | None) -> None:
    """Run functions until the parent closes the connection.

    Args:
        connection: to the parent.
        log: file that takes standard output and standard error.
        cuda_device: the only CUDA device to use, as CUDA_VISIBLE_DEVICES names it; None for all.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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
        connection.send((_BUG, format_exc()))


def _answer_all(connection: Connection) -> None:
    import gc

    gc.disable()  # a collection inside a sample would be timed; during imports they take 0.4 s

    import torch

    torch.set_num_threads(1)  # before the usual state of the process is recorded

    from harness.run.case import CaseRunner
    from harness.run.integrity import Trusted

    info = worker_info()
    connection.send((_REPLY, info))
    runner = CaseRunner(
        info.environment.fingerprint,
        trusted=Trusted(),
        report=lambda update: connection.send((_UPDATE, update)),
    )
    gc.freeze()  # what is alive now is never examined again
    while True:
        function, options = connection.recv()
        connection.send((_REPLY, function(runner, options)))
        gc.collect(1)  # autograd graphs may be cycles; the oldest generation is left alone


def worker_info() -> WorkerInfo:
    """Return what exists in this process and on this machine."""
    import torch

    import implementations
    from harness.cases.inputs import NAMED
    from harness.measure.devices import DEVICES
    from harness.measure.environment import read_environment

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


class WorkerProcess:
    """The parent's side of one worker process, and the job it is busy with.

    Args:
        log: file for what the process prints.
        cuda_device: the only CUDA device that it sees, as CUDA_VISIBLE_DEVICES names it.
    """

    def __init__(self, log: Path, cuda_device: str | None) -> None:
        self._log = log
        # spawn: a forked child would share the parent's CUDA state and its threads' locks
        context = get_context("spawn")
        self.connection, workers_end = context.Pipe()
        self.process = context.Process(target=serve, args=(workers_end, str(log), cuda_device))
        self.process.start()
        workers_end.close()
        self.cuda_device = cuda_device
        self._out_of_memory = _out_of_memory_kills()
        self.job: Job | None = None
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
            info: WorkerInfo = self._receive()[1]
        except (EOFError, ConnectionError) as error:
            raise HarnessError(f"a worker {''.join(self.end())}") from error
        return info

    @property
    def is_ready(self) -> bool:
        """Whether ``info`` would not wait."""
        return "info" in vars(self) or self.connection.poll()

    def call(
        self,
        function: Callable[[CaseRunner, Options], Reply],
        options: Options,
        timeout_s: float,
        on_update: Callable[[Any], None],
    ) -> Reply:
        """Run a function in the worker and wait for what it returns.

        Raises:
            TimeoutError: it did not return in time.
            EOFError, ConnectionError: the process has ended.
            HarnessError: the worker reports a bug.
        """
        assert self.info  # the worker is ready: the function's time starts now
        self.connection.send((function, options))
        reply: Reply = self._reply(monotonic() + timeout_s, on_update)
        return reply

    def start(self, job: Job, timeout_s: float) -> None:
        """Send a job without waiting for its record."""
        assert self.info  # the worker is ready: the case's time starts now
        self.job = job
        self.deadline = monotonic() + timeout_s
        self.measured = ()
        with suppress(ConnectionError):  # if the process has ended, ``record`` raises
            self.connection.send((run_job, job))

    def record(self) -> Record:
        """Return the record of the job that was started, once it is there; raises as ``call``."""

        def keep(update: KnownErrors) -> None:
            self.measured = update

        record: Record = self._reply(self.deadline, keep)
        return record

    def _reply(self, deadline: float, on_update: Callable[[Any], None]) -> Any:
        while self.connection.poll(max(0.0, deadline - monotonic())):
            kind, value = self._receive()
            if kind == _REPLY:
                return value
            on_update(value)
        raise TimeoutError

    def _receive(self) -> tuple[str, Any]:
        kind, value = self.connection.recv()
        if kind == _BUG:
            raise HarnessError(
                f"{value}\nthis is a bug in layernorm-bench; what was measured is kept"
            )
        return kind, value

    def end(self) -> tuple[str, str]:
        """End the process; return how it ended, and its last line of output after a semicolon."""
        self.process.join(timeout=0.5)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        how, last_line = how_it_ended(code, self._log)
        if code == -signal.SIGKILL and _out_of_memory_kills() > self._out_of_memory:
            how += ", while the kernel ended processes for lack of memory"
        return how, last_line


def how_it_ended(code: int | None, log: Path) -> tuple[str, str]:
    """Return how a process ended, by its exit code, and its last line after a semicolon, if any."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line]
    how = "had to be ended" if code is None else f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    return how, f"; its last line was: {lines[-1][:200]}" if lines else ""


def _out_of_memory_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory; 0 if it does not say."""
    try:
        fields = _VMSTAT.read_text().split()
    except OSError:
        return 0
    return int(fields[fields.index("oom_kill") + 1]) if "oom_kill" in fields else 0

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
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from harness.records import Budget, Case, Environment, Measurement, Record
from harness.records.refusal import Refusal

if TYPE_CHECKING:
    from harness.run.case import CaseRunner

START_S = 300  # trade-off: importing torch takes seconds, but much longer on a machine that swaps
TIMINGS = frozenset({Measurement.LATENCY, Measurement.COLD})
"""Measurements that differ from process to process."""

REPLY, UPDATE, BUG = "reply", "update", "bug"  # kinds of messages to the parent
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
        pass
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
        connection.send((BUG, format_exc()))


def _answer_all(connection: Connection) -> None:
    import gc

    gc.disable()  # a collection inside a sample would be timed; during imports they take 0.4 s

    import torch

    torch.set_num_threads(1)  # before the usual state of the process is recorded

    from harness.run.case import CaseRunner
    from harness.run.integrity import Trusted

    info = worker_info()
    connection.send((REPLY, info))
    runner = CaseRunner(
        info.environment.fingerprint,
        trusted=Trusted(),
        report=lambda update: connection.send((UPDATE, update)),
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

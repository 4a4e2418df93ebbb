"""The worker process: it runs cases for its parent, so that a crash costs one case.

Imports nothing heavy before it is told which device it is for, since the visible devices have to
be set before torch is imported. What implementations print goes to a log file, never to the
results on standard output.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection
from time import monotonic
from traceback import format_exc

from harness.records import Budget, Case, Direction, Environment, Measurement
from harness.regression.ab.revision import Checkout

__all__ = [
    "Bug",
    "ExplainCase",
    "Found",
    "Hello",
    "LookUp",
    "Progress",
    "Resolve",
    "RunCase",
    "Standing",
    "VerifyTarget",
    "serve",
]


_LOST_DEVICE = 70  # ours: exit code; sysexits.h has it for an internal error
_TELL_S = 0.3  # between accounts of what was found so far: each takes a millisecond
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker finds when it starts."""

    environment: Environment
    implementations: dict[str, frozenset[str]]
    """Names, each with the kinds of device it is written for."""
    distributions: tuple[str, ...]
    layouts: tuple[str, ...]
    grad_outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    unavailable: dict[str, str]
    """Device kinds that cannot be used here, and why."""
    device_counts: dict[str, int]
    """Devices of each kind that can."""
    peers: dict[str, frozenset[str]] = field(default_factory=dict)
    """Names of everybody else's implementations, likewise."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask whether an implementation can be found; answered by why not, or None."""

    target: str
    init: tuple[tuple[str, object], ...] = ()
    """Arguments of its constructor, by name."""


@dataclass(frozen=True, slots=True)
class RunCase:
    """Ask for a case's record."""

    case: Case
    measurements: Collection[Measurement]
    budget: Budget
    rival: str | None = None
    """Target that it is timed beside, alone; None is the usual reference, and copies."""
    checkout: Checkout | None = None
    """Of the revision that targets of a base are found in; without one, in this."""


class Standing(Enum):
    """Whether a revision has a target."""

    PRESENT = "present"
    ABSENT = "absent"
    """There is no such thing."""
    INCOMPARABLE = "incomparable"
    """It is there, and declares what is not known now."""
    BROKEN = "broken"
    """It cannot be imported."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask what a revision has of some targets; answered by a :class:`Found` for each."""

    checkout: Checkout | None
    """None for the revision that is run."""
    targets: tuple[str, ...]
    listings: tuple[str, ...] = ()
    """Tuples of its package, such as ALL, of whose members it is to tell too."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a revision has of a target."""

    target: str
    standing: Standing
    reason: str = ""
    """Why it is not there, or cannot be compared."""
    devices: frozenset[str] = frozenset()
    """Kinds of device that it is written for, if it is there."""
    listing: str | None = None
    """The tuple that it was found in; None if it was asked for by its name."""


@dataclass(frozen=True, slots=True)
class VerifyTarget:
    """Ask for a target's verdict; :class:`Progress` comes before it."""

    target: str
    quick: bool
    dtypes: tuple[str, ...]
    directions: tuple[Direction, ...]
    device: str
    huge: bool = False
    """Whether to try more elements than 31 bits count."""
    eps: float | None = None
    """This and the next three are what the user says of the target."""
    normalized_dims: int | None = None
    channels_first: bool = False
    init: tuple[tuple[str, object], ...] = ()
    time_budget_s: float | None = None
    """After which no case is begun; None for no end."""
    crashed: tuple[tuple[Case, str], ...] = ()
    """Cases that ended a process before, and how: they are not tried again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a verification is: sent while it goes on, for when its process is ended."""

    case: Case | None = None
    """The case that is begun."""
    verdict: object = None
    """What was found so far; None if that has not changed."""


@dataclass(frozen=True, slots=True)
class ExplainCase:
    """Ask how one case comes out; answered by an explanation, or by why there is none."""

    case: Case
    row: int | None


@dataclass(frozen=True, slots=True)
class Bug:
    """The harness itself failed; the run has to stop."""

    traceback: str


def serve(connection: Connection, log: str, cuda_device: str | None) -> None:
    """Answer requests until the parent closes the connection.

    Args:
        connection: to the parent.
        log: file that takes standard output and standard error.
        cuda_device: the CUDA device to be alone with; None for a worker that uses the CPU.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # and so is what a batch system sends to all
    if sys.platform == "linux":  # a parent that is killed cannot end us
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if cuda_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = cuda_device
    try:
        _answer(connection)
    except (EOFError, BrokenPipeError):  # the parent has gone
        return
    except Exception as error:  # noqa: BLE001 - not handled: reported to the parent
        from harness.numerics.computed import is_of_lost_device

        if is_of_lost_device(error):  # the case's doing, and the end of this process alone
            _say(str(error).partition("\n")[0])
            os._exit(_LOST_DEVICE)
        connection.send(Bug(format_exc()))


def _answer(connection: Connection) -> None:
    import gc

    import torch

    import implementations
    from harness.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS
    from harness.measure.devices import DEVICES
    from harness.measure.environment import read_environment
    from harness.run.both import look_up, run_job
    from harness.run.case import CaseRunner

    torch.set_num_threads(1)
    devices = {kind: make() for kind, make in DEVICES.items()}
    unavailable = {kind: why for kind, each in devices.items() if (why := each.unavailable())}
    environment = read_environment()
    connection.send(
        Hello(
            environment=environment,
            implementations={each.name: each.devices for each in implementations.ALL},
            distributions=tuple(DISTRIBUTIONS),
            layouts=tuple(LAYOUTS),
            grad_outputs=tuple(GRAD_OUTPUTS),
            parameters=tuple(PARAMETERS),
            unavailable=unavailable,
            device_counts={
                kind: torch.cuda.device_count() if kind == "cuda" else 1
                for kind in devices.keys() - unavailable.keys()
            },
            peers={each.name: each.devices for each in implementations.PEERS},
        )
    )
    runner = CaseRunner(environment.fingerprint)
    # the collector would run inside samples; what is alive now need never be looked at again
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        request = connection.recv()
        if isinstance(request, Resolve):
            connection.send(_unresolved(request))
        elif isinstance(request, VerifyTarget):
            connection.send(_verdict(request, connection.send))
        elif isinstance(request, ExplainCase):
            connection.send(_explanation(request))
        elif isinstance(request, LookUp):
            connection.send(look_up(request))
        else:
            connection.send(run_job(runner, request))
            gc.collect(1)  # graphs of the case may be cycles; the oldest generation is left alone


def _verdict(request: VerifyTarget, send: Callable[[object], None]) -> object:
    from harness.measure.devices import DEVICES
    from harness.verify import verify

    last_s = monotonic()

    def tell(verdict: Callable[[], object]) -> None:
        nonlocal last_s
        if monotonic() - last_s > _TELL_S:
            send(Progress(verdict=verdict()))
            last_s = monotonic()

    free = DEVICES[request.device]().free_bytes() if request.huge else None
    return verify(
        request.target,
        quick=request.quick,
        dtypes=request.dtypes,
        directions=request.directions,
        device=request.device,
        # where the system does not say, it is tried
        huge_bytes=sys.maxsize if request.huge and free is None else free,
        eps=request.eps,
        normalized_dims=request.normalized_dims,
        channels_first=request.channels_first,
        init=dict(request.init),
        time_budget_s=request.time_budget_s,
        crashed=dict(request.crashed),
        on_case=lambda case: send(Progress(case=case)),
        on_progress=tell,
    )


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _explanation(request: ExplainCase) -> object:
    import implementations
    from harness.inputs import UnrepresentableError
    from harness.verify.explain import explain

    try:
        found = implementations.find(request.case.implementation)
        return explain(found, request.case, request.row)
    except (LookupError, UnrepresentableError) as error:
        return str(error.args[0])


def _unresolved(request: Resolve) -> str | None:
    import implementations

    try:
        options = implementations.CallOptions(init=dict(request.init))
        implementations.find(request.target, options)
    except implementations.TargetError as error:
        return str(error)
    return None

"""The worker process: it answers its parent's requests, so that a crash costs one of them.

torch is imported only once CUDA_VISIBLE_DEVICES is set. What implementations print goes to a log
file, never to the results on standard output.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection
from traceback import format_exc

from harness.run.messages import Bug, Progress, Request, WorkerInfo
from harness.run.place import Place

__all__ = ["serve", "worker_info"]

_LOST_DEVICE = 70  # exit code; EX_SOFTWARE, internal error, in <sysexits.h>
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def serve(connection: Connection, log: str, place: Place) -> None:
    """Answer requests until the parent closes the connection.

    Args:
        connection: to the parent.
        log: file that takes standard output and standard error.
        place: what it may use of the machine.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    # the parent handles Ctrl-C and a batch system's SIGTERM, and ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # a parent that is killed cannot end this process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if place.cuda_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place.cuda_device
    if place.cpus is not None:  # memory then comes from the same socket
        os.sched_setaffinity(0, place.cpus)
    try:
        _answer_all(connection)
    except (EOFError, BrokenPipeError):  # the parent has gone
        return
    except Exception as error:  # noqa: BLE001 - not handled: reported to the parent
        from harness.numerics.computed import is_of_lost_device

        if is_of_lost_device(error):  # caused by the case; ends this process and no other
            sys.stderr.write(str(error).partition("\n")[0] + "\n")
            sys.stderr.flush()
            os._exit(_LOST_DEVICE)
        connection.send(Bug(format_exc()))


def _answer_all(connection: Connection) -> None:
    import gc

    gc.disable()  # a collection inside a sample would be timed; during imports they take 0.4 s

    import torch

    from harness.run.case import CaseRunner
    from harness.run.integrity import Trusted

    torch.set_num_threads(1)
    info = worker_info()
    connection.send(info)
    runner = CaseRunner(info.environment.fingerprint, trusted=Trusted())
    gc.freeze()  # what is alive now is never examined again

    def report(update: object) -> None:
        connection.send(Progress(update))

    while True:
        request: Request[object, object] = connection.recv()
        connection.send(request.answer(runner, report))
        gc.collect(1)  # autograd graphs may be cycles; the oldest generation is left alone


def worker_info() -> WorkerInfo:
    """Return what exists in this process and on this machine."""
    import torch

    import implementations
    from harness.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS
    from harness.measure.devices import DEVICES
    from harness.measure.environment import read_environment

    unavailable = {kind: why for kind, make in DEVICES.items() if (why := make().unavailable())}
    return WorkerInfo(
        environment=read_environment(),
        implementations={each.name: each.devices for each in implementations.ALL},
        distributions=tuple(DISTRIBUTIONS),
        layouts=tuple(LAYOUTS),
        grad_outputs=tuple(GRAD_OUTPUTS),
        parameters=tuple(PARAMETERS),
        unavailable=unavailable,
        device_counts={
            kind: torch.cuda.device_count() if kind == "cuda" else 1
            for kind in DEVICES.keys() - unavailable.keys()
        },
        peers={each.name: each.devices for each in implementations.PEERS},
    )

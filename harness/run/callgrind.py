"""The process, run under callgrind, that counts instructions for its parent.

Each count is read from a dump of callgrind's. What runs before a count moves the objects created
after it, which changes the count (see :mod:`harness.run.instructions`). So nothing here may depend
on time or chance.
"""

from __future__ import annotations

import ctypes
import gc
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import implementations
from harness.inputs import UnrepresentableError, make_inputs
from harness.measure.allocator import use_steady_allocation
from harness.numerics.computed import ImplementationError, bind, grad_mode
from harness.records import Case
from implementations.torch_private import toggle_counting, toggle_counting_and_dump

__all__ = ["serve_counts", "total_of"]

_COUNTED = 20_000_000  # trade-off: instructions per count; takes half a second under callgrind
_MOST_CALLS, _FEWEST_CALLS = 100, 3  # after a hundred calls Python has specialised its bytecode
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def serve_counts(connection: Connection, dumps: Iterator[Path]) -> None:
    """Answer each case with the instructions per call, or why there are none.

    Args:
        connection: to the parent; the first message says that torch is imported. Closing it ends
            this.
        dumps: files that callgrind writes, in this order.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a parent that is killed ends us
    use_steady_allocation()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    connection.send("ready")
    # wait busily, since vgdb's command does not reach a process that sleeps; not by
    # connection.poll, which allocates objects at each call
    while not select.select([connection], [], [], 0)[0]:
        pass
    with suppress(EOFError):
        while True:
            connection.send(_count(connection.recv(), dumps))
            gc.collect(1)  # autograd graphs may be cycles; the oldest generation is left alone


def total_of(dump: str) -> int:
    """Return the number of instructions in a dump of callgrind's.

    Raises:
        ValueError: it holds no number, or none were counted.
    """
    total = re.search(r"^totals: (\d+)$", dump, re.MULTILINE)
    if total is None or int(total[1]) == 0:
        raise ValueError("callgrind counted nothing")
    return int(total[1])


def _count(case: Case, dumps: Iterator[Path]) -> int | str:
    try:
        function = implementations.find(case.implementation).function
        with grad_mode(case):
            call = bind(function, case, make_inputs(case).tensors)
            call()
            once = _instructions(call, 1, dumps)
            calls = min(max(_COUNTED // once, _FEWEST_CALLS), _MOST_CALLS)
            for _ in range(calls):
                call()
            loop = _instructions(_nothing, calls, dumps)
            return round((_instructions(call, calls, dumps) - loop) / calls)
    except (ImplementationError, UnrepresentableError, implementations.TargetError) as why:
        return str(why)


def _nothing() -> None: ...


def _instructions(call: Callable[[], object], calls: int, dumps: Iterator[Path]) -> int:
    """Return the instructions of ``calls`` calls and of the loop around them."""
    repeats = range(calls)
    toggle_counting()
    try:
        for _ in repeats:
            call()
    finally:  # also if the call raises
        toggle_counting_and_dump()
        dump = next(dumps)
    return total_of(dump.read_text())


if __name__ == "__main__":
    serve_counts(Connection(int(sys.argv[1])), (Path(f"{sys.argv[2]}.{n}") for n in count(1)))

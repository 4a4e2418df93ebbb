"""Busy neighbours: processes that keep every core busy while something else is timed.

One process per core works in bursts with rests in between, as builds and tests do. One more copies
192 MB back and forth, which uses memory bandwidth and evicts the caches. Together with the process
that is timed there are more processes than cores, so no core is idle.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from time import perf_counter, sleep

__all__ = ["busy_neighbours"]

_COPIED_BYTES = 192_000_000  # several times a usual last-level cache
# bursts of several scheduler slices (4 ms), rests of at most five
_WORK_S, _REST_S = (0.02, 0.2), (0.0, 0.02)
_SETTLE_S = 2.0  # until all processes have started and faulted in their memory
_PATIENCE_S = 5.0


@contextmanager
def busy_neighbours() -> Iterator[None]:
    """Keep the cores busy for as long as the block lasts; end what was started in any case."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kinds = ["spin"] * (cores or 1) + ["copy"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, kind in enumerate(kinds):
            command = [sys.executable, __file__, kind, str(number)]
            # sessions of their own: Ctrl-C must reach this process, which ends them
            started.append(subprocess.Popen(command, start_new_session=True))
        sleep(_SETTLE_S)
        ended = [process.args for process in started if process.poll() is not None]
        if ended:
            raise RuntimeError(f"a neighbour ended at once: {ended}")
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _spin(random: Random) -> None:
    """Work for a while, and rest for a shorter one."""
    until = perf_counter() + random.uniform(*_WORK_S)
    while perf_counter() < until:
        pass
    sleep(random.uniform(*_REST_S))


def main() -> None:
    kind, seed = sys.argv[1:]
    random = Random(seed)
    parent = os.getppid()
    size = _COPIED_BYTES if kind == "copy" else 0
    here, there = memoryview(bytearray(size)), memoryview(bytearray(size))
    while os.getppid() == parent:  # whoever started this is still there
        if kind == "spin":
            _spin(random)
        else:
            there[:] = here
            here[:] = there


if __name__ == "__main__":
    main()

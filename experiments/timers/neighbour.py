"""Busy neighbours: processes that keep every core busy while something else is timed.

As many as there are cores work in bursts and rest in between, as builds and tests do; one more
copies 192 MB back and forth, which takes memory bandwidth and what the caches hold. With what is
being timed that is more than the cores can do at once, so no core is ever idle.
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
_WORK_S, _REST_S = (0.02, 0.2), (0.0, 0.02)  # ours: several scheduler slices, and a few at most
_SETTLE_S = 2.0  # until all have started, and their memory is there
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
            # in a session of their own: an interrupt from the keyboard is for us to pass on
            started.append(subprocess.Popen(command, start_new_session=True))
        sleep(_SETTLE_S)
        ended = [each.args for each in started if each.poll() is not None]
        if ended:
            raise RuntimeError(f"a neighbour ended at once: {ended}")
        yield
    finally:
        for each in started:
            each.terminate()
        for each in started:
            try:
                each.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


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

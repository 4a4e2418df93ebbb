"""Instructions that a call executes, counted by valgrind's callgrind where that is installed.

What else the machine does shows in no count, so that it tells small changes apart; it is blind to
caches, memory and page faults. It is that of the AVX2 kernels, whatever the processor: valgrind
hides AVX-512 from torch. All cases are counted in one process, since torch takes long to start
under valgrind: see :mod:`harness.run.callgrind`. What the calls return is not looked at.

Repeated with nothing changed, a count is the same to the instruction. Other cases before it,
another environment or another file where Python looks for modules move objects to other addresses,
which decide how long Python looks for a name: counts of small calls then differ by about a percent.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.records import Case, Mode

__all__ = ["count_instructions", "unavailable"]

_START_S, _SWITCH_S, _END_S = 600.0, 60.0, 10.0  # ours: on a quiet machine 12 s and moments
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",  # also under a valgrind that hides less
    "OMP_NUM_THREADS": "1",  # other threads are not counted, and take long to start
    "PYTHONHASHSEED": "0",  # looking a name up takes longer where hashes collide
}


def unavailable() -> str | None:
    """Why instructions cannot be counted here, or None. Imports torch where there is valgrind."""
    if sys.platform != "linux":
        return f"instructions are counted on Linux only, with valgrind; this is {sys.platform}"
    for name in ("valgrind", "vgdb"):
        if shutil.which(name) is None:
            return f"there is no {name} on the PATH (install valgrind: apt install valgrind)"
    import torch

    from implementations import torch_private

    if not torch_private.can_count_instructions():
        return f"torch {torch.__version__} is built without callgrind (install a wheel from PyPI)"
    return None


def count_instructions(cases: Sequence[Case], timeout_s: float) -> Iterator[tuple[Case, int | str]]:
    """Yield with each case, as it is done, the instructions of one call, or why there are none.

    Counted is what the calling thread executes in user space, once the call is warm and without
    the loop around it. A case that takes its process down, or longer than ``timeout_s``, is the
    last to be counted: those after it have that for a reason.
    """
    if why := unavailable():
        yield from ((case, why) for case in cases)
        return
    with closing(_Counter()) as counter:
        for case in cases:
            yield case, _refusal(case) or counter.count(case, timeout_s)


def _refusal(case: Case) -> str | None:
    """Why what would be counted is not what the case asks for."""
    if case.device != "cpu":
        return f"instructions are counted on the CPU, not on {case.device}"
    if case.mode is not Mode.EAGER:
        return "compiled code is for this processor, and valgrind is another (count it eager)"
    if case.threads != 1:
        return f"only the calling thread of {case.threads} is counted (count with one thread)"
    return None


class _Counter:
    """The process that counts, from the parent's side."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="layernorm-bench-")
        folder = Path(self._folder.name)
        self._log, self._prefix = folder / "log", f"--vgdb-prefix={folder / 'vgdb'}"
        self._connection, theirs = Pipe()
        command = [
            # instructions are looked at later: torch is imported in a quarter of the time
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
            *(f"--callgrind-out-file={folder / 'dump'}", f"--log-file={folder / 'valgrind'}"),
            *(self._prefix, sys.executable, "-P", "-m", "harness.run.callgrind"),
            *(str(theirs.fileno()), str(folder / "dump")),
        ]
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, **_ENVIRONMENT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the parent's, which ends it
            )
        theirs.close()
        self._is_counting = False
        self._over: str | None = None

    def count(self, case: Case, timeout_s: float) -> int | str:
        if self._over:
            return self._over
        try:
            if not self._is_counting:
                self._switch_on()
            self._connection.send(case)
            if self._connection.poll(timeout_s):
                answer: int | str = self._connection.recv()
                return answer
            why = f"not done after {timeout_s:g} s"
        except (EOFError, ConnectionError):
            why = f"its process {self._last_words()}"
        except subprocess.SubprocessError as error:
            why = f"valgrind did not begin to count: {error}"
        self.close()
        self._over = f"not counted, since counting ended with {case.id}: {why}"
        return why

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._folder.cleanup()

    def _switch_on(self) -> None:
        """Wait until torch is imported, then have valgrind look at instructions."""
        if not self._connection.poll(_START_S):
            raise subprocess.TimeoutExpired("importing torch", _START_S)
        self._connection.recv()
        command = ["vgdb", self._prefix, f"--pid={self._process.pid}", "instrumentation", "on"]
        subprocess.run(command, check=True, capture_output=True, timeout=_SWITCH_S)
        self._is_counting = True

    def _last_words(self) -> str:
        """Say how the process ended by itself, as far as it did."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.poll()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        said = f"; its last line was: {lines[-1][:200]}" if lines else ""
        if code is None:
            return f"had to be ended{said}"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else None
        return f"{how or f'ended with exit code {code}'}{said}"

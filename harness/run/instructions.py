"""Count the instructions of a call with valgrind's callgrind, where that is installed.

A count does not depend on what else the machine does, so it tells small changes apart; but it does
not see caches, memory and page faults. It is the count of the AVX2 kernels on any processor, since
valgrind hides AVX-512 from torch. torch takes about a minute to start under valgrind. All cases are
therefore counted in one process, which runs this module, and not by torch's own callgrind
collector, which starts one process per case. The results of the calls are not checked.

Repeated with nothing changed, a count is equal to the instruction. Other cases before it, other
environment variables or other files on Python's path move objects to other addresses, on which
Python's look-up of names depends: counts of small calls then differ by about a percent.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.records import Case, Mode
from harness.run.fleet import REPLY, EndedError, HarnessError, WorkerProcess

_SWITCH_S = 60.0  # trade-off: far above the time on a quiet machine, a fraction of a second
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",  # also under a valgrind that hides less
    "OMP_NUM_THREADS": "1",  # only the calling thread is counted; others take long to start
    "PYTHONHASHSEED": "0",  # a look-up of a name takes longer where hashes collide
}
_COUNTED = 20_000_000  # trade-off: instructions per count; takes half a second under callgrind
_MOST_CALLS, _FEWEST_CALLS = 100, 3  # after a hundred calls Python has specialised its bytecode
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def unavailable() -> str | None:
    """Return why instructions cannot be counted here, or None; imports torch if valgrind exists."""
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
    """Yield each case with the instructions of one call, or why they were not counted.

    A count is of the calling thread in user space, of a warm call, without the loop around it. A
    case that crashes its process or takes longer than ``timeout_s`` ends the counting, and is the
    reason why the cases after it are not counted.
    """
    if why := unavailable():
        yield from ((case, why) for case in cases)
        return
    with TemporaryDirectory(prefix="layernorm-bench-") as folder:
        log = Path(folder) / "log"
        log.touch()
        counter = WorkerProcess(log, None, _exec_valgrind)
        is_counting, ended_by = False, ""
        try:
            for case in cases:
                answer: int | str = _refusal(case) or ended_by
                if not answer:
                    try:
                        if not is_counting:
                            _switch_on(counter, log)
                            is_counting = True
                        counter.send(_count, case, timeout_s)
                        answer = counter.reply()
                    except (EndedError, HarnessError, subprocess.SubprocessError) as error:
                        answer = f"it {error}"
                        ended_by = f"not counted, since counting ended with {case.id}: {answer}"
                yield case, answer
        finally:
            counter.kill()


def _switch_on(counter: WorkerProcess, log: Path) -> None:
    """Wait until torch is imported, then switch the instrumentation on."""
    assert counter.info
    command = ["vgdb", _prefix(log), f"--pid={counter.process.pid}", "instrumentation", "on"]
    subprocess.run(command, check=True, capture_output=True, timeout=_SWITCH_S)


def _prefix(log: Path) -> str:
    return f"--vgdb-prefix={log.with_name('vgdb')}"


def _refusal(case: Case) -> str | None:
    """Return why a count would not be that of the case, or None."""
    if case.device != "cpu":
        return f"instructions are counted on the CPU, not on {case.device}"
    if case.mode is not Mode.EAGER:
        return "compiled code is made for this processor, which valgrind is not (count it eager)"
    if case.threads != 1:
        return f"only the calling thread of {case.threads} is counted (count with one thread)"
    return None


def _exec_valgrind(connection: Connection, log: str, _: object) -> None:
    """Replace this process by valgrind, which runs this module; the log takes what they print."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.setsid()  # the parent handles Ctrl-C, and ends this process
    os.set_inheritable(connection.fileno(), True)
    dump, messages = (Path(log).with_name(name) for name in ("dump", "valgrind"))
    command = [
        # switched on later: torch is then imported in a quarter of the time
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
        *(f"--callgrind-out-file={dump}", f"--log-file={messages}", _prefix(Path(log))),
        *(sys.executable, "-P", "-m", "harness.run.instructions"),
        *(str(connection.fileno()), str(dump)),
    ]
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    os.execvpe(command[0], command, {**os.environ, "PYTHONPATH": path, **_ENVIRONMENT})


# --- the process under callgrind. Nothing here may depend on time or chance: what runs before a
# count moves the objects created after it, which changes the count.


def serve_counts(connection: Connection, dumps: Iterator[Path]) -> None:
    """Answer each case with the instructions per call, or why there are none.

    Args:
        connection: to the parent; the first message says that torch is imported.
        dumps: files that callgrind writes, in this order.
    """
    import torch

    from harness.measure import use_steady_allocation

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a parent that is killed ends us
    use_steady_allocation()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    connection.send((REPLY, "ready"))
    # wait busily, since vgdb's command does not reach a process that sleeps; not by
    # connection.poll, which allocates objects at each call
    while not select.select([connection], [], [], 0)[0]:
        pass
    with suppress(EOFError):
        while True:
            count_of, case = connection.recv()
            connection.send((REPLY, count_of(case, dumps)))
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
    import implementations
    from harness.cases.inputs import make_inputs
    from harness.run.attempt import FAILURES, failure_of
    from harness.run.call import bind, grad_mode

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
    except FAILURES as error:
        return failure_of(error)[1]


def _nothing() -> None: ...


def _instructions(call: Callable[[], object], calls: int, dumps: Iterator[Path]) -> int:
    """Return the instructions of ``calls`` calls and of the loop around them."""
    from implementations.torch_private import toggle_counting, toggle_counting_and_dump

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

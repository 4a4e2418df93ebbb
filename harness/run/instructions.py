"""Count the instructions of a call with valgrind's callgrind, where that is installed.

A count does not depend on what else the machine does, so it tells small changes apart; but it does
not see caches, memory, page faults, waiting and the kernels that use AVX-512: valgrind has no
AVX-512, and torch then takes its AVX2 kernels. torch takes about twenty seconds to start under
valgrind, so two processes start, and fork a child per case. Every case is counted from the state of
such a process, so neither the order nor the other cases matter, and a crash costs one case. torch's
own callgrind collector starts a process per case. The results of the calls are not checked.

How long an allocation takes depends on which memory is free, and so on all that ran before: other
packages, the environment, the version of this module. Therefore all free memory is taken before a
count, up to a fixed address. Python's table of attributes depends on addresses, too, so a short
call is counted three times. experiments/gates/README.md says by how much counts differ.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from ctypes import c_size_t
from functools import cache, partial
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from harness.records import Case, Direction, Mode
from harness.run.fleet import REPLY, EndedError, HarnessError, WorkerProcess

if TYPE_CHECKING:
    from torch import Tensor

    from implementations.contract import Implementation

_SWITCH_S = 60.0  # trade-off: far above the time on a quiet machine, a fraction of a second
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",  # also under a valgrind that hides less
    "LD_PRELOAD": "",  # only the C library's own allocator can be filled
    "OMP_NUM_THREADS": "1",  # only the calling thread is counted; others take long to start
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # it reads the metadata of every package
    "PYTHONHASHSEED": "0",  # a look-up of a name takes longer where hashes collide
}
if platform.machine() in {"x86_64", "AMD64"}:
    # what is built here for this processor may use AVX-512, too
    _ENVIRONMENT["LAYERNORM_BENCH_CFLAGS"] = "-march=x86-64-v3"
_COUNTED = 5_000_000  # trade-off: instructions per count; takes a tenth of a second under callgrind
_MOST_CALLS, _FEWEST_CALLS = 50, 2  # after fifty calls Python has specialised its bytecode
_COUNTS, _SHORT = 3, 5_000_000  # the least of three for a call of fewer instructions than this
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_PROCESSES = 2  # trade-off: each takes 20 s to start, and half a gigabyte
_FORK_S = 30.0  # trade-off: far above what a fork takes on a busy machine
_CLOSED = 3  # exit code of the child that finds the connection closed
# bytes: the heap is filled up to a multiple. A process that has imported torch takes less than the
# first, and a count less than the second, so the address is always the same
_PROCESS_BOUNDARY, _CASE_BOUNDARY = 1 << 29, 1 << 26
_MOST_CACHED = 1032  # bytes of the largest block that glibc keeps at hand when it is freed


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


def count_instructions(
    cases: Sequence[Case], timeout_s: float, find: Callable[[str], Implementation] | None = None
) -> Iterator[tuple[Case, int | str]]:
    """Yield each case with the instructions of one call, or why they were not counted.

    A count is of the calling thread in user space, of a warm call, without the loop around it.

    Args:
        cases: on the CPU.
        timeout_s: a case that takes longer, or that crashes, has a reason instead of a count.
        find: returns a target by its name, and can be pickled; the default is that of
            ``implementations``. All targets are found before the first count.
    """
    if why := unavailable():
        yield from ((case, why) for case in cases)
        return
    names = tuple(dict.fromkeys(case.implementation for case in cases))
    preload = pickle.dumps((find, names)).hex()
    with ExitStack() as stack:
        count_of = partial(_count, find=find)
        made = [_Counter(count_of, preload, timeout_s) for _ in range(min(_PROCESSES, len(cases)))]
        counters = [stack.enter_context(closing(counter)) for counter in made]
        for first in range(0, len(cases), _PROCESSES):
            some = cases[first : first + _PROCESSES]
            for counter, case in zip(counters, some, strict=False):
                counter.ask(case)
            for counter, case in zip(counters, some, strict=False):
                yield case, counter.answer()


class _Counter:
    """The parent's side of a process under callgrind, which counts one case after the other."""

    def __init__(self, count_of: Callable[..., int | str], preload: str, timeout_s: float) -> None:
        self._count_of, self._timeout_s = count_of, timeout_s
        self._folder = TemporaryDirectory(prefix="layernorm-bench-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        self._log.touch()
        self._process = WorkerProcess(self._log, None, partial(_exec_valgrind, preload=preload))
        self._is_counting = False
        self._known: str | None = None  # the answer, where no count is waited for
        self._ended_by = ""

    def ask(self, case: Case) -> None:
        """Have a case counted; its answer must be taken before the next."""
        from harness.cases.inputs import make_inputs

        self._known = _refusal(case) or self._ended_by or None
        if self._known is not None:
            return
        with self._ends():
            if not self._is_counting:
                _switch_on(self._process, self._log)
                self._is_counting = True
            # made and pickled here, since callgrind takes fifty times as long; not by the
            # connection, which would pass tensors in shared memory
            inputs = pickle.dumps(make_inputs(case).tensors)
            options = case, inputs, self._timeout_s
            self._process.send(self._count_of, options, self._timeout_s + _FORK_S)

    def answer(self) -> int | str:
        """Return the count of the case, or why there is none."""
        if self._known is None:
            with self._ends():
                counted: int | str = self._process.reply()
                return counted
        assert self._known is not None  # by _ends
        return self._known

    @contextmanager
    def _ends(self) -> Iterator[None]:
        """Take an error of the process as the answer to this case and to all later ones."""
        try:
            yield
        except (EndedError, HarnessError, subprocess.SubprocessError) as error:
            self._known = self._ended_by = f"counting ended, since the process that counts {error}"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._folder.cleanup()


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


def _exec_valgrind(connection: Connection, log: str, _: object, preload: str) -> None:
    """Replace this process by valgrind, which runs this module; the log takes what they print."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.setsid()  # the parent handles Ctrl-C, and ends this process
    _end_with_parent()  # valgrind inherits it
    os.set_inheritable(connection.fileno(), True)
    folder = Path(log).parent
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    options = str(folder / "dump"), preload, str(connection.fileno())
    command = [
        # switched on later: torch is then imported in a quarter of the time
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
        *(f"--callgrind-out-file={folder / 'dump'}", f"--log-file={folder / 'valgrind'}"),
        *(_prefix(Path(log)), sys.executable, "-P", "-m", "harness.run.instructions", *options),
    ]
    os.execvpe(command[0], command, {**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths})


# --- the process under callgrind. Nothing here may depend on time or chance: what runs before a
# count moves the objects created after it, which changes the count.


def serve_counts(dump: str, preload: str, connection: Connection) -> None:
    """Answer each case with the instructions per call, or why there are none.

    Args:
        dump: where callgrind writes its dumps; it appends a number.
        preload: a function that finds targets, and the names of those to find, as pickle in hex.
        connection: to the parent; the first message says that torch is imported.
    """
    import torch

    from harness.measure import use_steady_allocation

    use_steady_allocation()
    torch.set_num_threads(1)
    _warm_up()
    thread = Thread(target=_nothing)  # some packages start one; from then on the C library locks
    thread.start()
    thread.join()
    find, names = pickle.loads(bytes.fromhex(preload))
    # this package's own are found in each child, so that none depends on which others are counted
    for name in names if find else ():
        with suppress(Exception):  # its case will have the reason
            find(name)
    gc.collect()
    _fill_heap(_PROCESS_BOUNDARY)
    gc.freeze()
    gc.disable()
    connection.send((REPLY, "ready"))
    # wait busily, since vgdb's command does not reach a process that sleeps; not by
    # connection.poll, which allocates objects at each call
    while not select.select([connection], [], [], 0)[0]:
        pass
    _warm_up()  # what callgrind translates here, no child translates again
    while (code := _forked(connection, dump)) != _CLOSED:
        if code:
            connection.send((REPLY, f"it {_how(code)}"))


def _end_with_parent() -> None:
    """Have the system end this process when its parent ends; a fork does not inherit this."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _warm_up() -> None:
    """Import what a count needs, and have torch initialise what it does once."""
    import implementations
    from harness.cases.inputs import make_inputs
    from harness.run.call import bind, grad_mode

    for module in ("harness.run.attempt", "harness.run.instructions"):  # where pickle finds _count
        import_module(module)
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        case = Case(implementation="native", shape=(8, 64), direction=direction)
        tensors = pickle.loads(pickle.dumps(make_inputs(case).tensors))
        with grad_mode(case):
            bind(implementations.find(case.implementation).function, case, tensors)()


@cache  # since an object that is freed after the heap is filled would leave a hole
def _allocator() -> tuple[Any, Any]:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = [c_size_t], c_size_t, [c_size_t]
    return libc.malloc, libc.free


def _fill_heap(boundary: int) -> None:
    """Take all free memory of the C library up to an address that is a multiple of ``boundary``.

    How long an allocation takes depends on which blocks are free. Afterwards none is, whatever was
    allocated before, and the same calls find the same addresses.
    """
    malloc, free = _allocator()

    def end() -> int:
        address: int = malloc(2 * boundary)  # larger than any free block
        free(address)
        return address

    first = end()
    for size in (*range(1 << 16, 1 << 10, -1 << 10), *range(1 << 10, 0, -16)):
        while (address := malloc(size)) < first:
            pass
        if size > _MOST_CACHED:
            free(address)
    malloc(-end() % boundary - 8)  # and the eight bytes in which malloc keeps the size


def _renumber_types() -> None:
    """Have Python find attributes of types by other numbers.

    It keeps them in a table by the number of the type and the address of the name. Where two that
    a call uses have one place, each use takes a hundred instructions more.
    """
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(object))


def _forked(connection: Connection, dump: str) -> int:
    """Answer one case in a child; return the child's exit code, negative if a signal ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    _end_with_parent()
    try:
        count_of, (case, inputs, timeout_s) = connection.recv()
        signal.setitimer(signal.ITIMER_REAL, timeout_s)  # its signal ends the child
        connection.send((REPLY, count_of(case, pickle.loads(inputs), dump)))
        code = 0
    except EOFError:
        code = _CLOSED
    except Exception:  # noqa: BLE001 - a bug: printed, and the child ends with 1
        traceback.print_exc()
    finally:
        os._exit(code)


def _how(code: int) -> str:
    if code == -signal.SIGALRM:
        return "was not done in the time for one case"
    if code < 0:
        return f"took its process down, which was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def total_of(dump: str) -> int:
    """Return the number of instructions in a dump of callgrind's.

    Raises:
        ValueError: it holds no number, or none were counted.
    """
    total = re.search(r"^totals: (\d+)$", dump, re.MULTILINE)
    if total is None or int(total[1]) == 0:
        raise ValueError("callgrind counted nothing")
    return int(total[1])


def _count(
    case: Case, tensors: Sequence[Tensor], dump: str, find: Callable[[str], Implementation] | None
) -> int | str:
    import implementations
    from harness.run.attempt import FAILURES, failure_of
    from harness.run.call import bind, grad_mode

    dumps = (Path(f"{dump}.{number}") for number in count(1))
    try:
        function = (find or implementations.find)(case.implementation).function
        with grad_mode(case):
            call = bind(function, case, tensors)
            call()
            once = _instructions(call, 1, dumps)
            calls = min(max(_COUNTED // once, _FEWEST_CALLS), _MOST_CALLS)
            loop = _instructions(_nothing, calls, dumps)
            del call
            bind(function, case, tensors)()  # the first calls also free what was allocated before
            totals = []
            for _ in range(_COUNTS if once < _SHORT else 1):
                _fill_heap(_CASE_BOUNDARY)
                _renumber_types()
                call = bind(function, case, tensors)
                for _ in range(calls):
                    call()
                totals.append(_instructions(call, calls, dumps))
                del call
            return round((min(totals) - loop) / calls)
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
    serve_counts(sys.argv[1], sys.argv[2], Connection(int(sys.argv[3])))

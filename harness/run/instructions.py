"""Count the instructions of a call with valgrind's callgrind, where that is installed.

A count does not depend on what else the machine does, so it tells small changes apart; but it does
not see caches, memory, page faults, waiting and the kernels that use AVX-512: valgrind has no
AVX-512, and torch then takes its AVX2 kernels. torch takes about twenty seconds to start under
valgrind, so two processes start, and fork a child per case. Every case is counted from the state of
such a process, so neither the order nor the other cases matter, and a crash costs one case. torch's
own callgrind collector starts a process per case. The results of the calls are not checked.

Repeated with nothing changed, a count differs by at most 0.01 %. Objects at other addresses change
it, because Python's look-up of names and C's allocator depend on them. Therefore Python, its
modules and variables have names of fixed lengths, and only the modules that are needed are listed.
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
from functools import partial
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.records import Case, Direction, Mode
from harness.run.fleet import REPLY, START_S, EndedError, HarnessError, WorkerProcess

if TYPE_CHECKING:
    from torch import Tensor

    from implementations.contract import Implementation

_SWITCH_S = 60.0  # trade-off: far above the time on a quiet machine, a fraction of a second
# the rest of the environment would move all objects
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "XDG_CACHE_HOME", "CXX")
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",  # also under a valgrind that hides less
    # blocks merge as soon as they are freed: how long a search takes depends less on earlier calls
    "GLIBC_TUNABLES": "glibc.malloc.mxfast=0",
    "OMP_NUM_THREADS": "1",  # only the calling thread is counted; others take long to start
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # it reads the metadata of every package
    "PYTHONHASHSEED": "0",  # a look-up of a name takes longer where hashes collide
}
if platform.machine() in {"x86_64", "AMD64"}:
    # what is built here for this processor may use AVX-512, too
    _ENVIRONMENT["LAYERNORM_BENCH_CFLAGS"] = "-march=x86-64-v3"
_COUNTED = 5_000_000  # trade-off: instructions per count; takes a tenth of a second under callgrind
_MOST_CALLS, _FEWEST_CALLS = 50, 2  # after fifty calls Python has specialised its bytecode
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_PROCESSES = 2  # trade-off: each takes 20 s to start, and half a gigabyte
_FORK_S = 30.0  # trade-off: far above what a fork takes on a busy machine
_FOLDER, _CONNECTION = 60, 61  # descriptors: their numbers are in names, whose lengths matter
_BY_FOLDER = f"/proc/self/fd/{_FOLDER}"
_LENGTH = 1000  # characters, to which variables are filled up
_ENTRIES = 100  # folders of modules, to which their list is filled up; more are not searched
# what Python imports first in some environments, and no implementation
_OF_SITE = ("__", "_distutils_hack", "_virtualenv", "sitecustomize", "usercustomize")
_NEEDED, _MISSED = f"{_BY_FOLDER}/needed", f"{_BY_FOLDER}/missed"
_CLOSED = 3  # exit code of the child that finds the connection closed


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
        self._folder = TemporaryDirectory(prefix="layernorm-bench-")
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
    from fcntl import F_DUPFD, fcntl  # not on Windows

    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.setsid()  # the parent handles Ctrl-C, and ends this process
    _end_with_parent()  # valgrind inherits it
    folder = Path(log).parent
    # it may have one of these numbers, if the parent has many files open
    kept_apart = fcntl(connection.fileno(), F_DUPFD, _CONNECTION + 1)
    os.dup2(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), _FOLDER)
    os.dup2(kept_apart, _CONNECTION)
    # Python and the modules are found by names of the same length wherever they lie
    entries = [entry or os.getcwd() for entry in sys.path]
    links = {f"{number:03}": entry for number, entry in enumerate(entries, 1)}
    links |= {"python": os.path.realpath(sys.executable)}
    links |= {"base": sys.base_prefix, "exec": sys.base_exec_prefix}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join(f"{_BY_FOLDER}/{number:03}" for number in range(1, len(entries) + 1))
    variables = {**kept, "PYTHONPATH": path, **_ENVIRONMENT}
    arguments = ("-P", "-m", "harness.run.instructions", preload)
    # A first time, so that bytecode is always read from files, and never compiled. It says which
    # modules are needed: a folder of these alone comes first, since others are listed, too
    first = [sys.executable, *arguments]
    subprocess.run(first, env=variables, pass_fds=[_FOLDER], check=False, timeout=START_S)
    home = kept.get("HOME") or "/"
    variables |= {
        "PYTHONPATH": _NEEDED,
        "PATH": f"{kept.get('PATH', os.defpath)}{os.pathsep}".ljust(_LENGTH, "/"),
        "HOME": home.rjust(_LENGTH, "/"),
        "XDG_CACHE_HOME": kept.get("XDG_CACHE_HOME", f"{home}/.cache").rjust(_LENGTH, "/"),
        "PYTHONHOME": f"{_BY_FOLDER}/base:{_BY_FOLDER}/exec",
    }
    command = [
        # switched on later: torch is then imported in a quarter of the time
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
        *(f"--callgrind-out-file={folder / 'dump'}", f"--log-file={folder / 'valgrind'}"),
        *(_prefix(Path(log)), f"{_BY_FOLDER}/python", "-S", *arguments, str(_CONNECTION)),
    ]
    os.execvpe(command[0], command, variables)


# --- the process under callgrind. Nothing here may depend on time or chance: what runs before a
# count moves the objects created after it, which changes the count.


def serve_counts(preload: str, connection: Connection | None = None) -> None:
    """Answer each case with the instructions per call, or why there are none.

    Args:
        preload: a function that finds targets, and the names of those to find, as pickle in hex.
        connection: to the parent; the first message says that torch is imported. Without one, what
            counts need is imported, and that is all.
    """
    import torch

    import implementations
    from harness.measure import use_steady_allocation

    use_steady_allocation()
    torch.set_num_threads(1)
    _warm_up()
    if connection is not None:  # only now, since torch reads what they hold
        sys.path += [f"{_BY_FOLDER}/{number:03}" for number in range(1, _ENTRIES)]
    find, names = pickle.loads(bytes.fromhex(preload))
    # this package's own are found in each child, so that none depends on which others are counted
    for name in names if find or connection is None else ():
        with suppress(Exception):  # its case will have the reason
            (find or implementations.find)(name)
    if connection is None:
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    connection.send((REPLY, "ready"))
    # wait busily, since vgdb's command does not reach a process that sleeps; not by
    # connection.poll, which allocates objects at each call
    while not select.select([connection], [], [], 0)[0]:
        pass
    _warm_up()  # what callgrind translates here, no child translates again
    while (code := _forked(connection, f"{_BY_FOLDER}/dump")) != _CLOSED:
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


class _Missed:
    """Notes the modules that are looked for and are not there, behind all other finders."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if path is None:
            self.names.append(name)


def _prepare() -> None:
    """Import what counts need, and leave a folder of links to it and a list of what is missing."""
    missed = _Missed()
    sys.meta_path.append(missed)
    serve_counts(sys.argv[1])
    os.mkdir(_NEEDED)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        is_known = name in sys.stdlib_module_names or name.startswith(_OF_SITE)
        if file is not None and not is_known and "." not in name:
            path = Path(os.path.abspath(file))
            path = path.parent if path.stem == "__init__" else path
            Path(_NEEDED, path.name).symlink_to(path)
    Path(_MISSED).write_text(" ".join(missed.names))


def _count_as_prepared() -> None:
    """Answer with the modules that were found the first time; do not look for the others again."""
    for name in Path(_MISSED).read_text().split():
        sys.modules[name] = None  # type: ignore[assignment]
    serve_counts(sys.argv[1], Connection(int(sys.argv[2])))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _count_as_prepared()
    else:
        _prepare()

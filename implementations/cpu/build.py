"""Build C++ source once, with the system's compiler, into the user's cache.

A library's name contains a digest of everything it depends on: source, flags, the version of
PyTorch, whose headers it includes, and the compiler's predefined macros for this machine. A changed
file, another compiler or another processor therefore builds another library, and machines that
share a home directory do not share libraries.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from implementations.contract import UnsupportedError

SOURCE = Path(__file__).parent
FLAGS_VARIABLE = "LAYERNORM_BENCH_CFLAGS"
"""Environment variable with further compiler flags for kernels, as -march=x86-64-v3 or -g.

With -ffast-math results are wrong, and the process that loads the library flushes subnormal
numbers to zero.
"""

_LONGEST_S = 300.0  # a compiler takes less than ten seconds; the rest is for a loaded machine
_INSTALL = "install g++ or clang++, or set CXX"
_COMMON = ("-std=gnu++20", "-fPIC")
# without errno, sqrt is one instruction
_KERNEL = ("-O3", "-fno-math-errno")
# alternatives for all instructions of this processor, of which the first that the compiler accepts
# is used: clang on ARM knows only -mcpu
MACHINES = (("-march=native",), ("-mcpu=native",), ())


@cache
def _torch_flags() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the flags of source that includes PyTorch's headers, and of the linker."""
    package = Path(torch.__file__).parent
    compiling = (
        "-O1",  # -O2 takes 2 s longer to compile and no less time to run
        "-DAT_PER_OPERATOR_HEADERS",  # without it, each header declares every operator: 4 s
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-isystem{package / 'include'}",
        f"-isystem{package / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
    )
    # the process has loaded them already; the linker resolves them by name
    return compiling, (f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10")


def load(
    sources: tuple[str, ...], headers: tuple[str, ...] = (), definitions: tuple[str, ...] = ()
) -> ctypes.CDLL:
    """Load a library, building it first if it is not in the cache.

    Args:
        sources: names of C++ files in this directory, compiled at the same time. operator.cpp
            includes PyTorch's headers; the others are kernels.
        headers: names of the files in this directory that they include.
        definitions: flags of operator.cpp.

    Raises:
        UnsupportedError: there is no compiler, it fails, or the cache cannot be used; the message
            says why.
    """
    path = _built(sources, headers, definitions)
    if isinstance(path, str):
        raise UnsupportedError(path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UnsupportedError(
            f"cannot load {path}: {error}; delete it to have it built again, or set "
            "XDG_CACHE_HOME to a directory from which programs may be run"
        ) from error


@cache
def _built(
    sources: tuple[str, ...], headers: tuple[str, ...], definitions: tuple[str, ...]
) -> Path | str:
    """Return the library, or why there is none; cached, so a failing compiler runs once."""
    try:
        return _build(sources, headers, definitions)
    except UnsupportedError as error:
        return str(error)


def _build(
    sources: tuple[str, ...], headers: tuple[str, ...], definitions: tuple[str, ...]
) -> Path:
    if sys.platform == "win32":
        raise UnsupportedError("the C++ source is built on Linux and macOS, not on Windows")
    compiler, flags = _compiler(), _words(FLAGS_VARIABLE)
    machine, macros = _machine(compiler, flags)
    of_torch, linking = _torch_flags()
    commands = {
        source: [*compiler, *_COMMON, *of_torch, *definitions]
        if source == "operator.cpp"
        else [*compiler, *_COMMON, *_KERNEL, *machine, *flags]
        for source in sources
    }
    words = [word for command in commands.values() for word in command]
    digest = hashlib.sha256("\0".join([*words, torch.__version__]).encode() + macros)
    for name in (*sources, *headers):
        digest.update((SOURCE / name).read_bytes())
    path = cache_directory() / f"{Path(sources[-1]).stem}-{digest.hexdigest()[:32]}.so"
    if not path.exists():
        with _building(path) as folder:
            if not path.exists():  # another process may have built it meanwhile
                _compile(commands, [*compiler, "-shared"], linking, folder, path)
    return path


def cache_directory() -> Path:
    """Return the folder of built libraries: ``$XDG_CACHE_HOME/layernorm-bench``, else in ~/.cache.

    Raises:
        UnsupportedError: there is no home directory.
    """
    # XDG Base Directory Specification 0.8: a relative path must be ignored
    if os.path.isabs(base := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(base) / "layernorm-bench"
    try:
        return Path.home() / ".cache" / "layernorm-bench"
    except RuntimeError as error:
        raise UnsupportedError(
            "there is no home directory to keep the built C++ source in; set XDG_CACHE_HOME"
        ) from error


def _words(variable: str) -> list[str]:
    """Return the words of an environment variable, split as in a shell."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UnsupportedError(f"{variable} cannot be read: {error}") from error


def _compiler() -> list[str]:
    """Return the compiler command: from CXX, else the first of the usual names found."""
    if command := _words("CXX"):
        if shutil.which(command[0]) is None:
            raise UnsupportedError(f"there is no {command[0]}, which CXX names; {_INSTALL}")
        return command
    names = ("c++", "g++", "clang++")
    for name in names:
        if shutil.which(name) is not None:
            return [name]
    raise UnsupportedError(f"there is no C++ compiler ({', '.join(names)}); {_INSTALL}")


def _machine(compiler: list[str], flags: list[str]) -> tuple[tuple[str, ...], bytes]:
    """Return the accepted flags of :data:`MACHINES`, and the macros they define.

    The macros contain the compiler's version and each instruction set.
    """
    for machine in MACHINES:
        command = [*compiler, *machine, *flags, "-dM", "-E", "-x", "c++", os.devnull]
        ((code, output, complaint),) = _run([command])
        if code == 0:
            return machine, output
    raise UnsupportedError(f"{shlex.join(compiler)} fails: {_first(complaint)}; {_INSTALL}")


@contextmanager
def _building(path: Path) -> Iterator[Path]:
    """Give an empty folder, in one process at a time; the others wait for its library."""
    import fcntl  # not on Windows

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # the kernel releases the lock of a process that is killed
        with (path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                yield Path(folder)
    except OSError as error:
        raise UnsupportedError(
            f"cannot keep the built C++ source in {path.parent}: {error.strerror or error}; set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from error


def _compile(
    commands: dict[str, list[str]],
    linker: list[str],
    linking: tuple[str, ...],
    folder: Path,
    path: Path,
) -> None:
    """Compile each source by its command, and link them to ``path``, which appears complete."""
    objects = [str(folder / f"{source}.o") for source in commands]
    compiling = [
        [*command, "-c", str(SOURCE / source), "-o", made]
        for (source, command), made in zip(commands.items(), objects, strict=True)
    ]
    made = folder / path.name
    for steps in (compiling, [[*linker, "-o", str(made), *objects, *linking]]):
        for source, (code, _, complaint) in zip(commands, _run(steps), strict=False):
            if code:
                raise UnsupportedError(
                    f"{linker[0]} cannot compile {source}: {_first(complaint)}; {_INSTALL}"
                )
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(path)


def _run(commands: Sequence[list[str]]) -> list[tuple[int, bytes, bytes]]:
    """Run commands at the same time; return exit code, output and errors of each."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            running.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        outputs = [process.communicate(timeout=_LONGEST_S) for process in running]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{command[0]} cannot be run: {error}; {_INSTALL}") from error
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [(process.returncode, *output) for process, output in zip(running, outputs, strict=True)]


def _first(complaint: bytes) -> str:
    """Return the first line of a compiler's output that contains "error", else its last line."""
    lines = [
        text for line in complaint.decode(errors="replace").splitlines() if (text := line.strip())
    ]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines[-1:] or ["no message"])[0]

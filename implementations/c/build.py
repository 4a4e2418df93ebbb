"""Build C source once, with the system's own compiler, into the user's cache.

A library's name holds a digest of all that it depends on: source, flags, and what the compiler
makes of this machine. So a changed file, another compiler or another processor builds another one,
and a home directory shared by different machines holds one for each.
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
from functools import cache
from pathlib import Path

from implementations.contract import UnsupportedError

__all__ = ["FLAGS_VARIABLE", "cache_directory", "load"]

SOURCE = Path(__file__).parent
FLAGS_VARIABLE = "LAYERNORM_BENCH_CFLAGS"
"""Environment variable with flags for the compiler, after ours; such as -march=x86-64-v3 or -g.

With -ffast-math results are wrong, and a process that loads it flushes subnormals to zero.
"""

_COMPILERS = ("cc", "gcc", "clang")
# no errno: sqrt is then one instruction
_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-shared", "-fPIC")
# a compiler that does not know one tries the next: clang on ARM has had -mcpu alone
_MACHINES: tuple[list[str], ...] = (["-march=native"], ["-mcpu=native"], [])
_LONGEST_S = 300.0  # ours: it takes seconds
_HOW = "install gcc or clang, or set CC"


def load(files: tuple[str, ...], kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Load a library, after building it where that has not been done.

    Args:
        files: names of the C files in this directory: the first is compiled, it includes the rest.
        kind: ``ctypes.CDLL``, whose functions let go of Python's lock, or ``ctypes.PyDLL``.

    Raises:
        UnsupportedError: there is no compiler, it fails, or the cache cannot be used; says why.
    """
    path = _built(files)
    if isinstance(path, str):
        raise UnsupportedError(path)
    try:
        return kind(str(path))
    except OSError as error:
        raise UnsupportedError(
            f"cannot load {path}: {error}; delete it to have it built again, or set "
            "XDG_CACHE_HOME to a directory from which programs may be run"
        ) from error


@cache
def _built(files: tuple[str, ...]) -> Path | str:
    """Where the library is, or why there is none: a compiler that fails is not asked again."""
    try:
        return _build(files)
    except UnsupportedError as error:
        return str(error)


def _build(files: tuple[str, ...]) -> Path:
    if sys.platform == "win32":
        raise UnsupportedError("the C source is built on Linux and macOS, not on Windows")
    compiler = _compiler()
    flags = _words(FLAGS_VARIABLE)
    machine, macros = _machine(compiler, flags)
    command = [*compiler, *_FLAGS, *machine, *flags]
    digest = hashlib.sha256("\0".join(command).encode() + macros)
    for name in files:
        digest.update((SOURCE / name).read_bytes())
    source = SOURCE / files[0]
    path = cache_directory() / f"{source.stem}-{digest.hexdigest()[:32]}.so"
    if not path.exists():
        _compile(command, source, path)
    return path


def cache_directory() -> Path:
    """Where built libraries are kept: ``$XDG_CACHE_HOME/layernorm-bench``, else in ~/.cache.

    Raises:
        UnsupportedError: there is no home directory.
    """
    # a relative path is to be ignored: XDG Base Directory Specification 0.8
    if os.path.isabs(base := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(base) / "layernorm-bench"
    try:
        return Path.home() / ".cache" / "layernorm-bench"
    except RuntimeError as error:
        raise UnsupportedError(
            "there is no home directory to keep the built C source in; set XDG_CACHE_HOME"
        ) from error


def _words(variable: str) -> list[str]:
    """The words of an environment variable, as a shell would take them."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UnsupportedError(f"{variable} cannot be read: {error}") from error


def _compiler() -> list[str]:
    """The command of the C compiler: CC's, else the first there is of the usual names."""
    if asked := _words("CC"):
        if shutil.which(asked[0]) is None:
            raise UnsupportedError(f"there is no {asked[0]}, which CC names; {_HOW}")
        return asked
    for name in _COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise UnsupportedError(f"there is no C compiler ({', '.join(_COMPILERS)}); {_HOW}")


def _machine(compiler: list[str], flags: list[str]) -> tuple[list[str], bytes]:
    """The flag by which the compiler uses all that this processor has, and what it then defines.

    Those macros name the compiler's version and each set of instructions.
    """
    for machine in _MACHINES:
        done = _run([*compiler, *machine, *flags, "-dM", "-E", "-x", "c", os.devnull])
        if done.returncode == 0:
            return machine, done.stdout
    raise UnsupportedError(f"{shlex.join(compiler)} fails: {_complaint(done.stderr)}; {_HOW}")


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Compile to ``path``, which appears whole or not at all: others may be at it too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            done = _run([*command, "-o", str(made), str(source), "-lm"])
            if done.returncode:
                raise UnsupportedError(
                    f"{command[0]} cannot compile {source.name}: {_complaint(done.stderr)}; {_HOW}"
                )
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(path)
    except OSError as error:
        raise UnsupportedError(
            f"cannot keep the built C source in {path.parent}: {error.strerror or error}; set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from error


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, timeout=_LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{command[0]} cannot be run: {error}; {_HOW}") from error


def _complaint(output: bytes) -> str:
    """The first line of a compiler's output that says error, else its last line."""
    lines = [each.strip() for each in output.decode(errors="replace").splitlines() if each.strip()]
    errors = [each for each in lines if "error" in each.lower()]
    return (errors or lines[-1:] or ["it says nothing"])[0]

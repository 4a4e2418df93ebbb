"""Build C and C++ source once, with the system's compiler, into the user's cache.

A library's name contains a digest of everything it depends on: source, flags, the compiler's
predefined macros for this machine and, for C++, the version of PyTorch, whose headers it includes.
A changed file, another compiler or another processor therefore builds another library, and machines
that share a home directory do not share libraries.
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from implementations.contract import UnsupportedError

__all__ = ["FLAGS_VARIABLE", "cache_directory", "load"]

SOURCE = Path(__file__).parent
FLAGS_VARIABLE = "LAYERNORM_BENCH_CFLAGS"
"""Environment variable with further compiler flags, such as -march=x86-64-v3 or -g.

With -ffast-math results are wrong, and the process that loads the library flushes subnormal
numbers to zero.
"""

_LONGEST_S = 300.0  # C takes seconds, C++ half a minute; the rest is for a loaded machine


@dataclass(frozen=True, slots=True)
class _Language:
    """How source in one language is compiled."""

    name: str
    compiler: str
    """Environment variable that names the compiler."""
    compilers: tuple[str, ...]
    """Looked for if the variable is not set."""
    how: str
    """What to do if there is no compiler."""
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    more_flags: str | None
    """Environment variable with the user's flags."""
    machines: tuple[tuple[str, ...], ...]
    """Alternative flags for all instructions of this processor; the first that the compiler accepts
    is used."""
    version: str
    """Version of the headers it includes."""


_C = _Language(
    name="C",
    compiler="CC",
    compilers=("cc", "gcc", "clang"),
    how="install gcc or clang, or set CC",
    # without errno, sqrt is one instruction
    flags=("-std=gnu11", "-O3", "-fno-math-errno", "-shared", "-fPIC"),
    libraries=("-lm",),
    more_flags=FLAGS_VARIABLE,
    machines=(("-march=native",), ("-mcpu=native",), ()),  # clang on ARM knows only -mcpu
    version="",
)


@cache
def _cpp() -> _Language:
    """Return how C++ is compiled against the headers and libraries of PyTorch."""
    package = Path(torch.__file__).parent
    return _Language(
        name="C++",
        compiler="CXX",
        compilers=("c++", "g++", "clang++"),
        how="install g++ or clang++, or set CXX",
        flags=(
            "-std=gnu++20",
            "-O2",
            "-shared",
            "-fPIC",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-isystem{package / 'include'}",
            f"-isystem{package / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
        ),
        # the process has loaded them already; the linker resolves them by name
        libraries=(f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10"),
        more_flags=None,
        machines=((),),
        version=torch.__version__,
    )


def load(files: tuple[str, ...], kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Load a library, building it first if it is not in the cache.

    Args:
        files: names of files in this directory; the first is compiled and includes the others.
        kind: ``ctypes.CDLL``, whose functions release Python's lock, or ``ctypes.PyDLL``.

    Raises:
        UnsupportedError: there is no compiler, it fails, or the cache cannot be used; the message
            says why.
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
    """Return the library, or why there is none; cached, so a failing compiler runs once."""
    try:
        return _build(files)
    except UnsupportedError as error:
        return str(error)


def _build(files: tuple[str, ...]) -> Path:
    if sys.platform == "win32":
        raise UnsupportedError("the C source is built on Linux and macOS, not on Windows")
    source = SOURCE / files[0]
    language = _cpp() if source.suffix == ".cpp" else _C
    compiler = _compiler(language)
    flags = _words(language.more_flags) if language.more_flags else []
    machine, macros = _machine(language, compiler, flags)
    command = [*compiler, *language.flags, *machine, *flags]
    digest = hashlib.sha256("\0".join([*command, language.version]).encode() + macros)
    for name in files:
        digest.update((SOURCE / name).read_bytes())
    digits = digest.hexdigest()[:32]
    path = cache_directory() / f"{source.stem}-{digits}.so"
    if not path.exists():
        _compile(language, [*command, f"-DDIGEST={digits}"], source, path)
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
            "there is no home directory to keep the built C source in; set XDG_CACHE_HOME"
        ) from error


def _words(variable: str) -> list[str]:
    """Return the words of an environment variable, split as in a shell."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UnsupportedError(f"{variable} cannot be read: {error}") from error


def _compiler(language: _Language) -> list[str]:
    """Return the compiler command: from its variable, else the first of the usual names found."""
    if command := _words(language.compiler):
        if shutil.which(command[0]) is None:
            raise UnsupportedError(
                f"there is no {command[0]}, which {language.compiler} names; {language.how}"
            )
        return command
    for name in language.compilers:
        if shutil.which(name) is not None:
            return [name]
    raise UnsupportedError(
        f"there is no {language.name} compiler ({', '.join(language.compilers)}); {language.how}"
    )


def _machine(
    language: _Language, compiler: list[str], flags: list[str]
) -> tuple[tuple[str, ...], bytes]:
    """Return the accepted flags of :attr:`_Language.machines`, and the macros they define.

    The macros contain the compiler's version and each instruction set.
    """
    for machine in language.machines:
        macros = ["-dM", "-E", "-x", language.name.lower(), os.devnull]
        done = _run(language, [*compiler, *machine, *flags, *macros])
        if done.returncode == 0:
            return machine, done.stdout
    raise UnsupportedError(
        f"{shlex.join(compiler)} fails: {_complaint(done.stderr)}; {language.how}"
    )


def _compile(language: _Language, command: list[str], source: Path, path: Path) -> None:
    """Compile to ``path`` atomically, since other processes may build the same library."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            done = _run(language, [*command, "-o", str(made), str(source), *language.libraries])
            if done.returncode:
                raise UnsupportedError(
                    f"{command[0]} cannot compile {source.name}: {_complaint(done.stderr)}; "
                    f"{language.how}"
                )
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(path)
    except OSError as error:
        raise UnsupportedError(
            f"cannot keep the built C source in {path.parent}: {error.strerror or error}; set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from error


def _run(language: _Language, command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, timeout=_LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{command[0]} cannot be run: {error}; {language.how}") from error


def _complaint(output: bytes) -> str:
    """Return the first line of a compiler's output that contains "error", else its last line."""
    lines = [each.strip() for each in output.decode(errors="replace").splitlines() if each.strip()]
    errors = [each for each in lines if "error" in each.lower()]
    return (errors or lines[-1:] or ["no message"])[0]

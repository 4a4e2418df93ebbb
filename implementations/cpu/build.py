"""Build C and C++ source once, with the system's own compiler, into the user's cache.

A library's name holds a digest of all that it depends on: source, flags, what the compiler makes of
this machine, and for C++ PyTorch, whose headers it includes. So a changed file, another compiler or
another processor builds another one, and a home directory shared by different machines holds one
for each.
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
"""Environment variable with flags for the compiler, after ours; such as -march=x86-64-v3 or -g.

With -ffast-math results are wrong, and a process that loads it flushes subnormals to zero.
"""

_LONGEST_S = 300.0  # ours: C takes seconds, C++ half a minute


@dataclass(frozen=True, slots=True)
class _Language:
    """How source of a kind is compiled."""

    name: str
    compiler: str
    """Environment variable that names it."""
    compilers: tuple[str, ...]
    """Looked for where that does not."""
    how: str
    """To get one."""
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    more_flags: str | None
    """Environment variable with the user's."""
    machines: tuple[tuple[str, ...], ...]
    """Flags by which all that this processor has is used: where a compiler does not know one, the
    next is tried."""
    version: str
    """Of what it includes."""


_C = _Language(
    name="C",
    compiler="CC",
    compilers=("cc", "gcc", "clang"),
    how="install gcc or clang, or set CC",
    # no errno: sqrt is then one instruction
    flags=("-std=gnu11", "-O3", "-fno-math-errno", "-shared", "-fPIC"),
    libraries=("-lm",),
    more_flags=FLAGS_VARIABLE,
    machines=(("-march=native",), ("-mcpu=native",), ()),  # clang on ARM has had -mcpu alone
    version="",
)


@cache
def _cpp() -> _Language:
    """C++ against the headers and libraries that PyTorch brings with it."""
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
        # loaded already, from wherever they are: a library is known by its name
        libraries=(f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10"),
        more_flags=None,
        machines=((),),
        version=torch.__version__,
    )


def load(files: tuple[str, ...], kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Load a library, after building it where that has not been done.

    Args:
        files: names of files in this directory: the first is compiled, it includes the rest.
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


def _compiler(language: _Language) -> list[str]:
    """The command of the compiler: its variable's, else the first there is of the usual names."""
    if asked := _words(language.compiler):
        if shutil.which(asked[0]) is None:
            raise UnsupportedError(
                f"there is no {asked[0]}, which {language.compiler} names; {language.how}"
            )
        return asked
    for name in language.compilers:
        if shutil.which(name) is not None:
            return [name]
    raise UnsupportedError(
        f"there is no {language.name} compiler ({', '.join(language.compilers)}); {language.how}"
    )


def _machine(
    language: _Language, compiler: list[str], flags: list[str]
) -> tuple[tuple[str, ...], bytes]:
    """The flag by which the compiler uses all that this processor has, and what it then defines.

    Those macros name the compiler's version and each set of instructions.
    """
    for machine in language.machines:
        asks = ["-dM", "-E", "-x", language.name.lower(), os.devnull]
        done = _run(language, [*compiler, *machine, *flags, *asks])
        if done.returncode == 0:
            return machine, done.stdout
    raise UnsupportedError(
        f"{shlex.join(compiler)} fails: {_complaint(done.stderr)}; {language.how}"
    )


def _compile(language: _Language, command: list[str], source: Path, path: Path) -> None:
    """Compile to ``path``, which appears whole or not at all: others may be at it too."""
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
    """The first line of a compiler's output that says error, else its last line."""
    lines = [each.strip() for each in output.decode(errors="replace").splitlines() if each.strip()]
    errors = [each for each in lines if "error" in each.lower()]
    return (errors or lines[-1:] or ["it says nothing"])[0]

"""C++ code is built once; if it cannot be built, the call is refused with the reason."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from implementations import UnsupportedError, cpu_recentred
from implementations.cpu import build, copies, operators
from implementations.cpu.build import cache_directory, load
from implementations.cpu.copies import can_stream, streamed_copy

FILES = ("copy.cpp",), ("stream.h", "threads.h")
with_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Use an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(build.FLAGS_VARIABLE, raising=False)
    build._built.cache_clear()
    yield
    build._built.cache_clear()


def compiler(folder: Path, script: str) -> str:
    """Write a script that takes the place of the compiler."""
    path = folder / "my-c++"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def runs(folder: Path) -> int:
    """Return how often the compiler has written to its log."""
    return len((folder / "log").read_text(encoding="utf-8").split())


# --- what is built -------------------------------------------------------------------------------


@with_compiler
def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = f'case "$*" in *-shared*) echo x >> {tmp_path}/log;; esac; exec c++ "$@"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    for _ in range(2):
        assert load(*FILES).streamed_copy
        build._built.cache_clear()  # as in the next process
    assert runs(tmp_path) == 1
    # and no temporary file of the compiler
    assert sorted(path.suffix for path in cache_directory().iterdir()) == ["", ".so"]


@with_compiler
def test_other_flags_and_changed_sources_make_other_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(build.SOURCE, tmp_path / "source")
    monkeypatch.setattr(build, "SOURCE", tmp_path / "source")

    def count() -> int:
        build._built.cache_clear()
        load(*FILES)
        return len([*cache_directory().glob("*.so")])

    assert count() == 1
    with (tmp_path / "source" / "threads.h").open("a", encoding="utf-8") as file:
        file.write("/* changed */\n")
    assert count() == 2
    monkeypatch.setenv(build.FLAGS_VARIABLE, "-O1 -DNAME='two words'")
    assert count() == 3


@with_compiler
def test_a_build_follows_one_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits = f'case "$*" in *-c*) echo x >> {tmp_path}/log; sleep 60;; esac; exec c++ "$@"'
    monkeypatch.setenv("CXX", compiler(tmp_path, waits))
    program = f"from implementations.cpu.build import load; load(*{FILES})"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=build.SOURCE.parents[1], start_new_session=True) as killed:
        while not (tmp_path / "log").exists():
            assert killed.poll() is None
        os.killpg(killed.pid, signal.SIGKILL)
    monkeypatch.delenv("CXX")
    assert load(*FILES).streamed_copy


def test_the_cache_is_in_the_xdg_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache" / "layernorm-bench"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory() == tmp_path / ".cache" / "layernorm-bench"


# --- what goes wrong -----------------------------------------------------------------------------


def refusal() -> str:
    with pytest.raises(UnsupportedError) as error:
        load(*FILES)
    return str(error.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PATH", "", "install g++ or clang++"),
        ("CXX", "no-such-c++ -m64", "there is no no-such-c++, which CXX names"),
        ("CXX", "'-O2", "CXX cannot be read: No closing quotation"),
        (build.FLAGS_VARIABLE, "'-O2", f"{build.FLAGS_VARIABLE} cannot be read: No closing"),
    ],
)
def test_without_a_usable_compiler_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv("CXX", "sh" if variable != "PATH" else "")
    monkeypatch.setenv(variable, value)
    assert words in refusal()


def test_a_compiler_that_fails_or_cannot_be_started_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = 'case "$*" in *-dM*) exit 0;; esac; echo "In file a.c:"; echo "a.c:1: error: no" >&2'
    path = compiler(tmp_path, f"{script}; exit 1")
    monkeypatch.setenv("CXX", path)
    assert "cannot compile copy.cpp: a.c:1: error: no" in refusal()
    assert not [*cache_directory().glob("*/*"), *cache_directory().glob("*.so")]
    build._built.cache_clear()
    Path(path).write_bytes(b"\x7fELF, but no more")
    assert "cannot be run" in refusal()


def test_a_failing_compiler_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, f"echo x >> {tmp_path}/log; exit 1"))
    assert refusal() == refusal()
    assert runs(tmp_path) == len(build.MACHINES)
    assert "no message" in refusal()


@with_compiler
def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot keep the built C++ source in" in refusal()
    assert refusal().endswith("set XDG_CACHE_HOME to a directory that can be written")


@with_compiler
def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    path = build._built(*FILES, ())
    assert isinstance(path, Path)
    path.write_bytes(path.read_bytes()[:100])
    assert f"cannot load {path}" in refusal()
    assert "delete it" in refusal()


def test_without_a_compiler_the_kernel_and_the_copy_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    for loaded in (copies._library, operators.load_operator):
        loaded.cache_clear()
    assert not can_stream()
    x = torch.zeros(4, 8)
    for call in (lambda: cpu_recentred(x, (8,)), lambda: streamed_copy(x, x)):
        with pytest.raises(UnsupportedError, match=r"no-such-c\+\+"):
            call()


GUARD = 255


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 1, 63])
@pytest.mark.parametrize("size", [0, 1, 15, 64, 130, (1 << 18) + 1, (1 << 20) - 5])
@with_compiler
def test_it_copies_all_bytes_and_no_others(size: int, start: int, threads: int) -> None:
    source = torch.randint(0, GUARD, (size + 1,), dtype=torch.uint8)[1:]
    memory = torch.full((start + size + 64,), GUARD, dtype=torch.uint8)
    expected = memory.clone()
    expected[start : start + size] = source
    torch.set_num_threads(threads)
    try:
        streamed_copy(memory[start : start + size], source)()
    finally:
        torch.set_num_threads(1)
    assert torch.equal(memory, expected)


@with_compiler
def test_it_keeps_a_reference_to_the_source() -> None:
    to = torch.zeros(1 << 16)
    copy = streamed_copy(to, torch.ones(1 << 16))  # the only reference to the source
    torch.full((1 << 16,), 5.0)  # would reuse the memory of a freed source
    copy()
    assert bool((to == 1).all())

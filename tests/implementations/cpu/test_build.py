"""C++ code is built once; if it cannot be built, the call is refused with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from implementations import UnsupportedError, cpu_recentred
from implementations.cpu import build, copies, operators

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


# --- what is built -------------------------------------------------------------------------------


@with_compiler
def test_it_is_compiled_once_for_its_flags_and_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(build.SOURCE, tmp_path / "source")
    monkeypatch.setattr(build, "SOURCE", tmp_path / "source")
    script = f'case "$*" in *-shared*) echo x >> {tmp_path}/log;; esac; exec c++ "$@"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))

    def builds() -> int:
        build._built.cache_clear()  # as in the next process
        assert build.load(*FILES).streamed_copy
        return len((tmp_path / "log").read_text(encoding="utf-8").split())

    assert builds() == builds() == 1
    with (tmp_path / "source" / "threads.h").open("a", encoding="utf-8") as file:
        file.write("/* changed */\n")
    assert builds() == 2
    monkeypatch.setenv(build.FLAGS_VARIABLE, "-O1 -DNAME='two words'")
    assert builds() == 3
    # and no temporary file of the compiler
    assert {path.suffix for path in build.cache_directory().iterdir()} == {"", ".so"}


# --- what goes wrong -----------------------------------------------------------------------------


def refusal() -> str:
    with pytest.raises(UnsupportedError) as error:
        build.load(*FILES)
    return str(error.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PATH", "", "install g++ or clang++"),
        ("CXX", "no-such-c++ -m64", "there is no no-such-c++, which CXX names"),
        ("CXX", "'-O2", "CXX cannot be read: No closing quotation"),
    ],
)
def test_without_a_usable_compiler_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv("CXX", "sh" if variable != "PATH" else "")
    monkeypatch.setenv(variable, value)
    assert words in refusal()


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'case "$*" in *-dM*) exit 0;; esac; echo "In file a.c:"; echo "a.c:1: error: no" >&2'
    monkeypatch.setenv("CXX", compiler(tmp_path, f"{script}; exit 1"))
    assert "cannot compile copy.cpp: a.c:1: error: no" in refusal()


@with_compiler
def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot keep the built C++ source in" in refusal()
    assert refusal().endswith("set XDG_CACHE_HOME to a directory that can be written")


def test_without_a_compiler_the_kernel_and_the_copy_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    for loaded in (copies._library, operators.load_operator):
        loaded.cache_clear()
    assert not copies.can_stream()
    x = torch.zeros(4, 8)
    for call in (lambda: cpu_recentred(x, (8,)), lambda: copies.streamed_copy(x, x)):
        with pytest.raises(UnsupportedError, match=r"no-such-c\+\+"):
            call()


GUARD = 255


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 63])
@pytest.mark.parametrize("size", [0, 15, 130, (1 << 20) - 5])
@with_compiler
def test_it_copies_all_bytes_and_no_others(size: int, start: int, threads: int) -> None:
    source = torch.randint(0, GUARD, (size + 1,), dtype=torch.uint8)[1:]
    memory = torch.full((start + size + 64,), GUARD, dtype=torch.uint8)
    expected = memory.clone()
    expected[start : start + size] = source
    torch.set_num_threads(threads)
    copies.streamed_copy(memory[start : start + size], source)()
    assert torch.equal(memory, expected)


@with_compiler
def test_it_keeps_a_reference_to_the_source() -> None:
    to = torch.zeros(1 << 16)
    copy = copies.streamed_copy(to, torch.ones(1 << 16))  # the only reference to the source
    torch.full((1 << 16,), 5.0)  # would reuse the memory of a freed source
    copy()
    assert bool((to == 1).all())

"""A target names an implementation of this package, of a plugin or in a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import implementations
from implementations import ALL, PEERS, TargetError, find, native

SOURCE = '''
from torch.nn import functional

def my_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Of a file."""
    return functional.layer_norm(x, normalized_shape, weight, bias, eps)

not_callable = 3
'''
NORM = "\ndef norm(*arguments): return VALUE\n"

Write = Callable[..., Path]


@pytest.fixture
def write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files below the current folder; modules and paths are restored after the test."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def written(name: str, content: str = SOURCE) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


def value(target: str) -> object:
    """Call a function that returns the VALUE of its file."""
    return find(target)(torch.zeros(()), ())


def test_a_name_finds_its_implementation() -> None:
    assert [find(norm.name) for norm in (*ALL, *PEERS)] == [*ALL, *PEERS]


def test_a_plain_function_is_found_with_the_declarations_of_native(write: Write) -> None:
    path = write("found_norms.py")
    found = find("found_norms:my_norm")
    assert (found.name, found.summary) == ("found_norms:my_norm", "Of a file.")
    assert found.algorithm == native.algorithm
    assert found.backward_reduction == native.backward_reduction
    assert torch.equal(found(torch.ones(2, 3), (3,)), torch.zeros(2, 3))
    assert find(f"{path}:my_norm").name == f"{path}:my_norm"


def test_an_entry_point_of_a_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "layernorm_bench.implementations"
    points = {group: (EntryPoint("elsewhere", "implementations.welford:welford", group),)}
    monkeypatch.setattr(implementations, "entry_points", lambda group: points[group])
    assert find("elsewhere") is find("welford") is find("implementations.welford:welford")
    with pytest.raises(TargetError, match="did you mean 'elsewhere'"):
        find("elsewher")


@pytest.mark.parametrize(
    ("target", "content", "words"),
    [
        ("welfrod", SOURCE, r"no implementation named 'welfrod'.*mean 'welford'"),
        ("FILE:other_norm", SOURCE, r"has no 'other_norm'; it defines my_norm$"),
        ("FILE:not_callable", SOURCE, "is of type int, not a function"),
        ("FILE:norm", "class norm: pass", r"a class, and neither a torch\.nn\.Module"),
        ("FILE:norm", "def broken(:", "cannot import: SyntaxError"),
        ("found:norm", "1 / 0", "cannot import: ZeroDivisionError"),
        ("FILE:norm", "import no_such_sibling", r"ModuleNotFound.*no_such_sibling.*in .*/inner"),
        ("no_such:norm", SOURCE, r"ModuleNotFoundError.*no_such.*; looked in "),
        ("gone.py:norm", SOURCE, r"no file gone\.py in "),
    ],
)
def test_a_target_that_names_nothing_is_refused_with_the_reason(
    write: Write, target: str, content: str, words: str
) -> None:
    write("found.py", content)
    with pytest.raises(TargetError, match=words):
        find(target.replace("FILE", str(write("inner/found_norms.py", content))))


# --- a target is imported as if Python had been started in its folder ----------------------------


def test_a_file_imports_its_sibling(write: Write) -> None:
    write("norms/located_sibling.py", "VALUE = 3")
    path = write("norms/located_a.py", f"from located_sibling import VALUE{NORM}")
    assert value(f"{path}:norm") == value("norms/located_a.py:norm") == 3


def test_a_file_of_a_package_imports_relatively(write: Write) -> None:
    write("located_package/__init__.py", "")
    write("located_package/inner/__init__.py", "ABOVE = 5")
    source = "from . import ABOVE\nVALUE = ABOVE, __name__"
    path = write("located_package/inner/norms.py", f"{source}{NORM}")
    assert value(f"{path}:norm") == (5, "located_package.inner.norms")


def test_a_file_is_executed_again_exactly_if_it_has_changed(write: Write) -> None:
    path = write("located_c.py", f"VALUE = object(){NORM}")
    first = value(f"{path}:norm")
    assert value(f"{path}:norm") is first
    path.write_text(f"VALUE = 20{NORM}")
    os.utime(path, ns=(1, 1))
    assert value(f"{path}:norm") == 20


def test_a_folder_hides_nothing_that_is_installed(write: Write) -> None:
    write("torch/__init__.py", "raise ImportError('not this one')")
    path = write("located_e.py", f"import torch\nVALUE = torch.ones(1){NORM}")
    assert value(f"{path}:norm") == 1

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
from implementations import ALL, Implementation, TargetError, UnsupportedError, find, native
from implementations.targets.locate import LocateError, locate

SOURCE = '''
from torch.nn import functional

def my_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Of a file."""
    return functional.layer_norm(x, normalized_shape, weight, bias, eps)

def _hidden(x): pass

not_callable = 3
'''

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files below the current folder; modules and paths are restored after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def written(name: str, content: str = SOURCE) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("norm", ALL, ids=lambda norm: norm.name)
def test_a_name_finds_its_implementation(norm: Implementation) -> None:
    assert find(norm.name) is norm


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
    ("target", "words"),
    [
        ("welfrod", r"no implementation named 'welfrod'.*mean 'welford'"),
        ("zzzzz", r"known: native, one_pass.*file\.py:function"),
        ("FILE:other_norm", "has no 'other_norm'"),
        ("FILE:not_callable", "is of type int, not a function"),
        (":", "cannot import: ValueError"),
    ],
)
def test_a_target_that_names_nothing_is_refused_with_a_hint(
    write: Write, target: str, words: str
) -> None:
    with pytest.raises(TargetError, match=words):
        find(target.replace("FILE", str(write("found_norms.py"))))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def broken(:", "SyntaxError"),
        ("import no_such_dependency", "ModuleNotFoundError"),
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_with_the_reason(
    write: Write, content: str, named: str
) -> None:
    path = write("found_norms.py", content)
    for target in (f"{path}:norm", "found_norms:norm"):
        with pytest.raises(TargetError, match=f"cannot import: {named}"):
            find(target)


def test_an_unsupported_case_is_neither_a_value_error_nor_a_target_error() -> None:
    # a refusal and a mistake in the arguments must never be confused
    assert not issubclass(UnsupportedError, ValueError | TargetError)


# --- a target is imported as if Python had been started in its folder ----------------------------


def test_a_file_imports_its_sibling(write: Write) -> None:
    write("norms/located_sibling.py", "VALUE = 3")
    path = write("norms/located_a.py", "from located_sibling import VALUE")
    assert locate(f"{path}:VALUE") == locate("norms/located_a.py:VALUE") == 3


def test_a_file_of_a_package_imports_relatively(write: Write) -> None:
    write("located_package/__init__.py", "")
    write("located_package/inner/__init__.py", "VALUE = 5")
    write("located_package/inner/values.py", "VALUE = 4")
    source = "from . import VALUE as ABOVE\nfrom .values import VALUE\nNAME = __name__"
    path = write("located_package/inner/norms.py", source)
    found = [locate(f"{path}:{name}") for name in ("VALUE", "ABOVE", "NAME")]
    assert found == [4, 5, "located_package.inner.norms"]


def test_a_module_that_its_package_has_imported_is_not_executed_again(write: Write) -> None:
    write("located_twice/__init__.py", "from located_twice.norms import Norm")
    path = write("located_twice/norms.py", "class Norm: pass")
    found = locate(f"{path}:Norm")
    assert found is locate("located_twice:Norm")
    assert found is locate(f"{path.parent / '__init__.py'}:Norm")


def test_attributes_of_attributes_and_modules_of_the_current_directory_are_found(
    write: Write,
) -> None:
    path = write("located_b.py", "class Outer:\n    class Inner:\n        VALUE = 7")
    assert locate(f"{path}:Outer.Inner.VALUE") == locate("located_b:Outer.Inner.VALUE") == 7


def test_a_file_is_executed_again_exactly_if_it_has_changed(write: Write) -> None:
    path = write("located_c.py", "VALUE = object()")
    first = locate(f"{path}:VALUE")
    assert locate(f"{path}:VALUE") is first
    path.write_text("VALUE = 20")
    os.utime(path, ns=(1, 1))
    assert locate(f"{path}:VALUE") == 20


def test_a_folder_hides_nothing_that_is_installed(write: Write) -> None:
    write("torch/__init__.py", "raise ImportError('not this one')")
    write("harness/__init__.py", "raise ImportError('not this one')")
    path = write("located_e.py", "import torch, harness\nVALUE = torch.ones(1)")
    assert float(locate(f"{path}:VALUE")) == 1  # type: ignore[arg-type]


def test_a_failed_import_says_where_it_looked(write: Write, tmp_path: Path) -> None:
    path = write("inner/located_f.py", "import no_such_sibling")
    for target, words, folder in (
        ("no_such:norm", "ModuleNotFoundError.*no_such.*; looked in ", tmp_path),
        (f"{path}:norm", "no_such_sibling.*; looked in ", path.parent),
        ("gone.py:norm", r"no file gone\.py in ", tmp_path),
    ):
        with pytest.raises(LocateError, match=words) as raised:
            locate(target)
        assert str(folder) in str(raised.value)


def test_for_a_missing_attribute_the_names_of_the_module_are_listed(write: Write) -> None:
    with pytest.raises(LocateError, match=r"has no 'norm'; it defines my_norm$"):
        locate(f"{write('located_g.py')}:norm")

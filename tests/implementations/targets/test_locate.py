"""A target is imported as if Python had been started in its folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from implementations.targets.locate import LocateError, locate

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files below the current folder; modules and paths are restored after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def written(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_imports_its_sibling(write: Write) -> None:
    write("norms/located_sibling.py", "VALUE = 3")
    path = write("norms/located_a.py", "from located_sibling import VALUE")
    assert locate(f"{path}:VALUE") == 3
    assert locate("norms/located_a.py:VALUE") == 3


def test_a_file_of_a_package_imports_relatively(write: Write) -> None:
    write("located_package/__init__.py", "")
    write("located_package/inner/__init__.py", "VALUE = 5")
    write("located_package/inner/values.py", "VALUE = 4")
    path = write(
        "located_package/inner/norms.py",
        "from . import VALUE as ABOVE\nfrom .values import VALUE\nNAME = __name__",
    )
    assert [locate(f"{path}:{name}") for name in ("VALUE", "ABOVE", "NAME")] == [
        4, 5, "located_package.inner.norms"
    ]  # fmt: skip


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
    path = write("located_g.py", "import math\ndef my_norm(x): return x\ndef _hidden(): pass")
    with pytest.raises(LocateError, match=r"has no 'norm'; it defines my_norm$"):
        locate(f"{path}:norm")

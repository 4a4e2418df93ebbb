"""A target names an implementation of this package, of a plugin or in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import implementations
from implementations import ALL, Implementation, TargetError, UnsupportedError, find, native

SOURCE = '''
from torch.nn import functional

def my_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Of a file."""
    return functional.layer_norm(x, normalized_shape, weight, bias, eps)

not_callable = 3
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Write a file that can be imported by path and as a module during the test."""

    def write(content: str = SOURCE) -> Path:
        path = tmp_path / "found_norms.py"
        path.write_text(content, encoding="utf-8")
        return path

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        if "found_norms" in name:
            del sys.modules[name]


@pytest.mark.parametrize("norm", ALL, ids=lambda norm: norm.name)
def test_a_name_finds_its_implementation(norm: Implementation) -> None:
    assert find(norm.name) is norm


def test_a_plain_function_is_found_by_module_and_by_path_with_the_declarations_of_native(
    file: Callable[..., Path],
) -> None:
    file()
    found = find("found_norms:my_norm")
    assert found.name == "found_norms:my_norm"
    assert found.algorithm == native.algorithm
    assert found.backward_reduction == native.backward_reduction
    assert found.summary == "Of a file."
    assert torch.equal(found(torch.ones(2, 3), (3,)), torch.zeros(2, 3))
    by_path = f"{file()}:my_norm"
    assert find(by_path).name == by_path


def test_an_entry_point_of_a_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "layernorm_bench.implementations"
    point = EntryPoint("elsewhere", "implementations.welford:welford", group)
    groups: list[str] = []

    def entry_points(group: str) -> tuple[EntryPoint, ...]:
        groups.append(group)
        return (point,)

    monkeypatch.setattr(implementations, "entry_points", entry_points)
    assert find("elsewhere") is find("welford") is find("implementations.welford:welford")
    assert set(groups) == {group}
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
    file: Callable[..., Path], target: str, words: str
) -> None:
    with pytest.raises(TargetError, match=words):
        find(target.replace("FILE", str(file())))


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
    file: Callable[..., Path], content: str, named: str
) -> None:
    path = file(content)
    for target in (f"{path}:norm", "found_norms:norm"):
        with pytest.raises(TargetError, match=f"cannot import: {named}"):
            find(target)


def test_an_unsupported_case_is_neither_a_value_error_nor_a_target_error() -> None:
    # a refusal and a mistake in the arguments must never be confused
    assert not issubclass(UnsupportedError, ValueError | TargetError)

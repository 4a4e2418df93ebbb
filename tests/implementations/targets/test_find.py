"""A target names an implementation of this package, of a plugin or in any file; or says why not."""

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


@pytest.mark.parametrize("norm", ALL, ids=lambda each: each.name)
def test_a_name_finds_its_implementation(norm: Implementation) -> None:
    assert find(norm.name) is norm


def test_module_and_function_find_an_implementation() -> None:
    assert find("implementations.two_pass:two_pass") is find("two_pass")


def test_a_plain_function_is_found_by_module_with_the_declarations_of_native(
    file: Callable[..., Path],
) -> None:
    file()
    found = find("found_norms:my_norm")
    assert found.name == "found_norms:my_norm"
    assert found.algorithm == native.algorithm
    assert found.backward_reduction == native.backward_reduction
    assert found.summary == "Of a file."
    assert torch.equal(found(torch.ones(2, 3), (3,)), torch.zeros(2, 3))


def test_a_plain_function_is_found_by_file(file: Callable[..., Path]) -> None:
    target = f"{file()}:my_norm"
    assert find(target).name == target


def test_an_entry_point_of_a_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "layernorm_bench.implementations"
    point = EntryPoint("elsewhere", "implementations.welford:welford", group)
    groups: list[str] = []

    def entry_points(group: str) -> tuple[EntryPoint, ...]:
        groups.append(group)
        return (point,)

    monkeypatch.setattr(implementations, "entry_points", entry_points)
    assert find("elsewhere") is find("welford")
    assert set(groups) == {group}


def test_for_a_misspelt_name_the_nearest_is_suggested() -> None:
    with pytest.raises(TargetError, match=r"no implementation named 'welfrod'.*mean 'welford'"):
        find("welfrod")


def test_for_an_unknown_name_the_known_ones_are_listed() -> None:
    with pytest.raises(TargetError, match=r"known: native, one_pass.*file\.py:function"):
        find("zzzzz")


def test_a_name_of_a_package_is_suggested_too(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("elsewhere", "nowhere:x", "layernorm_bench.implementations")
    monkeypatch.setattr(implementations, "entry_points", lambda group: (point,))
    with pytest.raises(TargetError, match="did you mean 'elsewhere'"):
        find("elsewher")


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


def test_a_missing_function_is_named(file: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="has no 'other_norm'"):
        find(f"{file()}:other_norm")


def test_an_object_that_cannot_be_called_is_refused(file: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="is of type int, not a function"):
        find(f"{file()}:not_callable")


def test_a_colon_alone_is_no_target() -> None:
    with pytest.raises(TargetError):
        find(":")


def test_an_unsupported_case_is_neither_a_value_error_nor_a_target_error() -> None:
    # a refusal and a mistake in the arguments must never be confused
    assert not issubclass(UnsupportedError, ValueError | TargetError)

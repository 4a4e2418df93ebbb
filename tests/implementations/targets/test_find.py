"""Targets name implementations: ours, a package's, or a function in any file; else they say why."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import implementations
from implementations import ALL, Implementation, TargetError, UnsupportedError, find, native

GUEST = '''
from torch.nn import functional

def my_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Of an implementation."""
    return functional.layer_norm(x, normalized_shape, weight, bias, eps)

not_callable = 3
'''


@pytest.fixture
def implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Write a implementation's file, importable as module and by path, and forget it afterwards."""

    def write(content: str = GUEST) -> Path:
        path = tmp_path / "guest_norms.py"
        path.write_text(content, encoding="utf-8")
        return path

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        if "guest_norms" in name:
            del sys.modules[name]


@pytest.mark.parametrize("norm", ALL, ids=lambda each: each.name)
def test_a_name_finds_its_implementation(norm: Implementation) -> None:
    assert find(norm.name) is norm


def test_module_and_function_find_an_implementation() -> None:
    assert find("implementations.two_pass:two_pass") is find("two_pass")


def test_a_plain_function_is_found_by_module_and_held_to_what_native_keeps(
    implementation: Callable[..., Path],
) -> None:
    implementation()
    found = find("guest_norms:my_norm")
    assert found.name == "guest_norms:my_norm"
    assert found.algorithm == native.algorithm
    assert found.backward_reduction == native.backward_reduction
    assert found.summary == "Of an implementation."
    assert torch.equal(found(torch.ones(2, 3), (3,)), torch.zeros(2, 3))


def test_a_plain_function_is_found_by_file(implementation: Callable[..., Path]) -> None:
    target = f"{implementation()}:my_norm"
    assert find(target).name == target


def test_an_entry_point_finds_what_a_package_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "layernorm_bench.implementations"
    offered = EntryPoint("elsewhere", "implementations.welford:welford", group)
    asked: list[str] = []

    def entry_points(group: str) -> tuple[EntryPoint, ...]:
        asked.append(group)
        return (offered,)

    monkeypatch.setattr(implementations, "entry_points", entry_points)
    assert find("elsewhere") is find("welford")
    assert set(asked) == {group}


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(TargetError, match=r"no implementation named 'welfrod'.*mean 'welford'"):
        find("welfrod")


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(TargetError, match=r"known: native, one_pass.*file\.py:function"):
        find("zzzzz")


def test_a_name_of_a_package_is_suggested_too(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoint("elsewhere", "nowhere:x", "layernorm_bench.implementations")
    monkeypatch.setattr(implementations, "entry_points", lambda group: (offered,))
    with pytest.raises(TargetError, match="did you mean 'elsewhere'"):
        find("elsewher")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"no file {re.escape(str(tmp_path))}"):
        find(f"{tmp_path / 'missing.py'}:norm")


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(TargetError, match=r"ModuleNotFoundError.*no_such_module"):
        find("no_such_module:norm")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def broken(:", "SyntaxError"),
        ("import no_such_dependency", "ModuleNotFoundError"),
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_guest_that_cannot_be_imported_says_why(
    implementation: Callable[..., Path], content: str, named: str
) -> None:
    path = implementation(content)
    for target in (f"{path}:norm", "guest_norms:norm"):
        with pytest.raises(TargetError, match=f"cannot import: {named}"):
            find(target)


def test_a_missing_function_is_named(implementation: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="has no 'other_norm'"):
        find(f"{implementation()}:other_norm")


def test_what_cannot_be_called_is_no_implementation(implementation: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="is of type int, not a function"):
        find(f"{implementation()}:not_callable")


def test_a_colon_alone_is_no_target() -> None:
    with pytest.raises(TargetError):
        find(":")


def test_an_unsupported_case_is_neither_a_value_error_nor_a_target_error() -> None:
    # a refusal must never be taken for a mistake in the arguments, or the other way round
    assert not issubclass(UnsupportedError, ValueError | TargetError)

"""Sources compiled with other names: only the names change, and no instruction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from harness.regression.side_by_side import Loader

REVISION: Any = SimpleNamespace(
    package="theirs",
    is_own=lambda top: top in {"implementations", "kernels"},
    is_module=lambda name: name in {"kernels.ln", "kernels"},
    operators_of=lambda namespace: f"{namespace}_then" if namespace == "ours" else namespace,
)
SUBJECTS = sorted((Path(__file__).parents[3] / "implementations").rglob("*.py"))


def renamed(source: str) -> CodeType:
    return Loader("implementation", "implementation.py", REVISION).source_to_code(
        source.encode(), "implementation.py"
    )


def functions(code: CodeType) -> Iterator[CodeType]:
    """Everything that is defined in some code, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions(constant)


@pytest.mark.parametrize("path", SUBJECTS, ids=lambda path: path.name)
def test_a_function_of_another_revision_is_the_same_instructions(path: Path) -> None:
    source = path.read_text()
    before = [function.co_code for function in functions(compile(source, path, "exec"))]
    after = [function.co_code for function in functions(renamed(source))]
    assert after == before


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import implementations", {"theirs.implementations", "implementations"}),
        ("import kernels.ln as k", {"theirs.kernels.ln", "kernels", "ln", "k"}),
        ("from kernels.ln import f", {"theirs.kernels.ln", "f"}),
        ("from . import f", {"", "f"}),
        ("import torch.nn", {"torch.nn", "torch"}),
        ("from torch import nn", {"torch", "nn"}),
        ("torch.ops.ours.f", {"torch", "ops", "ours_then", "f"}),
        ("torch.ops.aten.f", {"torch", "ops", "aten", "f"}),
        ("ours.f", {"ours", "f"}),
    ],
)
def test_only_names_of_own_modules_are_changed(source: str, names: set[str]) -> None:
    assert set(renamed(source).co_names) == names


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("'ours::f'", "ours_then::f"),
        ("'aten::f'", "aten::f"),
        ("Library('ours', 'DEF')", "ours_then"),
        ("word('ours')", "ours"),
        ("'kernels.ln'", "theirs.kernels.ln"),
        ("'kernels.rs'", "kernels.rs"),
        ("'kernels'", "kernels"),
        ("import_module('kernels')", "theirs.kernels"),
        ("import_module('torch')", "torch"),
        ("f'kernels.{x}'", "theirs.kernels."),
    ],
)
def test_only_strings_that_name_own_modules_or_operators_are_changed(
    source: str, value: str
) -> None:
    assert value in renamed(f"x = {source}").co_consts


def test_lines_stay_where_they_are() -> None:
    source = "import kernels.ln, os\n\ndef f():\n    import kernels\n    return 1 / 0\n"
    (found,) = functions(renamed(source))
    assert {line for _, _, line in found.co_lines()} == {3, 4, 5}

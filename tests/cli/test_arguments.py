"""Types of command-line arguments."""

from __future__ import annotations

import click
import pytest

from harness.cli.options import ASSIGNMENT, DURATION, Words


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("f", ["float32", "float16"]), ("float16,b", ["float16,bfloat16"]), ("x", [])],
)
def test_the_last_of_several_values_is_completed(typed: str, completed: list[str]) -> None:
    command = click.Command("run")
    kind = Words(("float32", "bfloat16", "float16"))
    items = kind.shell_complete(click.Context(command), click.Option(["--dtype"]), typed)
    assert [item.value for item in items] == completed


@pytest.mark.parametrize(
    ("typed", "assignment"),
    [
        ("dim=64", ("dim", 64)),
        ("kind=pre", ("kind", "pre")),
        ("name='a=b'", ("name", "a=b")),
        ("dims = (2, 3)", ("dims", (2, 3))),
    ],
)
def test_a_value_that_is_not_a_python_literal_is_text(
    typed: str, assignment: tuple[str, object]
) -> None:
    assert ASSIGNMENT.convert(typed, None, None) == assignment


def test_a_duration_is_in_seconds() -> None:
    convert = DURATION.convert
    assert [convert(text, None, None) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]

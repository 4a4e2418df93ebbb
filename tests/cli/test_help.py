"""The texts of --help, the command list, and what can be typed."""

from __future__ import annotations

from typing import Any

import pytest
from click.shell_completion import ShellComplete
from factories.commanding import IS_RECENT, answer, call
from factories.golden import assert_golden

import implementations
from harness.cases import NAMED, Axis, Grid, Sweep, preset_names, sweep_axes
from harness.cli import main


@pytest.mark.skipif(not IS_RECENT, reason="click 8.1 writes metavars otherwise")
@pytest.mark.parametrize("command", ["", *sorted(main.commands)])
def test_the_help_of_a_command(command: str) -> None:
    found = call(*filter(None, [command]), "--help", code=0)
    assert_golden(found.stdout, __file__, f"help_{command or 'main'}.txt")


# --- list ----------------------------------------------------------------------------------------


def test_every_name_of_every_kind_is_listed_with_a_description() -> None:
    found = answer("list")
    names = {kind: set(entries) for kind, entries in found.items()}
    assert all(text for entries in found.values() for text in entries.values())
    everyone = implementations.ALL + implementations.PEERS
    assert names["implementations"] == {implementation.name for implementation in everyone}
    assert names["presets"] == set(preset_names())
    for axis in ("distribution", "layout", "grad_output", "parameters"):
        assert names[axis if axis == "parameters" else f"{axis}s"] >= set(NAMED[axis])
    assert names["devices"] == {"cpu", "cuda"}
    assert "gpt2_xl" in names["workloads"]


# --- what can be typed ---------------------------------------------------------------------------


def typed(command: str, *arguments: str) -> Any:
    """Return the values that a command line gives to the parameters of a command."""
    return main.commands[command].make_context(command, [*arguments]).params


@pytest.mark.parametrize("axis", sweep_axes(), ids=lambda axis: axis.name)
def test_the_default_that_help_shows_can_be_typed(axis: Axis) -> None:
    shown = ",".join(map(axis.text, axis.default))
    values = sum(typed("run", axis.option, shown)[axis.key], ())
    assert Sweep().with_axes({axis.key: values}).grids == (Grid(),)


@pytest.mark.parametrize(
    ("start", "completed"),
    [("f", {"float16", "float32", "float64"}), ("float16,b", {"float16,bfloat16"}), ("x", set())],
)
def test_the_last_of_several_values_is_completed(start: str, completed: set[str]) -> None:
    shell = ShellComplete(main, {}, "layernorm-bench", "")
    items = shell.get_completions(["verify", "--dtype"], start)
    assert {item.value for item in items} == completed


def test_a_duration_is_in_seconds() -> None:
    found = [typed("run", "--time-budget", text)["time_budget_s"] for text in ("90s", "1.5h")]
    assert found == [90, 5400]

"""The texts of --help, the command list, and types of arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from factories.commanding import IS_RECENT, call
from factories.golden import assert_golden

import implementations
from harness.cases import (
    DISTRIBUTIONS,
    GRAD_OUTPUTS,
    LAYOUTS,
    PARAMETERS,
    Axis,
    Grid,
    Sweep,
    preset_names,
    sweep_axes,
)
from harness.cli import list as list_module
from harness.cli import main
from harness.cli.options import ASSIGNMENT, DURATION, Words, type_of
from harness.measure.devices import DEVICES
from harness.selection.workload import workload_names


@pytest.mark.skipif(not IS_RECENT, reason="click 8.1 writes metavars otherwise")
@pytest.mark.parametrize("command", ["", *sorted(main.commands)])
def test_the_help_of_a_command(command: str) -> None:
    found = call(*filter(None, [command]), "--help")
    assert found.exit_code == 0
    path = Path(__file__).parent / "golden" / f"help_{command or 'main'}.txt"
    assert_golden(found.stdout, path)


def test_help_imports_no_slow_package() -> None:
    script = """
import json, sys
from click.testing import CliRunner
from harness.cli import main
for arguments in ([], *([name] for name in main.commands)):
    found = CliRunner().invoke(main, [*arguments, "--help"])
    assert found.exit_code == 0, found.output
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    slow = {"torch", "numpy", "pandas", "pyarrow", "matplotlib", "pydantic", "rich"}
    assert not slow & set(json.loads(done.stdout))


@pytest.mark.parametrize("axis", sweep_axes(), ids=lambda axis: axis.name)
def test_the_default_that_help_shows_can_be_typed(axis: Axis) -> None:
    shown = ",".join(map(axis.text, axis.default))
    typed = type_of(axis).convert(shown, None, None)
    assert Sweep().with_axes({axis.key: typed}).grids == (Grid(),)


# === The command list


NAMES = {
    "implementations": {each.name for each in implementations.ALL + implementations.PEERS},
    "presets": set(preset_names()),
    "workloads": set(workload_names()),
    "distributions": set(DISTRIBUTIONS),
    "layouts": set(LAYOUTS),
    "grad_outputs": set(GRAD_OUTPUTS),
    "parameters": set(PARAMETERS),
    "devices": set(DEVICES),
}


def test_every_name_of_every_kind_is_listed_with_a_description() -> None:
    found = json.loads(call("list", "--json").stdout)
    assert {kind: set(entries) for kind, entries in found.items()} == NAMES
    assert all(text for entries in found.values() for text in entries.values())


def test_an_implementation_for_other_devices_than_the_cpu_names_them() -> None:
    found = json.loads(call("list", "implementations", "--json").stdout)["implementations"]
    assert found["triton_welford"].endswith("(CUDA only)")
    assert "only)" not in found["native"]


@pytest.mark.parametrize("kind", ["all", "presets"])
def test_names_and_descriptions_are_in_columns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    presets = {"ci": "what a CI job runs", "conditioning": "errors"}
    fake = {"presets": lambda: presets, "devices": lambda: {"cpu": "available"}}
    monkeypatch.setattr(list_module, "CATALOGUE", fake)
    found = call("list", kind)
    assert found.exit_code == 0
    assert_golden(found.stdout, Path(__file__).parent / "golden" / f"list_{kind}.txt")


# === Types of command-line arguments


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

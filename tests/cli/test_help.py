"""The texts of --help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import IS_RECENT, call
from golden import assert_golden

from harness.cli import main
from harness.cli.arguments import DTYPES
from harness.cli.export import FORMATS
from harness.cli.sweep_options import AXIS_OPTIONS, AxisOption
from harness.exports.formats import AS_TEXT
from harness.sweep import DTYPES as SWEEP_DTYPES
from harness.sweep import Grid, Sweep


@pytest.mark.skipif(not IS_RECENT, reason="click 8.1 writes metavars otherwise")
@pytest.mark.parametrize("command", ["", *sorted(main.commands)])
def test_the_help_of_a_command(command: str) -> None:
    found = call(*filter(None, [command]), "--help")
    assert found.exit_code == 0
    path = Path(__file__).parent / "golden" / f"help_{command or 'main'}.txt"
    assert_golden(found.stdout, path)


def test_every_option_has_a_help_text() -> None:
    without = [
        f"{name} {parameter.name}"
        for name, command in main.commands.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and not getattr(parameter, "help", None)
    ]
    assert without == []


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


# --- values that are written again in the command line, which imports nothing slow ----------------


@pytest.mark.parametrize("option", AXIS_OPTIONS, ids=lambda option: option.axis)
def test_the_default_of_an_axis_is_that_of_a_sweep(option: AxisOption) -> None:
    typed = option.type.convert(option.default, None, None)
    assert Sweep().with_axes({option.axis: typed}).grids == (Grid(),)


def test_every_axis_has_an_option() -> None:
    assert {option.axis for option in AXIS_OPTIONS} == set(Grid.model_fields)


def test_dtypes_and_formats_agree_with_sweep_and_exports() -> None:
    assert set(DTYPES) == set(SWEEP_DTYPES)
    assert set(FORMATS) == set(AS_TEXT)

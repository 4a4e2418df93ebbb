"""The texts of --help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from factories.commanding import IS_RECENT, call
from factories.golden import assert_golden

from harness.cases import Axis, Grid, Sweep
from harness.cases.axes import sweep_axes
from harness.cli import main
from harness.cli.options import type_of


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

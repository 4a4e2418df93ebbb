"""The public module: its names, and other packages with the same names."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.python_process import pytest_in, python

import harness.verify
import implementations
import layernorm_bench

CONSUMER = """
from collections.abc import Callable
from typing import Any

from torch import nn

from implementations import Implementation, {names}
from layernorm_bench import LayerNorm, assert_layer_norm, replace_layer_norms, verify

everything: tuple[Implementation, ...] = ({names})
norm: nn.LayerNorm = LayerNorm(8, implementation="two_pass")
checked: Callable[..., None] = assert_layer_norm
print(replace_layer_norms(norm, two_pass).changed, verify(two_pass, quick=True).passed)
verify(two_pass, quick="a mistake")
"""
# without the types of the dependencies, which take half a minute to read
MYPY = """
[mypy]
strict = True
[mypy-torch.*,numpy.*,pyarrow.*,click.*,rich.*,pytest.*,_pytest.*]
follow_imports = skip
follow_imports_for_stubs = True
"""


# --- names ---------------------------------------------------------------------------------------


def test_a_public_name_is_imported_once_from_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(layernorm_bench), "verify", raising=False)
    assert layernorm_bench.verify is harness.verify.verify
    assert vars(layernorm_bench)["verify"] is harness.verify.verify
    assert layernorm_bench.LayerNorm is implementations.LayerNorm


def test_a_strictly_typed_program_has_no_errors_but_its_own(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    names = ", ".join(implementation.name for implementation in implementations.ALL)
    (tmp_path / "user.py").write_text(CONSUMER.format(names=names))
    (tmp_path / "mypy.ini").write_text(MYPY)
    done = python("-m", "mypy", "--cache-dir=cache", "user.py", folder=tmp_path)
    (error,) = (line for line in done.stdout.splitlines() if " error: " in line)
    last = len(CONSUMER.splitlines())
    assert error.startswith(f'user.py:{last}: error: Argument "quick" to "verify" has incompatible')


# --- another package with the same name ----------------------------------------------------------


@pytest.fixture(params=["harness", "implementations"])
def shadow(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a package of a user, in the folder that Python searches first."""
    path = tmp_path / str(request.param) / "__init__.py"
    path.parent.mkdir()
    path.write_text("raise SystemExit('the package of the user was executed')\n")
    return path


def test_a_name_of_the_api_says_which_file_shadows_it(shadow: Path) -> None:
    # the folder of the user is searched for modules first
    done = python("-c", "from layernorm_bench import LayerNorm", folder=shadow.parents[1])
    error = done.stderr.splitlines()[-1]
    assert f"{shadow} is imported as {shadow.parent.name!r} instead of " in error
    assert error.endswith("run from another directory, or rename the former")


def test_the_option_of_pytest_says_which_file_shadows_it(shadow: Path) -> None:
    folder = shadow.parents[1]
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = pytest_in(folder, "--layernorm-sweep", "quick", code=pytest.ExitCode.USAGE_ERROR)
    assert f"ERROR: {shadow} is imported as {shadow.parent.name!r}" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_option_pytest_runs_with_another_harness_package(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("OWNER = 'the user'\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_it.py").write_text(
        "import harness\n"
        "def test_it(pytestconfig):\n"
        "    assert harness.OWNER == 'the user'\n"
        "    plugin = pytestconfig.pluginmanager.getplugin('layernorm_bench')\n"
        "    assert plugin.__name__ == 'layernorm_bench'\n"
    )
    assert "1 passed" in pytest_in(tmp_path, code=0).stdout

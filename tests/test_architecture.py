"""Rules of the code itself that no other test checks."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
from factories.python_process import python

from implementations.peers import PACKAGES

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path
    for package in ("harness", "implementations", "layernorm_bench")
    for path in (ROOT / package).rglob("*.py")
)
LONGEST = 650  # a file holds one idea: 100 to 600 lines are normal


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


# --- private names of torch ----------------------------------------------------------------------

PRIVATE = ROOT / "implementations" / "torch_private.py"
# a torch built without CUDA lacks those of CUDA
NAMES = sorted(set(re.findall(r'"(torch[\w.]*:(?!_cuda_)[\w.]+)"', PRIVATE.read_text())))


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_the_private_name(name: str) -> None:
    resolve_name(name)


def test_no_other_module_uses_private_names_of_torch() -> None:
    private = re.compile(r"\btorch(?:\.\w+)*(?:\.| import )_[a-zA-Z]")
    users = {name_of(path) for path in MODULES if private.search(path.read_text())}
    # the docstring of the second names one
    assert users == {name_of(PRIVATE), "implementations/cpu/compiling.py"}


# --- imports -------------------------------------------------------------------------------------

CHOOSE = f"""
from harness.cli import main
main(["choose", "{ROOT}/results/published/cpu_recentred.parquet"], standalone_mode=False)
"""
VERIFY = """
from click.testing import CliRunner
from harness.cli import main
target = ["--quick", "--dtype", "float32", "torch.nn.functional:rms_norm"]
found = CliRunner().invoke(main, ["verify", *target])
assert "it returns" in found.output, found.output  # a whole verdict came from the worker
"""
HELP = """
from click.testing import CliRunner
from harness.cli import main
for arguments in ([], *([name] for name in main.commands)):
    found = CliRunner().invoke(main, [*arguments, "--help"])
    assert found.exit_code == 0, found.output
"""
OPTIONAL = {package.module for package in PACKAGES} - {"numpy"}  # torch itself imports numpy


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("import layernorm_bench", {"torch", "pytest", "harness", "implementations"}),
        ("import implementations", {"harness", "triton", *OPTIONAL}),
        ("from harness.report import build_page", {"torch"}),
        # the parent of a run, and of a comparison of revisions
        ("from harness.run import Fleet, Session, plan, merged", {"torch"}),
        ("import harness.regression.ab", {"torch"}),
        (CHOOSE, {"torch"}),
        # the parent of a verification
        (VERIFY, {"torch", "implementations"}),
        (HELP, {"torch", "numpy", "pandas", "pyarrow", "matplotlib", "pydantic", "rich"}),
    ],
)
def test_no_program_imports_what_it_does_not_need(program: str, unwanted: set[str]) -> None:
    done = python("-c", f"{program}\nimport sys\nprint(*sys.modules)", folder=ROOT, code=0)
    assert unwanted.isdisjoint(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", ["harness.cases", "harness.report", "harness.verify"])
def test_every_name_of_a_door_that_imports_late_is_there(name: str) -> None:
    door = import_module(name)
    assert len(door.__all__) > 20
    assert [found for found in door.__all__ if not hasattr(door, found)] == []

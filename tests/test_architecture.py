"""Rules of the code itself that no other test checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path
    for package in ("harness", "implementations", "layernorm_bench")
    for path in (ROOT / package).rglob("*.py")
)
# handlers of any exception per file: they run foreign code and report whatever it raises
CATCHES_ANYTHING = {
    "harness/run/call.py": 1,
    "experiments/peer_tests/peer_problems.py": 1,  # any exception fails a peer's test
    "harness/regression/side_by_side.py": 1,  # another revision's import may raise anything
    "harness/run/fleet.py": 1,
    "harness/run/instructions.py": 1,  # a forked child prints a bug and ends at once
    "implementations/targets/attempt.py": 1,
    "implementations/targets/locate.py": 1,  # a target's import may raise anything
}
PRINTS = {"harness/cli/__init__.py", "harness/cli/terminal.py"}
LONGEST = 650  # a file holds one idea: 100 to 600 lines are normal


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def catches(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Yield handlers that catch any exception: bare, Exception or BaseException."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {ast.unparse(kind) if kind else "" for kind in kinds}
            if names & {"", "Exception", "BaseException"}:
                yield node


def prints(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield calls of print, and writes to standard output."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.stdout.write"}:
            yield node


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_keeps_the_rules(path: Path) -> None:
    source, name = path.read_text(), name_of(path)
    tree = ast.parse(source)
    assert len(source.splitlines()) <= LONGEST
    handlers = [handler.lineno for handler in catches(tree)]
    assert len(handlers) == CATCHES_ANYTHING.get(name, 0), handlers
    assert name in PRINTS or [call_of_print.lineno for call_of_print in prints(tree)] == []


@pytest.mark.parametrize(
    ("clause", "is_wide"),
    [("except:", True), ("except (OSError, Exception):", True), ("except OSError:", False)],
)
def test_a_handler_of_any_exception_is_found(clause: str, is_wide: bool) -> None:
    assert bool(list(catches(ast.parse(f"try:\n    f()\n{clause}\n    pass\n")))) == is_wide


@pytest.mark.parametrize("source", ["def f():\n    print('x')\n", "sys.stdout.write('x')\n"])
def test_a_print_is_found(source: str) -> None:
    assert list(prints(ast.parse(source)))


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


@pytest.mark.parametrize("name", ["harness.cases", "harness.report"])
def test_every_name_of_a_door_that_imports_late_is_there(name: str) -> None:
    door = import_module(name)
    assert len(door.__all__) > 20
    assert [found for found in door.__all__ if not hasattr(door, found)] == []


def test_modules_import_downwards_only() -> None:
    assert {"harness/cli/__init__.py", "implementations/native.py"} <= set(map(name_of, MODULES))

    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run(
        [linter, "--no-cache", "--config", ROOT / "pyproject.toml"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

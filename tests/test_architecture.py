"""Rules of the code itself that no other test checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path
    for package in ("harness", "implementations", "layernorm_bench")
    for path in (ROOT / package).rglob("*.py")
)
# these run foreign code, and turn every exception of it into a result or a message
CATCHES_ANYTHING = {
    "harness/numerics/computed.py": 1,
    "experiments/peer_tests/peer_problems.py": 1,  # any exception fails a peer's test
    "harness/regression/ab/side_by_side.py": 1,  # another revision's import may raise anything
    "harness/run/worker.py": 1,
    "implementations/targets/attempt.py": 1,
    "implementations/targets/locate.py": 1,  # a target's import may raise anything
}
PRINTS = {"harness/cli/__init__.py", "harness/cli/terminal.py"}
LONGEST = 320


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def catches(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Yield handlers that catch any exception: bare, Exception or BaseException."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {ast.unparse(each) if each else "" for each in kinds}
            if names & {"", "Exception", "BaseException"}:
                yield node


def prints(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield calls of print, and writes to standard output."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.stdout.write"}:
            yield node


def test_modules_are_found() -> None:
    assert "harness/cli/__init__.py" in map(name_of, MODULES)
    assert "implementations/native.py" in map(name_of, MODULES)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_any_exception_is_caught_only_around_foreign_code(path: Path) -> None:
    found = list(catches(ast.parse(path.read_text())))
    lines = [each.lineno for each in found]
    assert len(found) == CATCHES_ANYTHING.get(name_of(path), 0), lines


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_command_line_prints(path: Path) -> None:
    if name_of(path) not in PRINTS:
        assert [each.lineno for each in prints(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    "clause",
    ["except:", "except Exception:", "except BaseException as e:", "except (OSError, Exception):"],
)
def test_a_new_catch_of_anything_would_be_noticed(clause: str) -> None:
    assert list(catches(ast.parse(f"try:\n    f()\n{clause}\n    pass\n")))


@pytest.mark.parametrize("clause", ["except OSError:", "except (KeyError, ValueError) as error:"])
def test_a_narrow_catch_is_none_of_them(clause: str) -> None:
    assert not list(catches(ast.parse(f"try:\n    f()\n{clause}\n    pass\n")))


def test_a_new_print_would_be_noticed() -> None:
    assert list(prints(ast.parse("def f():\n    print('x')\n")))
    assert list(prints(ast.parse("import sys\nsys.stdout.write('x')\n")))


def test_the_implementations_know_nothing_of_the_harness() -> None:
    for path in MODULES:
        if name_of(path).startswith("implementations/"):
            imported = {
                each.module if isinstance(each, ast.ImportFrom) else each.names[0].name
                for each in ast.walk(ast.parse(path.read_text()))
                if isinstance(each, ast.Import | ast.ImportFrom)
            }
            assert not [each for each in imported if (each or "").startswith("harness")]


def test_modules_import_downwards_only() -> None:
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

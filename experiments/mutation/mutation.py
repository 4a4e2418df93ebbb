"""Mutation testing of the harness itself: does a test fail when a line of a room is changed?

A sample of small changes (a comparison turned, a number one larger, a statement removed) is drawn
from the source of a room at a fixed seed. Each is written into a copy of the repository, and the
tests that execute the changed line are run until one fails. A change that no test notices survives:
it is harmless, or a test is missing.

    python experiments/mutation/mutation.py numerics regression selection store --out FOLDER
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

SEED = 20261124
LIMIT_S = 300
"""Tests of one change that take longer have noticed it: most such changes are endless loops."""

TURNED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip
"""The operator that each is replaced with."""

EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}


@dataclass(frozen=True)
class Mutation:
    """One change: what stands at some characters of a file is replaced."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied_to(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]


class _Finder:
    """Every change of one file."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        # columns of ast count the bytes of a line in UTF-8
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _at(self, line: int, start: int, end: int, new: str) -> Mutation:
        return Mutation(self.file, line, start, end, self.source[start:end], new)

    def _replaced(self, node: ast.expr | ast.stmt, new: str) -> Mutation:
        return self._at(node.lineno, *self.span(node), new)

    def _operator(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutation]:
        new = TURNED.get(type(operator))
        if new is None:
            return
        start, end = self.span(left)[1], self.span(right)[0]
        between = self.source[start:end]
        # parentheses around an operand stay
        first, last = 0, len(between)
        while first < last and between[first] in " )\n":
            first += 1
        while last > first and between[last - 1] in " (\n":
            last -= 1
        if "#" not in between:
            yield self._at(left.end_lineno or left.lineno, start + first, start + last, new)

    def mutations(self) -> Iterator[Mutation]:
        yield from self._in(ast.parse(self.source))

    def _in(self, node: ast.AST) -> Iterator[Mutation]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not self._is_declaration(child):
                    yield from self._of(child)
                    yield from self._in(child)

    @staticmethod
    def _is_declaration(node: ast.AST) -> bool:
        """Whether a change of this statement changes nothing that runs."""
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom():
                return True
            case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.JoinedStr():
                return True
        return False

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left=left, ops=operators, comparators=rights):
                for before, operator, after in zip(
                    [left, *rights], operators, rights, strict=False
                ):
                    yield from self._operator(before, after, operator)
            case ast.BinOp(left=left, op=operator, right=right):
                yield from self._operator(left, right, operator)
            case ast.BoolOp(op=operator, values=[first, second, *_]):
                yield from self._operator(first, second, operator)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replaced(node, f"({ast.get_source_segment(self.source, operand)})")
            case ast.Constant(value=bool(value)):
                yield self._replaced(node, str(not value))
            case ast.Constant(value=int(value) | float(value)):
                yield self._replaced(node, repr(value + 1))
            case ast.Call(func=ast.Name(id=name) as function) if name in EXCHANGED:
                yield self._replaced(function, EXCHANGED[name])
            case ast.Return(value=ast.expr()):
                yield self._replaced(node, "return None")
            case ast.Expr(value=ast.Call() | ast.Yield()) | ast.AugAssign() | ast.Raise():
                yield self._replaced(node, "pass")
            case ast.Continue() | ast.Break():
                yield self._replaced(node, "pass")


def sample(root: Path, room: str, size: int) -> list[Mutation]:
    """Draw changes of the files of a room, the same ones each time."""
    found = [
        mutation
        for path in sorted((root / "harness" / room).rglob("*.py"))
        for mutation in _Finder(str(path.relative_to(root)), path.read_text()).mutations()
    ]
    drawn = random.Random(f"{SEED} {room}").sample(found, min(size, len(found)))
    return sorted(drawn, key=lambda mutation: (mutation.file, mutation.start))


class Tests:
    """Which tests of a room execute a line, the quickest first: measured by one run of them all."""

    def __init__(self, root: Path, room: str) -> None:
        data, report = root / ".mutation.coverage", root / ".mutation.xml"
        settings = root / ".mutation.ini"
        settings.write_text(
            f"[run]\nsource = {root / 'harness' / room}\ndata_file = {data}\nparallel = true\n"
            "dynamic_context = test_function\ncontext = ${PYTEST_CURRENT_TEST-}\nsigterm = true\n"
            "patch = subprocess, _exit\n"
        )
        coverage = [sys.executable, "-m", "coverage"]
        # for tests whose target is in a process of its own
        environment = os.environ | {"PYTHONPATH": str(root)}
        subprocess.run(
            [*coverage, "run", f"--rcfile={settings}", "-m", "pytest", "-q",
             "-p", "no:cacheprovider", f"--junitxml={report}", f"tests/{room}"],
            cwd=root, env=environment, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        subprocess.run([*coverage, "combine", "-q", f"--rcfile={settings}"], cwd=root, check=False)
        self.room = room
        self.failing: set[str] = set()
        self.durations: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.get("name", "").split("[")[0]
            test = f"{case.get('classname', '').replace('.', '/')}.py::{name}"
            self.durations[test] += float(case.get("time", 0))
            if case.find("failure") is not None or case.find("error") is not None:
                self.failing.add(test)
        self.lines = self._executed(data, root)

    def _executed(self, data: Path, root: Path) -> dict[tuple[str, int], set[str]]:
        from coverage.numbits import numbits_to_nums

        executed: dict[tuple[str, int], set[str]] = defaultdict(set)
        query = (
            "select path, context, numbits from line_bits "
            "join file on file.id = file_id join context on context.id = context_id"
        )
        with contextlib.closing(sqlite3.connect(data)) as connection:
            for path, context, numbits in connection.execute(query):
                file = os.path.relpath(path, root)
                for line in numbits_to_nums(numbits):
                    executed[file, line].add(self._test(context))
        return executed

    @staticmethod
    def _test(context: str) -> str:
        """The identifier of a test, of pytest's or of coverage's making; "" outside any test."""
        if "::" in context:
            return context.split("[")[0].split(" ")[0]
        module, _, name = context.rpartition(".")
        return f"{module.replace('.', '/')}.py::{name}" if module.startswith("tests.") else ""

    def of(self, mutation: Mutation) -> list[str]:
        tests = self.lines.get((mutation.file, mutation.line), set())
        # executed when its module is imported: any test may depend on it
        chosen = set(self.durations) if "" in tests else tests & set(self.durations)
        return sorted(chosen - self.failing, key=lambda test: self.durations[test])


def is_noticed(tree: Path, mutation: Mutation, tests: list[str]) -> str:
    """Run the tests on a changed copy: how the change was noticed, or "survived"."""
    if not tests:
        return "not executed"
    path = tree / mutation.file
    source = path.read_text()
    try:
        path.write_text(mutation.applied_to(source))
        # a compiled file of the same second and size would be taken for this one
        os.utime(path, (time.time(), time.time() + 10 * random.random() - 20))
        process = os.fork()
        if process == 0:
            _run_tests(tree, tests)
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return "survived" if os.waitstatus_to_exitcode(status) == 0 else "failed"
            time.sleep(0.05)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return "took too long"
    finally:
        path.write_text(source)


def _run_tests(tree: Path, tests: list[str]) -> None:
    """In a forked process, which has imported the large libraries and nothing of the tree."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        import pytest

        # each argument costs a collection, so that hundreds of tests are named by their files
        arguments = tests if len(tests) <= 200 else sorted({test.split("::")[0] for test in tests})
        # the libraries that were imported before the fork
        ignored = "ignore::pytest.PytestAssertRewriteWarning"
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", ignored, *arguments]))
    finally:
        os._exit(code)


def judge_room(root: Path, room: str, size: int) -> list[dict[str, object]]:
    """Judge a sample of a room's changes, one after another, in a copy of the repository."""
    tests = Tests(root, room)
    if tests.failing:
        click.echo(
            f"{room}: left out, because they fail on unchanged code: {sorted(tests.failing)}"
        )
    mutations = sample(root, room, size)
    unchanged = replace(mutations[0], new=mutations[0].old)
    if is_noticed(root, unchanged, tests.of(unchanged)) not in ("survived", "not executed"):
        raise SystemExit(f"{room}: its tests fail on unchanged code")
    found = []
    for mutation in mutations:
        of_line = tests.of(mutation)
        verdict = is_noticed(root, mutation, of_line)
        found.append({"room": room, **asdict(mutation), "tests": len(of_line), "verdict": verdict})
        click.echo(
            f"{verdict:14} {mutation.file}:{mutation.line} {mutation.old!r} -> {mutation.new!r}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rooms", nargs="+", help="folders of harness/, each judged by tests/ROOM")
    parser.add_argument(
        "--revision", default="HEAD", help="the commit whose code and tests are judged"
    )
    parser.add_argument(
        "--sample", type=int, default=100, help="changes for each room (default: 100)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="a folder: one JSON file for each room"
    )
    options = parser.parse_args()
    repository = Path(__file__).resolve().parents[2]
    # imported once, before the forks; nothing of the tree that is changed
    import hypothesis  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    options.out.mkdir(parents=True, exist_ok=True)
    for room in options.rooms:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            subprocess.run(["git", "clone", "-q", repository, folder], check=True)
            subprocess.run(["git", "checkout", "-q", options.revision], cwd=folder, check=True)
            found = judge_room(Path(folder), room, options.sample)
        (options.out / f"{room}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

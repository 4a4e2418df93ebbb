"""Instruction counts, and the reason of each case that is not counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import implementations
from harness.records import Case, Mode
from harness.run import instructions
from harness.run.instructions import count_instructions, unavailable
from implementations import Implementation, torch_private

CASE = Case(implementation="native", shape=(32, 128))
UNHURRIED_S = 60.0
# runs what it is given; its dumps say in turn: one call, the loop, the loop and 100 calls
VALGRIND = """#!/bin/sh
for each in "$@"; do case "$each" in --callgrind-out-file=*) stem=${each#*=};; esac; done
for case in 0 3; do
    echo "totals: 200000" > "$stem.$((case + 1))"
    echo "totals: 40" > "$stem.$((case + 2))"
    echo "totals: 100040" > "$stem.$((case + 3))"
done
while case "$1" in --*) true;; *) false;; esac; do shift; done
exec "$@"
"""
SUBJECTS = """
import os, signal
def raises(*arguments): raise RuntimeError("not today")
def falls(*arguments): os.write(2, b"about to fall\\n"), os.kill(os.getpid(), signal.SIGSEGV)
def hangs(*arguments):
    while True: pass
"""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder on the PATH, with subjects.py and a fake valgrind."""
    if sys.platform != "linux" or not torch_private.can_count_instructions():
        pytest.skip(f"no valgrind could count here: {unavailable()}")
    for name, text in (("valgrind", VALGRIND), ("vgdb", "#!/bin/sh\n"), ("subjects.py", SUBJECTS)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def answers(*targets: str, timeout_s: float = UNHURRIED_S) -> list[Any]:
    """Return the count, or the reason why there is none, of a case of each target."""
    cases = [replace(CASE, implementation=target) for target in targets]
    found = list(count_instructions(cases, timeout_s))
    assert [case for case, _ in found] == cases
    return [answer for _, answer in found]


class FakeCallgrind:
    """Counts the instructions that a test spends, and 50 of its own for each dump."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.setattr(torch_private, "toggle_counting", self._toggle)
        monkeypatch.setattr(torch_private, "toggle_counting_and_dump", self._dump)
        self.is_on = False
        self.dumped: list[int] = []
        self._spent = 0

    def spend(self, executed: int) -> None:
        self._spent += executed if self.is_on else 0

    def _toggle(self) -> None:
        self.is_on = not self.is_on

    def _dump(self) -> None:
        self._toggle()
        self.dumped.append(self._spent)
        (self._folder / str(len(self.dumped))).write_text(f"totals: {self._spent + 50}\n")
        self._spent = 0

    def _dumps(self) -> Iterator[Path]:
        while True:
            yield self._folder / str(len(self.dumped))

    def count(self, function: Callable[..., Any]) -> int | str:
        implementation = Implementation(name="implementation", function=function, source="")
        self._monkeypatch.setattr(implementations, "ALL", (implementation,))
        return instructions._count(replace(CASE, implementation="implementation"), self._dumps())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCallgrind:
    return FakeCallgrind(tmp_path, monkeypatch)


@pytest.mark.parametrize(("executed", "calls"), [(1000, 100), (1_000_000, 19), (10**9, 3)])
def test_a_count_excludes_the_loop_and_long_calls_are_repeated_less(
    fake: FakeCallgrind, executed: int, calls: int
) -> None:
    assert fake.count(lambda *_: fake.spend(executed)) == executed
    assert fake.dumped == [executed, 0, calls * executed]


def test_an_implementation_that_raises_does_not_affect_later_counts(fake: FakeCallgrind) -> None:
    assert "ZeroDivisionError" in str(fake.count(lambda *_: 1 / 0 if fake.is_on else 1))
    assert not fake.is_on
    assert fake.count(lambda *_: fake.spend(1000)) == 1000


@pytest.mark.parametrize(
    ("where", "name", "value", "why"),
    [
        (sys, "platform", "darwin", "darwin"),
        (os, "environ", {"PATH": ""}, "no valgrind"),
        (torch_private, "can_count_instructions", bool, "without callgrind"),
    ],
)
@pytest.mark.usefixtures("path")
def test_where_instructions_cannot_be_counted_every_case_has_the_reason(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, value: object, why: str
) -> None:
    assert unavailable() is None
    monkeypatch.setattr(where, name, value)
    found = unavailable()
    assert why in (found or "")
    assert answers("native", "two_pass") == [found, found]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (replace(CASE, mode=Mode.COMPILED), "compiled"),
        (replace(CASE, threads=2), "thread of 2"),
        (replace(CASE, device="cuda"), "cuda"),
    ],
)
@pytest.mark.usefixtures("path")
def test_a_case_whose_count_would_be_misleading_is_refused(case: Case, why: str) -> None:
    ((_, answer),) = count_instructions([case], UNHURRIED_S)
    assert why in str(answer)


def test_an_exception_costs_one_case_and_a_crash_all_later_ones(path: Path) -> None:
    raises, falls = (f"{path}/subjects.py:{name}" for name in ("raises", "falls"))
    raised, unknown, counted, fallen, after = answers(raises, "nativ", "two_pass", falls, "native")
    assert (raised, counted) == ("RuntimeError: not today", 1000)
    assert "did you mean 'native'?" in unknown
    assert "SIGSEGV" in fallen
    assert "about to fall" in fallen
    assert after.endswith(fallen)


def test_a_case_that_hangs_is_ended_and_is_the_reason_of_later_cases(path: Path) -> None:
    before, hung, after = answers("native", f"{path}/subjects.py:hangs", "native", timeout_s=2)
    assert before == 1000
    assert "2 s" in hung
    assert after.endswith(hung)


@pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")
def test_under_the_real_valgrind_ten_operators_take_more_instructions_than_one() -> None:
    native, one_pass = answers("native", "one_pass", timeout_s=90)
    assert {type(native), type(one_pass)} == {int}, (native, one_pass)
    assert CASE.rows * CASE.hidden < native < one_pass

"""Instruction counts, and the reason of each case that is not counted."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.records import Case, Mode
from harness.run import count_instructions
from implementations import torch_private

CASE = Case(implementation="native", shape=(32, 128))
UNHURRIED_S = 60.0
# runs what it is given, as if callgrind had already made its dumps
VALGRIND = """#!/bin/sh
for argument in "$@"; do
    case "$argument" in --callgrind-out-file=*) stem=${argument#*=};; esac
done
number=0
for total in TOTALS; do number=$((number + 1)); echo "totals: $total" > "$stem.$number"; done
while case "$1" in --*) true;; *) false;; esac; do shift; done
exec "$@"
"""
# in turn: one call, the loop around the calls, and three times the loop with all calls, whose least
# counts; a child has its own
SHORT = (100_000, 40, *(50 * calls + 40 for calls in (1002, 1000, 1001)))


@pytest.fixture
def subjects(monkeypatch: pytest.MonkeyPatch, targets: Path) -> Path:
    """Return the file of the implementations; a fake valgrind is on the PATH."""
    if sys.platform != "linux" or not torch_private.can_count_instructions():
        pytest.skip("no valgrind could count here")
    valgrind = VALGRIND.replace("TOTALS", " ".join(map(str, SHORT)))
    for name, text in (("valgrind", valgrind), ("vgdb", "#!/bin/sh\n")):
        targets.with_name(name).write_text(text)
        targets.with_name(name).chmod(0o755)
    monkeypatch.setenv("PATH", str(targets.parent), prepend=os.pathsep)
    return targets


def answers(*targets: str, timeout_s: float = UNHURRIED_S) -> list[Any]:
    """Return the count, or the reason why there is none, of a case of each target."""
    cases = [replace(CASE, implementation=target) for target in targets]
    found = list(count_instructions(cases, timeout_s))
    assert [case for case, _ in found] == cases
    return [answer for _, answer in found]


def test_a_count_is_of_one_call_and_a_crash_costs_one_case(subjects: Path) -> None:
    names = ("raises", "crashes", "hangs", "right")
    found = answers("nativ", *(f"{subjects}:{name}" for name in names), timeout_s=5)
    unknown, raised, fallen, hanging, counted = found
    assert "did you mean 'native'?" in unknown
    assert raised == "RuntimeError: not today"
    assert "SIGSEGV" in fallen
    assert "not done in the time" in hanging
    assert counted == 1000


def test_targets_may_be_found_by_another_function(
    subjects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(subjects.parent)
    find = import_module("targets").find
    case = replace(CASE, implementation="another name")
    ((_, counted),) = count_instructions([case], UNHURRIED_S, find)
    assert counted == 1000


@pytest.mark.usefixtures("subjects")
def test_where_instructions_cannot_be_counted_every_case_has_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    first, second = answers("native", "two_pass")
    assert "no valgrind" in first
    assert "no valgrind" in second


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (replace(CASE, mode=Mode.COMPILED), "compiled"),
        (replace(CASE, threads=2), "thread of 2"),
        (replace(CASE, device="cuda"), "cuda"),
    ],
)
@pytest.mark.usefixtures("subjects")
def test_a_case_whose_count_would_be_misleading_is_refused(case: Case, why: str) -> None:
    ((_, answer),) = count_instructions([case], UNHURRIED_S)
    assert why in str(answer)


@pytest.mark.skipif(
    "REAL_VALGRIND" not in os.environ, reason="takes a minute: run with REAL_VALGRIND=1"
)
def test_under_the_real_valgrind_ten_operators_take_more_instructions_than_one() -> None:
    native, one_pass = answers("native", "one_pass", timeout_s=90)
    assert {type(native), type(one_pass)} == {int}, (native, one_pass)
    assert CASE.rows * CASE.hidden < native < one_pass

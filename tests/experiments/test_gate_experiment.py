"""The gate experiment in short: what is exact, in two cases, through the commands themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

GATES = Path(__file__).parents[2] / "experiments" / "gates"
SWEEP = """
[[grids]]
implementations = ["subjects.py:native", "subjects.py:two_pass"]
shapes = ["8x64"]
measure = ["errors", "memory"]
"""


@pytest.fixture(scope="module")
def gates() -> Iterator[Any]:
    sys.path.insert(0, str(GATES))
    try:
        import live_gates

        yield live_gates
    finally:
        sys.path.remove(str(GATES))


@pytest.fixture(scope="module")
def repository(gates: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    sweep = tmp_path_factory.mktemp("sweep") / "two.toml"
    sweep.write_text(SWEEP)
    return gates.Repository(tmp_path_factory.mktemp("repository"), sweep)


def kinds(answer: dict[str, Any]) -> dict[str, str]:
    return {change["case"]["implementation"]: change["kind"] for change in answer["changes"]}


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ("nothing", "unchanged"),
        ("bfloat16 statistics", "regressed"),
        ("variance over N-1", "regressed"),
        ("extra copy", "regressed"),
    ],
)
def test_ab_fails_for_planted_changes_only(repository: Any, planted: str, kind: str) -> None:
    repository.plant(planted)
    answer = repository.run("ab")
    assert kinds(answer) == {"subjects.py:native": "unchanged", "subjects.py:two_pass": kind}
    assert answer["failed"] is (kind == "regressed")


def test_all_that_is_planted_is_a_task_of_each_gate(gates: Any) -> None:
    tasks = gates.tasks_of("quiet", ("ab", "check"), 2, 1)
    planted = [(task.gate, task.planted) for task in tasks]
    assert planted.count(("ab", "nothing")) == planted.count(("check", "nothing")) == 2
    for gate in ("ab", "check"):
        assert {(gate, what) for what, _ in (*gates.SLOWER[gate], *gates.WRONG)} <= {*planted}


def test_the_tables_count_false_failures_and_what_was_found(gates: Any) -> None:
    row = {
        **dict.fromkeys(("metric", "ratio", "reason"), None),
        "implementation": "two_pass",
        **{"gate": "ab", "condition": "quiet", "run_s": 9.0, "load_average": 1.0},
        **{"started": "2026-01-01T00:00:00", "commit": "0" * 40, "cpu": "any", "cores": 2},
    }
    rows = [
        {
            **row,
            "run": 0,
            "planted": "nothing",
            "failed": True,
            "case": "one_pass",
            "kind": "slower",
        },
        {
            **row,
            "run": 1,
            "planted": "x",
            "failed": True,
            "case": "subjects.py:two_pass/forward",
            "kind": "regressed",
        },
        {**row, "run": 1, "planted": "x", "failed": True, "case": "native", "kind": "unchanged"},
    ]
    text = gates.report(pd.DataFrame(rows))
    assert "| quiet | 1 | 1 | 1 | 1 | 0 | 9 | 1.0 |" in text
    assert "| x | two_pass | quiet | 1 of 1 | 0 | 1 of 1 | 0 of 1 |  |" in text

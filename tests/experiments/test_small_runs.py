"""Experiments in short: planted changes, histories, and a driver that is killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faults.kill_driver import PHASES, LossError, Run, kill_in
from history.detection import CONDITIONS, EFFECTS, IN_USE, RUNS, simulate

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
        ("extra copy", "regressed"),
    ],
)
def test_ab_fails_for_planted_changes_only(repository: Any, planted: str, kind: str) -> None:
    repository.plant(planted)
    answer = repository.run("ab")
    assert kinds(answer) == {"subjects.py:native": "unchanged", "subjects.py:two_pass": kind}
    assert answer["failed"] is (kind == "regressed")


# === The experiment on histories: what its rows count


def test_large_changes_are_found_and_rows_are_complete() -> None:
    rows = [row for row in simulate(repeats=3, of_others=1) if row.detector == IN_USE]
    assert len(rows) == len(RUNS) * len(CONDITIONS) * len(EFFECTS)
    steady = [row for row in rows if row.condition == "1 %" and row.runs == 60]
    assert [row.found for row in steady if row.effect == 0.1] == [3]
    assert all(row.found == 0 for row in rows if not row.effect)


# === A driver that is killed in each phase of a run; 200 kills are an experiment


def test_a_run_whose_driver_is_killed_in_each_phase_loses_nothing(tmp_path: Path) -> None:
    kills = list(kill_in(PHASES, tmp_path, Random(1)))
    assert len(kills) == len(PHASES)


def test_a_record_other_than_the_acknowledged_one_is_found(tmp_path: Path) -> None:
    run = Run(tmp_path / "run.parquet", [], {})
    assert run.start(None, Random(1)) is None
    run.check()
    run.acknowledged["3"] = "another"
    with pytest.raises(LossError, match="case 3"):
        run.check()

"""The command check against the runs of a history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result
from factories.checked_runs import ONE, Install, counts, run_of
from factories.commanding import call, complaint
from factories.compared_runs import ELSEWHERE, HERE, STEADY, ScriptedFleet
from factories.histories import runs_of, stored_history

from harness.store import write

pytestmark = pytest.mark.usefixtures("install")  # timing fails the test


def against_history(tmp_path: Path, ratios: Sequence[float], head: float, *more: str) -> Result:
    """Check a run of one case with the ratio ``head`` against a history of ``ratios``."""
    runs = runs_of(ONE, ratios)
    folder = stored_history(tmp_path / "history", *runs)
    write(run_of(head, environment=HERE), folder / "head.parquet")
    return call("check", str(folder / "head.parquet"), "--against-history", str(folder), *more)


def test_a_run_like_those_of_its_history_passes(tmp_path: Path) -> None:
    found = against_history(tmp_path, STEADY, 1.005)
    assert (found.exit_code, counts(found)) == (0, "1 unchanged")
    assert "the last 10 runs of" in " ".join(found.stdout.split())


def test_a_confirmed_slowdown_against_a_history_fails(tmp_path: Path, install: Install) -> None:
    install(ScriptedFleet({ONE.id: 1.1}))
    found = against_history(tmp_path, STEADY, 1.1)
    assert (found.exit_code, counts(found)) == (1, "1 slower")


def test_too_short_a_history_judges_no_time(tmp_path: Path) -> None:
    found = against_history(tmp_path, STEADY[:4], 1.5)
    assert (found.exit_code, counts(found)) == (0, "1 inconclusive")
    assert "has so many comparable runs" in " ".join(found.stdout.split())


def test_a_history_of_another_machine_judges_memory_alone(tmp_path: Path) -> None:
    folder = stored_history(tmp_path, *runs_of(ONE, STEADY, environment=ELSEWHERE))
    write(run_of(2.0), Path("head.parquet"))
    found = call("check", "head.parquet", "--against-history", str(folder))
    assert (found.exit_code, counts(found)) == (0, "1 not comparable")


@pytest.mark.parametrize(
    "options",
    [(), ("--against-history", ".", "--baseline", "b"), ("--against-history", ".", "--accept")],
)
def test_a_gate_has_one_thing_to_compare_with(options: tuple[str, ...]) -> None:
    assert "--against-history" in complaint("check", "run.parquet", *options)

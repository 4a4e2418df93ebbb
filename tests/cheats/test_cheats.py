"""``run`` and ``verify`` name every cheat, and no cheat spoils the next target's result.

A cheat looks fast or right without being it. Each is the source of a small file with a function
``norm``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cheat import Cheat
from of_calls import OF_CALLS
from of_surroundings import OF_SURROUNDINGS

from harness.records import Budget, Case, Direction, Measurement, Status
from harness.run import Fleet, Job, run_case
from harness.verify import VerifyOptions, verify_in_worker
from harness.verify.workers import why_unverifiable

CHEATS = (*OF_SURROUNDINGS, *OF_CALLS)
BUDGET = Budget(limit_s=0.2, min_epochs=2, max_epochs=4)
OPTIONS = VerifyOptions(quick=True, dtypes=("float32",), directions=(Direction.FORWARD,))
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """One worker for all cheats: what one changes must not reach the next."""
    with Fleet() as fleet:
        yield fleet


def target_of(cheat: Cheat, folder: Path) -> str:
    file = folder / f"cheat_{CHEATS.index(cheat)}.py"
    file.write_text(cheat.file)
    return f"{file}:norm"


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_run_names_the_cheat(fleet: Fleet, tmp_path: Path, cheat: Cheat) -> None:
    target = target_of(cheat, tmp_path)
    assert fleet.unresolved([target]) == ()
    case = Case(implementation=target, shape=(64, 256))
    record = fleet.call(run_case, Job(case, (Measurement.LATENCY,), BUDGET), TIMEOUT_S)
    if cheat.run is None:
        assert record.status is Status.OK
        return
    assert record.status is Status.WRONG  # choose takes no such candidate
    assert cheat.run in record.reason


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_verify_names_the_cheat(fleet: Fleet, tmp_path: Path, cheat: Cheat) -> None:
    target = target_of(cheat, tmp_path)
    assert fleet.unresolved([target], (), why_unverifiable) == ()
    verdict = fleet.call(verify_in_worker, (target, OPTIONS, {}), TIMEOUT_S)
    assert verdict.is_wrong
    said = [finding.text for finding in (*verdict.failures, *verdict.violations)]
    assert any(cheat.verified in text for text in said), said


def test_the_table_of_the_documentation_is_that_of_the_suite() -> None:
    lines = ["| cheat | run says | verify says | published |", "|---|---|---|---|"]
    for cheat in CHEATS:
        run = cheat.run or "nothing: its inputs give the cheat no advantage"
        lines.append(f"| {cheat.name} | {run} | {cheat.verified} | {cheat.seen} |")
    table = "\n".join(lines)
    page = (Path(__file__).parents[2] / "docs" / "cheats.md").read_text(encoding="utf-8")
    assert f"<!-- table of cheats -->\n\n{table}\n\n<!-- end of table -->" in page

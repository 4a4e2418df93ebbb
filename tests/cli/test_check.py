"""The command check: exit codes, what is timed again, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from factories.checked_runs import (
    BASELINE,
    GATE,
    ONE,
    THREE,
    TWO,
    Install,
    counts,
    gate,
    run_of,
    store,
)
from factories.commanding import complaint, write_journal
from factories.compared_runs import (
    ELSEWHERE,
    HERE,
    STEADY,
    ScriptedFleet,
    elsewhere,
    failed,
    make_case,
    make_record,
    results_of,
)

from harness.records import Environment, Status
from harness.store import Results, write

pytestmark = pytest.mark.usefixtures("install")  # timing fails the test


# --- the gate ------------------------------------------------------------------------------------


def test_an_unchanged_run_passes() -> None:
    store(run_of(1.0, 1.01, 0.99))
    result = gate()
    assert (result.exit_code, counts(result)) == (0, "3 unchanged")


@pytest.mark.parametrize(
    ("first", "again", "processes", "code", "kind"),
    [
        (1.2, {TWO.id: 1.2}, 5, 1, "slower"),
        (1.2, {TWO.id: 1.001}, 1, 0, "inconclusive"),  # slow by chance
        (1.2, {}, 5, 0, "inconclusive"),  # it crashes
        (0.7, {TWO.id: 0.7}, 5, 0, "faster"),
    ],
    ids=["slower", "by chance", "crashes", "faster"],
)
def test_a_suspect_is_timed_in_five_fresh_processes_or_until_one_refutes_it(
    install: Install, first: float, again: dict[str, float], processes: int, code: int, kind: str
) -> None:
    store(run_of(1.0, first, 1.0))
    machine = install(ScriptedFleet(ratio_of=again))
    result = gate()
    assert result.exit_code == code
    assert set(counts(result).split(", ")) == {f"1 {kind}", "2 unchanged"}
    assert [[job.case for job in jobs] for jobs in machine.asked] == [[TWO]] * processes
    assert len(result.stderr.splitlines()) == processes  # progress


def test_fresh_processes_take_the_suspects_in_different_orders(install: Install) -> None:
    cases = [make_case(rows=rows) for rows in range(1, 7)]
    before = results_of(*(make_record(case, STEADY) for case in cases))
    store(results_of(*(make_record(case, (1.2,)) for case in cases)), before)
    machine = install(ScriptedFleet(ratio_of={case.id: 1.2 for case in cases}))
    assert gate().exit_code == 1
    assert len({tuple(job.case.id for job in jobs) for jobs in machine.asked}) == 5


def test_no_confirm_times_nothing_and_suspects_are_inconclusive() -> None:
    store(run_of(1.0, 1.2, 1.0))
    result = gate("--no-confirm")
    assert (result.exit_code, counts(result)) == (0, "1 inconclusive, 2 unchanged")


@pytest.mark.parametrize(
    ("here", "measured_on", "fact"),
    [
        (HERE, ELSEWHERE, "another machine"),
        (replace(HERE, git_commit="fedcba9876543210"), HERE, "fedcba987654"),
    ],
    ids=["another machine", "another commit"],
)
def test_a_run_of_another_machine_or_commit_cannot_be_confirmed_here(
    install: Install, here: Environment, measured_on: Environment, fact: str
) -> None:
    cases = (ONE, TWO, THREE)
    baseline = results_of(*(make_record(case, STEADY, environment=measured_on) for case in cases))
    store(run_of(1.0, 1.2, 1.0, environment=measured_on), baseline)
    machine = install(ScriptedFleet(ratio_of={TWO.id: 1.2}, environment=here))
    result = gate()
    assert result.exit_code == 0
    assert fact in result.stdout
    assert machine.asked == []


def test_a_wrong_result_fails_on_any_machine() -> None:
    wrong = make_record(ONE, status=Status.WRONG, reason="y is 99 ulp off", environment=ELSEWHERE)
    store(results_of(wrong, *map(elsewhere, run_of(1.0, 1.0, 1.0).records[1:])))
    result = gate()
    assert (result.exit_code, counts(result)) == (1, "1 regressed, 2 not comparable")
    assert "y is 99 ulp off" in result.stdout


def test_as_json_the_comparison_is_one_document_on_standard_output(install: Install) -> None:
    store(run_of(1.0, 1.2, 1.0))
    install(ScriptedFleet(ratio_of={TWO.id: 1.2}))
    result = gate("--json")
    assert result.exit_code == 1
    plain = json.loads(result.stdout)
    assert plain["failed"] is True
    assert plain["changes"][0]["kind"] == "slower"


# --- bad input -----------------------------------------------------------------------------------


def test_a_missing_file_is_refused_and_a_missing_baseline_with_how_to_record_it() -> None:
    write(run_of(1.0), Path("run.parquet"))
    line = complaint(*GATE)
    assert line.startswith("base.parquet: ")
    assert "check run.parquet --baseline base.parquet --record-baseline" in line
    assert complaint("compare", "none.parquet", "run.parquet").startswith("none.parquet: ")


@pytest.mark.parametrize(
    ("head", "baseline", "code"),
    [
        (run_of(1.0), results_of(), 3),
        (results_of(failed(ONE)), BASELINE, 3),
        (results_of(make_record(ONE)), results_of(make_record(TWO)), 4),
        (results_of(make_record(ONE), make_record(ONE)), BASELINE, 2),
    ],
    ids=["empty", "failures", "another sweep", "duplicate"],
)
def test_runs_that_cannot_be_compared_are_refused(
    head: Results, baseline: Results, code: int
) -> None:
    store(head, baseline)
    complaint(*GATE, code=code)
    complaint("compare", "base.parquet", "run.parquet", code=code)


@pytest.mark.parametrize("run", ["run.jsonl", "run.parquet"])
def test_a_run_that_was_cut_short_is_refused_with_how_to_continue_it(run: str) -> None:
    write(BASELINE, Path("base.parquet"))
    write_journal(Path("run.jsonl"), make_record(ONE, (1.0,)), planned=3)
    line = complaint("check", run, "--baseline", "base.parquet", code=3)
    assert line.startswith(f"{run}: ")
    assert line.endswith("--resume --out run.parquet")

"""The commands check and compare: exit codes, what is timed again, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commanding import call, complaint, write_journal
from compared_runs import (
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
from histories import runs_of, stored_history

from harness.records import Environment, Status
from harness.run import fleet as fleet_module
from harness.store import Results, read, write

ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))
BASELINE = results_of(*(make_record(case, STEADY) for case in (ONE, TWO, THREE)))
GATE = ("check", "run.parquet", "--baseline", "base.parquet")
Install = Callable[[ScriptedFleet], ScriptedFleet]


@pytest.fixture(autouse=True)
def install(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that gives the command its fleet; without it, timing fails the test."""

    def give(machine: ScriptedFleet) -> ScriptedFleet:
        monkeypatch.setattr(fleet_module, "Fleet", lambda: machine)
        return machine

    monkeypatch.setattr(fleet_module, "Fleet", lambda: pytest.fail("something was timed"))
    return give


def run_of(*ratios: float, environment: Environment = HERE) -> Results:
    """Return a run of the baseline's first cases, with these ratios."""
    return results_of(
        *(
            make_record(case, (ratio,), environment=environment)
            for case, ratio in zip((ONE, TWO, THREE), ratios, strict=False)
        )
    )


def store(head: Results, baseline: Results = BASELINE) -> None:
    write(head, Path("run.parquet"))
    write(baseline, Path("base.parquet"))


def gate(*more: str) -> Result:
    return call(*GATE, *more)


def seen(*more: str) -> Result:
    return call("compare", "base.parquet", "run.parquet", *more)


def counts(result: Result) -> str:
    """Return the number of changes of each kind, from the first line."""
    return result.stdout.splitlines()[0].rpartition(": ")[2]


# --- the gate ------------------------------------------------------------------------------------


def test_an_unchanged_run_passes() -> None:
    store(run_of(1.0, 1.01, 0.99))
    result = gate()
    assert (result.exit_code, counts(result)) == (0, "3 unchanged")


@pytest.mark.parametrize(
    ("first", "again", "code", "kind"),
    [
        (1.2, {TWO.id: 1.2}, 1, "slower"),
        (1.2, {TWO.id: 1.001}, 0, "inconclusive"),  # slow by chance
        (1.2, {}, 0, "inconclusive"),  # it crashes
        (0.7, {TWO.id: 0.7}, 0, "faster"),
    ],
    ids=["slower", "by chance", "crashes", "faster"],
)
def test_a_suspect_is_timed_in_five_fresh_processes(
    install: Install, first: float, again: dict[str, float], code: int, kind: str
) -> None:
    store(run_of(1.0, first, 1.0))
    machine = install(ScriptedFleet(ratio_of=again))
    result = gate()
    assert result.exit_code == code
    assert set(counts(result).split(", ")) == {f"1 {kind}", "2 unchanged"}
    assert [[job.case for job in jobs] for jobs in machine.asked] == [[TWO]] * 5
    assert len(result.stderr.splitlines()) == 5  # progress


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


def test_a_baseline_that_was_cut_short_is_refused() -> None:
    write(run_of(1.0), Path("run.parquet"))
    write_journal(Path("base.jsonl"), make_record(ONE, (1.0,)), planned=3)
    line = complaint("check", "run.parquet", "--baseline", "base.jsonl", code=3)
    assert line.startswith("base.jsonl: ")


# --- accepting and recording ---------------------------------------------------------------------


def test_accept_shows_what_changed_and_makes_the_run_the_baseline() -> None:
    head = results_of(make_record(ONE, STEADY, status=Status.WRONG))
    store(head)
    result = gate("--accept")
    assert (result.exit_code, counts(result)) == (0, "1 regressed, 2 gone")
    assert read(Path("base.parquet")) == head


def test_accept_makes_the_first_baseline() -> None:
    write(run_of(1.0), Path("run.parquet"))
    assert gate("--accept").exit_code == 0
    assert read(Path("base.parquet")) == run_of(1.0)


def test_a_run_of_one_process_is_not_accepted_for_ten_and_nothing_is_timed() -> None:
    store(run_of(1.5))
    result = gate("--accept")
    assert result.exit_code == 2
    assert "--record-baseline" in result.stderr
    assert result.stdout == ""
    assert read(Path("base.parquet")) == BASELINE


def test_record_baseline_measures_the_cases_of_the_run_in_ten_processes(install: Install) -> None:
    write(run_of(1.0, 1.0), Path("run.parquet"))
    machine = install(ScriptedFleet(ratio_of={ONE.id: 1.0, TWO.id: 2.0}))
    result = gate("--record-baseline")
    assert result.exit_code == 0
    assert "2 of 2" in result.stdout  # steady cases
    assert machine.starts == 10
    assert gate().exit_code == 0


def test_an_interrupted_recording_prints_how_to_continue(install: Install) -> None:
    class Interrupted(ScriptedFleet):
        def run(self, *arguments: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    write(run_of(1.0), Path("run.parquet"))
    install(Interrupted(ratio_of={}))
    result = gate("--record-baseline")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].endswith("--resume")


# --- compare -------------------------------------------------------------------------------------


def test_compare_fails_nothing_and_times_nothing() -> None:
    wrong = replace(run_of(1.0).records[0], status=Status.WRONG)
    store(results_of(wrong, *run_of(1.0, 1.5, 1.0).records[1:]))
    result = seen()
    assert (result.exit_code, counts(result)) == (0, "1 regressed, 1 inconclusive, 1 unchanged")


def test_compare_needs_five_processes_on_each_side() -> None:
    five = results_of(make_record(ONE, [1.2] * 5))
    store(five, results_of(make_record(ONE, STEADY[:5])))
    assert counts(seen()) == "1 slower"
    store(five, results_of(make_record(ONE, STEADY[:4])))
    assert counts(seen()) == "1 inconclusive"
    store(run_of(1.0, 1.5, 1.0), run_of(1.0, 1.0, 1.0))
    result = seen()
    assert counts(result) == "3 inconclusive"
    assert "50 % slower" in result.stdout


def test_compare_accepts_a_run_that_was_cut_short_with_a_note() -> None:
    write(BASELINE, Path("base.parquet"))
    write_journal(Path("run.jsonl"), make_record(ONE, (1.0,)), planned=3)
    result = seen()
    assert result.exit_code == 0
    assert "note: run.parquet" in result.stdout


# --- against a history ---------------------------------------------------------------------------


def against_history(tmp_path: Path, ratios: Sequence[float], head: float, *more: str) -> Result:
    """Check a run of one case with the ratio ``head`` against a history of ``ratios``."""
    runs = runs_of(ONE, ratios)
    folder = stored_history(tmp_path / "history", *runs)
    write(run_of(head, environment=HERE), folder / "head.parquet")
    return call("check", str(folder / "head.parquet"), "--against-history", str(folder), *more)


def test_a_run_like_those_of_its_history_passes(tmp_path: Path) -> None:
    found = against_history(tmp_path, STEADY, 1.005)
    assert (found.exit_code, counts(found)) == (0, "1 unchanged")
    assert "the last 10 runs of" in found.stdout


def test_a_confirmed_slowdown_against_a_history_fails(tmp_path: Path, install: Install) -> None:
    install(ScriptedFleet({ONE.id: 1.1}))
    found = against_history(tmp_path, STEADY, 1.1)
    assert (found.exit_code, counts(found)) == (1, "1 slower")


def test_runs_that_differ_among_themselves_widen_what_passes(tmp_path: Path) -> None:
    noisy = [1.0, 1.06, 0.95, 1.04, 0.97, 1.05, 0.94, 1.02, 0.99, 1.03]
    found = against_history(tmp_path, noisy, 1.07)
    assert (found.exit_code, counts(found)) == (0, "1 inconclusive")


def test_too_short_a_history_judges_no_time(tmp_path: Path) -> None:
    found = against_history(tmp_path, STEADY[:4], 1.5)
    assert (found.exit_code, counts(found)) == (0, "1 inconclusive")
    assert "until the history has so many comparable runs" in found.stdout


def test_only_the_last_runs_of_a_history_count(tmp_path: Path) -> None:
    found = against_history(tmp_path, (*[0.8] * 3, *STEADY), 1.005)
    assert counts(found) == "1 unchanged"


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

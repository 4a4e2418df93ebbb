"""The commands check and compare: what they print, and the code they end with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from compared_runs import (
    ELSEWHERE,
    HERE,
    STEADY,
    ScriptedFleet,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
)

from harness.cli.check import check
from harness.cli.compare import compare
from harness.cli.exit_code import CommandGroup
from harness.records import Environment, Record, Status
from harness.run import fleet as fleet_module
from harness.store import SCHEMA_VERSION, Journal, Results, read, write

PROGRAM = CommandGroup(commands={"check": check, "compare": compare})
ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))
BASELINE = results_of(*(make_record(each, STEADY) for each in (ONE, TWO, THREE)))
Install = Callable[[ScriptedFleet], ScriptedFleet]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go to a folder of their own, and need not outlast a power cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)  # it would annotate


@pytest.fixture(autouse=True)
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Decides which fleet the command finds; none unless a test gives one."""

    def give(machine: ScriptedFleet) -> ScriptedFleet:
        monkeypatch.setattr(fleet_module, "Fleet", lambda: machine)
        return machine

    monkeypatch.setattr(fleet_module, "Fleet", lambda: pytest.fail("something was timed"))
    return give


def run_of(*ratios: float, environment: Environment = HERE) -> Results:
    """Return a run of the baseline's first cases, with these ratios."""
    cases = (ONE, TWO, THREE)
    return results_of(
        *(
            make_record(case, (ratio,), environment=environment)
            for case, ratio in zip(cases, ratios, strict=False)
        )
    )


def store(head: Results, baseline: Results = BASELINE) -> None:
    write(head, Path("run.parquet"))
    write(baseline, Path("base.parquet"))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(PROGRAM, arguments)


def gate(*more: str) -> Result:
    return call("check", "run.parquet", "--baseline", "base.parquet", *more)


def refused(code: int, *arguments: str) -> str:
    """Run what is refused; return the line that says why."""
    found = call(*arguments)
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    return line.removeprefix("layernorm-bench: ")


def refused_gate(code: int) -> str:
    return refused(code, "check", "run.parquet", "--baseline", "base.parquet")


# --- the gate ------------------------------------------------------------------------------------


def test_a_run_that_is_as_the_baseline_passes() -> None:
    store(run_of(1.0, 1.01, 0.99))
    found = gate()
    assert found.exit_code == 0
    assert found.stdout == "run.parquet against base.parquet: 3 unchanged\n"


def test_a_case_that_is_slower_in_five_fresh_processes_fails(install: Install) -> None:
    store(run_of(1.0, 1.2, 1.0))
    machine = install(ScriptedFleet(ratio_of={TWO.id: 1.2}))
    found = gate()
    assert found.exit_code == 1
    assert found.stdout.startswith("run.parquet against base.parquet: 1 slower, 2 unchanged\n")
    assert found.stderr.splitlines() == [
        f"timing 1 suspect again, process {number} of 5" for number in range(1, 6)
    ]
    assert [[job.case for job in jobs] for jobs in machine.asked] == [[TWO]] * 5


def test_a_case_that_was_slow_by_chance_passes(install: Install) -> None:
    store(run_of(1.0, 1.2, 1.0))
    install(ScriptedFleet(ratio_of={TWO.id: 1.001}))
    found = gate()
    assert found.exit_code == 0
    assert "1 inconclusive, 2 unchanged" in found.stdout


def test_a_case_that_is_faster_passes(install: Install) -> None:
    store(run_of(1.0, 0.7, 1.0))
    install(ScriptedFleet(ratio_of={TWO.id: 0.7}))
    found = gate()
    assert found.exit_code == 0
    assert "1 faster, 2 unchanged" in found.stdout


def test_fresh_processes_take_the_suspects_in_orders_of_their_own(install: Install) -> None:
    cases = [make_case(rows=rows) for rows in range(1, 7)]
    before = results_of(*(make_record(each, STEADY) for each in cases))
    store(results_of(*(make_record(each, (1.2,)) for each in cases)), before)
    machine = install(ScriptedFleet(ratio_of={each.id: 1.2 for each in cases}))
    assert gate().exit_code == 1
    assert len({tuple(job.case.id for job in jobs) for jobs in machine.asked}) == 5


def test_a_suspect_that_crashes_when_timed_again_is_unsure(install: Install) -> None:
    store(run_of(1.0, 1.2, 1.0))
    install(ScriptedFleet(ratio_of={}))
    found = gate()
    assert found.exit_code == 0
    assert "0 processes of 5 could time it to confirm it" in found.stdout


def test_no_confirm_times_nothing_and_leaves_suspects_unsure() -> None:
    store(run_of(1.0, 1.2, 1.0))
    found = gate("--no-confirm")
    assert found.exit_code == 0
    assert "suspected, and not confirmed" in found.stdout


def test_a_run_from_another_machine_cannot_be_confirmed_here(install: Install) -> None:
    baseline = results_of(
        *(make_record(each, STEADY, environment=ELSEWHERE) for each in (ONE, TWO, THREE))
    )
    store(run_of(1.0, 1.2, 1.0, environment=ELSEWHERE), baseline)
    machine = install(ScriptedFleet(ratio_of={TWO.id: 1.2}))
    found = gate()
    assert found.exit_code == 0
    assert "it cannot be confirmed here: the run was measured on another machine" in found.stdout
    assert machine.asked == []


def test_a_run_of_another_commit_cannot_be_confirmed_here(install: Install) -> None:
    store(run_of(1.0, 1.2, 1.0))
    moved = replace(HERE, git_commit="fedcba9876543210")
    install(ScriptedFleet(ratio_of={TWO.id: 1.2}, environment=moved))
    found = gate()
    assert found.exit_code == 0
    assert "the run was of commit 0123456789ab, and fedcba987654 is here" in found.stdout


def test_a_wrong_result_fails_on_any_machine() -> None:
    after = run_of(1.0, 1.0, 1.0, environment=ELSEWHERE)
    wrong = replace(after.records[0], status=Status.WRONG, reason="y is 99 ulp off")
    store(replace(after, records=(wrong, *after.records[1:])))
    found = gate()
    assert found.exit_code == 1
    assert "ok before, wrong now: y is 99 ulp off" in found.stdout
    assert "note: another machine or other software (cpu Imaginary CPU 9000 before" in found.stdout


def test_as_json_all_of_it_is_one_document_on_standard_output(install: Install) -> None:
    store(run_of(1.0, 1.2, 1.0))
    install(ScriptedFleet(ratio_of={TWO.id: 1.2}))
    found = gate("--json")
    assert found.exit_code == 1
    plain = json.loads(found.stdout)
    assert plain["failed"] is True
    assert plain["changes"][0]["kind"] == "slower"


def test_a_baseline_of_one_process_fails_no_latency_and_says_so() -> None:
    store(run_of(1.0, 9.0, 1.0), run_of(1.0, 1.0, 1.0))
    found = gate()
    assert found.exit_code == 0
    assert "3 inconclusive" in found.stdout
    assert "note: latency of 3 cases is not judged" in found.stdout


# --- bad input -----------------------------------------------------------------------------------


def test_a_missing_baseline_is_refused_with_how_to_make_one() -> None:
    write(run_of(1.0), Path("run.parquet"))
    assert refused_gate(2) == (
        "base.parquet: no such file; make the baseline with `layernorm-bench check run.parquet "
        "--baseline base.parquet --record-baseline`"
    )


def test_a_missing_run_is_refused() -> None:
    write(BASELINE, Path("base.parquet"))
    assert refused_gate(2).startswith("run.parquet: no such file")


@pytest.mark.parametrize("which", ["run", "base"])
def test_a_corrupt_file_is_refused_by_name(which: str) -> None:
    store(run_of(1.0))
    path = Path(f"{which}.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert refused_gate(2).startswith(f"{which}.parquet: ")


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1"])
def test_a_file_that_holds_no_results_is_refused(content: bytes) -> None:
    store(run_of(1.0))
    Path("base.parquet").write_bytes(content)
    assert "not a readable results file" in refused_gate(2)


def test_a_baseline_of_a_newer_version_is_refused() -> None:
    store(run_of(1.0))
    table = pq.read_table("base.parquet")
    newer = {b"layernorm_bench_schema": str(SCHEMA_VERSION + 1).encode()}
    metadata = {**table.schema.metadata, **newer}
    pq.write_table(table.replace_schema_metadata(metadata), "base.parquet")
    assert refused_gate(2).endswith("update layernorm-bench")


def test_a_baseline_of_another_sweep_is_refused() -> None:
    store(results_of(make_record(ONE)), results_of(make_record(TWO)))
    assert "0 cases in common" in refused_gate(4)


def test_a_baseline_of_another_device_is_refused() -> None:
    store(results_of(make_record(ONE)), results_of(make_record(replace(ONE, device="cuda"))))
    assert "one kind of device" in refused_gate(4)


def test_a_baseline_without_rows_is_refused() -> None:
    store(run_of(1.0), results_of())
    assert refused_gate(3).startswith("base.parquet: holds no case at all")


def test_a_run_without_rows_is_refused() -> None:
    store(results_of())
    assert refused_gate(3).startswith("run.parquet: holds no case at all")


def test_a_baseline_full_of_failures_is_refused() -> None:
    store(run_of(1.0), results_of(failed(ONE), failed(TWO)))
    assert refused_gate(3).startswith("base.parquet: no case in it was measured (2 error)")


def test_a_run_full_of_failures_is_refused() -> None:
    store(results_of(failed(ONE), failed(TWO)))
    assert refused_gate(3).startswith("run.parquet: no case in it was measured (2 error)")


def test_a_case_held_twice_is_refused() -> None:
    store(results_of(make_record(ONE), make_record(ONE)))
    assert refused_gate(2).startswith("run.parquet: holds 1 case more than once")


def journal(name: str, *records: Record, planned: int) -> None:
    (run,) = results_of(*records, planned=planned, wall_s=None).runs
    with Journal(Path(name)) as lines:
        for each in (run, HERE, *records):
            lines.add(each)


@pytest.mark.parametrize("asked", ["run.jsonl", "run.parquet"])
def test_a_run_that_was_cut_short_is_refused(asked: str) -> None:
    write(BASELINE, Path("base.parquet"))
    journal("run.jsonl", make_record(ONE, (1.0,)), planned=3)
    line = refused(3, "check", asked, "--baseline", "base.parquet")
    assert line.startswith(f"{asked}: was cut short, 1 of its 3 cases")
    assert line.endswith("--resume --out run.parquet")


def test_a_baseline_that_was_cut_short_is_refused() -> None:
    write(run_of(1.0), Path("run.parquet"))
    journal("base.jsonl", make_record(ONE, (1.0,)), planned=3)
    found = refused(3, "check", "run.parquet", "--baseline", "base.jsonl")
    assert found.startswith("base.jsonl: ")


def test_a_run_checked_against_itself_passes_and_is_told_so() -> None:
    store(BASELINE)
    found = call("check", "base.parquet", "--baseline", "base.parquet")
    assert found.exit_code == 0
    assert "note: both hold the same measurements" in found.stdout


def test_figures_that_are_no_numbers_pass_nothing() -> None:
    after = make_record(ONE, latency=make_latency((float("nan"),)))
    assert after.errors is not None
    worst = replace(after.errors.outputs[0], scaled_max_ulp=float("nan"))
    store(results_of(replace(after, errors=replace(after.errors, outputs=(worst,)))))
    found = gate()
    assert found.exit_code == 1
    assert "nan now" in found.stdout


def test_a_run_without_times_of_native_fails_no_latency_and_lists_the_case() -> None:
    alone = make_latency((9.0,), reference=None, reference_ratio=None)
    store(results_of(make_record(ONE, latency=alone)))
    found = gate()
    assert found.exit_code == 0
    assert "not comparable" in found.stdout
    assert "no reference was timed beside it now" in found.stdout


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--accept", "--record-baseline"), "--record-baseline compares nothing"),
        (("--record-baseline", "--json"), "--record-baseline compares nothing"),
        (("--resume",), "--resume continues a --record-baseline"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Sequence[str], line: str) -> None:
    store(run_of(1.0))
    found = gate(*options)
    assert found.exit_code == 2
    assert line in found.stderr


# --- accepting and recording ---------------------------------------------------------------------


def test_accept_shows_what_changed_and_makes_the_run_the_baseline() -> None:
    head = results_of(make_record(ONE, STEADY, status=Status.WRONG))
    store(head)
    found = gate("--accept")
    assert found.exit_code == 0
    assert "1 regressed, 2 gone" in found.stdout
    assert found.stderr.startswith("accepted: base.parquet ")
    assert read(Path("base.parquet")) == head


def test_accept_makes_the_first_baseline() -> None:
    write(run_of(1.0), Path("run.parquet"))
    assert gate("--accept").exit_code == 0
    assert read(Path("base.parquet")) == run_of(1.0)


def test_accept_does_not_give_ten_processes_for_one() -> None:
    store(run_of(1.0))
    found = gate("--accept")
    assert found.exit_code == 2
    assert "make a new one with --record-baseline" in found.stderr
    assert found.stdout == ""
    assert read(Path("base.parquet")) == BASELINE


def test_what_cannot_be_accepted_is_refused_before_anything_is_timed(install: Install) -> None:
    store(run_of(1.5, 1.0))
    machine = install(ScriptedFleet(ratio_of={ONE.id: 1.5, TWO.id: 2.0}))
    assert gate("--accept").exit_code == 2
    assert machine.starts == 0


def test_record_baseline_measures_the_cases_of_the_run_in_ten_processes(install: Install) -> None:
    write(run_of(1.0, 1.0), Path("run.parquet"))
    machine = install(ScriptedFleet(ratio_of={ONE.id: 1.0, TWO.id: 2.0}))
    found = gate("--record-baseline")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        "baseline: base.parquet, 2 cases",
        "cases steady enough to judge small changes: 2 of 2 timed",
    ]
    assert machine.starts == 10
    assert "Traceback" not in found.stderr
    assert gate().exit_code == 0


@pytest.mark.parametrize("option", ["--record-baseline", "--accept"])
def test_a_baseline_is_a_parquet_file(option: str) -> None:
    write(run_of(1.0), Path("run.parquet"))
    found = call("check", "run.parquet", "--baseline", "base.json", option)
    assert found.exit_code == 2
    assert "a results file ends in .parquet" in found.stderr


def test_an_interrupted_recording_says_how_to_go_on(install: Install) -> None:
    class Interrupted(ScriptedFleet):
        def run(self, *arguments: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    write(run_of(1.0), Path("run.parquet"))
    install(Interrupted(ratio_of={}))
    found = gate("--record-baseline")
    assert found.exit_code == 130
    assert found.stderr.splitlines()[-1].endswith("--resume")


# --- compare -------------------------------------------------------------------------------------


def seen(*more: str) -> Result:
    return call("compare", "base.parquet", "run.parquet", *more)


def test_compare_fails_nothing_and_times_nothing() -> None:
    broke = replace(run_of(1.0).records[0], status=Status.WRONG)
    store(results_of(broke, *run_of(1.0, 1.5, 1.0).records[1:]))
    found = seen()
    assert found.exit_code == 0
    assert found.stdout.startswith(
        "run.parquet against base.parquet: 1 regressed, 1 inconclusive, 1 unchanged\n"
    )


def test_compare_believes_five_processes_against_ten() -> None:
    store(results_of(make_record(ONE, [1.2] * 5)))
    assert "1 slower" in seen().stdout


def test_compare_tells_runs_of_one_process_apart_without_judging() -> None:
    store(run_of(1.0, 1.5, 1.0), run_of(1.0, 1.0, 1.0))
    found = seen()
    assert "3 inconclusive" in found.stdout
    assert "50.0% slower" in found.stdout
    assert "one process before does not tell what processes differ by" in found.stdout


def test_compare_works_between_machines_and_shows_the_ratios() -> None:
    store(run_of(1.0, 1.5, environment=ELSEWHERE))
    found = seen("--json")
    assert found.exit_code == 0
    reasons = [each["reason"] for each in json.loads(found.stdout)["changes"]]
    assert "1.000 of the time of native there, 1.500 here" in "".join(reasons)


def test_compare_refuses_runs_with_nothing_in_common() -> None:
    store(results_of(make_record(ONE)), results_of(make_record(TWO)))
    assert "0 cases in common" in refused(4, "compare", "base.parquet", "run.parquet")


def test_compare_takes_a_run_that_was_cut_short_and_says_so() -> None:
    write(BASELINE, Path("base.parquet"))
    journal("run.jsonl", make_record(ONE, (1.0,)), planned=3)
    found = seen()
    assert found.exit_code == 0
    assert "note: run.parquet was cut short, 1 of its 3 cases are there" in found.stdout


def test_a_copy_of_a_file_is_known_to_be_one() -> None:
    write(BASELINE, Path("base.parquet"))
    shutil.copy("base.parquet", "run.parquet")
    assert "note: both hold the same measurements" in seen().stdout


def test_the_commands_say_their_codes_without_a_fleet() -> None:
    found = call("check", "--help")
    assert "Exit code 0: nothing got worse. 1:" in " ".join(found.stdout.split())
    assert isinstance(check, click.Command)

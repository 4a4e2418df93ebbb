"""Recording a baseline in ten processes, and accepting a run as the baseline."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp
from typing import Any

import pytest
from factories.compared_runs import (
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
from factories.fake_device import CALL_S, latency_of, measure, payer

from harness.records import (
    Measurement,
    MeasurementWarning,
    NotComparableError,
    NotMeasuredError,
    Record,
    Refusal,
    Status,
    WarningKind,
)
from harness.regression import passes_left, process_ratios, record_baseline, refuse_unacceptable
from harness.run import Job
from harness.store import Results, read, write

NAMES = ("drifts", "noisy in 5", "noisy in 6", "spreads", "pays", "fails")
CASES = {name: make_case(rows=rows) for rows, name in enumerate(NAMES, 1)}
ONE = CASES["drifts"]
WANTED = results_of(*(make_record(case, (1.0,)) for case in CASES.values()))
PAYING = latency_of(measure(payer(4, 8 * CALL_S)))
NOISE = (MeasurementWarning(kind=WarningKind.NOISY, advice="busy"),)


@dataclass
class Machine(ScriptedFleet):
    """A machine on which process number n measures each case as its name says."""

    dies_in: int = 0
    """The number of the process in which the recording is interrupted."""

    def answer(self, job: Job) -> Record:
        if self.starts == self.dies_in and job is self.asked[-1][3]:
            raise KeyboardInterrupt
        record = super().answer(job)
        if record.latency is None:
            return record
        (name,) = (name for name, case in CASES.items() if case == record.case)
        ratio = 1 + (0.04 * (-1) ** self.starts if name == "spreads" else 0.001 * (self.starts - 1))
        noisy = self.starts <= {"noisy in 5": 5, "noisy in 6": 6}.get(name, 0)
        return replace(
            record,
            latency=PAYING if name == "pays" else make_latency((ratio,)),
            warnings=NOISE if noisy else (),
        )


def machine(**more: Any) -> Machine:
    return Machine({case.id: 1.0 for name, case in CASES.items() if name != "fails"}, **more)


def record(fleet: Any, out: Path, wanted: Results = WANTED) -> Results:
    return record_baseline(
        wanted, out, make_fleet=lambda: fleet, command="c", on_record=lambda record: None
    )


# --- recording -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Machine, Path]:
    out, fleet = tmp_path_factory.mktemp("recorded") / "ci.parquet", machine()
    return record(fleet, out), fleet, out


def test_a_baseline_is_one_run_of_ten_fresh_processes(recorded: Any) -> None:
    results, fleet, out = recorded
    assert fleet.starts == 10
    assert [found.case for found in results.records] == [*CASES.values()]
    (run,) = results.runs
    assert (run.name, run.planned, run.command, run.wall_s is None) == ("ci", 6, "c", False)
    assert results.environments == {HERE.fingerprint: HERE}
    assert read(out) == results
    assert [path.name for path in out.parent.iterdir()] == ["ci.parquet"]


def test_it_keeps_the_ratio_of_each_process(recorded: Any) -> None:
    latencies = [found.latency for found in recorded[0].records]
    drifts, _, _, spreads, pays, fails = latencies
    assert (drifts.processes, fails) == (10, None)
    assert process_ratios(drifts) == pytest.approx([1 + 0.001 * number for number in range(10)])
    # the means of uneven calls are kept
    assert process_ratios(pays) == pytest.approx([3.0] * 10, rel=0.1)
    assert (drifts.converged, spreads.converged) == (True, False)


def test_noise_in_half_of_the_processes_is_not_a_warning(recorded: Any) -> None:
    kinds = [[warning.kind for warning in found.warnings] for found in recorded[0].records]
    assert kinds[1:3] == [[], [WarningKind.NOISY]]


def test_each_process_has_its_own_order_and_the_first_counts_memory(recorded: Any) -> None:
    _, fleet, _ = recorded
    # a case that cannot be measured is run once
    assert [len(jobs) for jobs in fleet.asked] == [6, *[5] * 9]
    assert len({tuple(job.case.id for job in jobs) for jobs in fleet.asked[1:]}) == 9
    measured = [{one for job in jobs for one in job.measurements} for jobs in fleet.asked]
    assert Measurement.MEMORY in measured[0]
    assert measured[1:] == [{Measurement.LATENCY}] * 9


def test_without_a_measured_case_there_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match=r"such as two_pass/.*: why; nothing was written"):
        record(machine(), tmp_path / "ci.parquet", results_of(failed(CASES["fails"])))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_recording_is_continued_on_the_same_machine_commit_and_sweep(
    tmp_path: Path,
) -> None:
    out, fleet = tmp_path / "begun/ci.parquet", machine()
    write(WANTED, out)
    with pytest.raises(KeyboardInterrupt):
        record(machine(dies_in=3), out)
    assert passes_left(out) == 8
    other_commit = machine(environment=replace(HERE, git_commit="fedcba98"))
    for error, other, wanted in (
        (NotComparableError, machine(environment=ELSEWHERE), WANTED),
        (Refusal, other_commit, WANTED),
        (Refusal, machine(), results_of(*WANTED.records[:4])),
    ):
        copy = copytree(out.parent, Path(mkdtemp(dir=tmp_path)), dirs_exist_ok=True)
        with pytest.raises(error):
            record(other, copy / "ci.parquet", wanted)
        assert read(copy / "ci.parquet") == WANTED
    found = [found.latency for found in record(fleet, out).records]
    assert [len(jobs) for jobs in fleet.asked] == [2, *[5] * 7]
    assert [latency and latency.processes for latency in found] == [*[10] * 5, None]


# --- accepting -----------------------------------------------------------------------------------

TEN, NINE = (results_of(make_record(ONE, STEADY[:count])) for count in (10, 9))


@pytest.mark.parametrize(
    ("head", "baseline", "error", "why"),
    [
        (WANTED, None, None, ""),
        (results_of(make_record(ONE, STEADY, status=Status.WRONG)), TEN, None, ""),
        (results_of(make_record(ONE), planned=9), None, Refusal, "1 of its 9 cases"),
        (NINE, TEN, Refusal, "timed 1 case in 10 processes.*--record-baseline"),
    ],
)
def test_a_whole_run_that_judges_no_less_may_become_the_baseline(
    head: Results, baseline: Results | None, error: type[Refusal] | None, why: str
) -> None:
    with pytest.raises(error, match=why) if error else nullcontext():
        refuse_unacceptable(head, baseline)

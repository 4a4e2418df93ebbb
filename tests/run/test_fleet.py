"""Worker processes and environments: what a crash costs, which case runs where, merged records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from factories.fake_device import FakeDevice, LocalFleet, latency_of, measure

from harness.cases import Planned
from harness.measure import median_estimate
from harness.records import (
    Budget,
    Case,
    Gpu,
    Latency,
    Measurement,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.run import (
    Fleet,
    HarnessError,
    Job,
    JobQueue,
    WorkerInfo,
    is_enough,
    merged,
    missing_jobs,
    usable_gpus,
)
from harness.run.call import is_of_lost_device
from harness.run.fleet import serve

CASE = Case(implementation="native", shape=(4, 8))
IN_TWO = Budget(limit_s=0.0, min_epochs=1, max_epochs=1, target_ratio=0.0, processes=2)
UNHURRIED_S = 120.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


def job(implementation: str, **changes: Any) -> Job:
    case = replace(CASE, implementation=implementation, **changes)
    return Job(case, (Measurement.ERRORS,), Budget())


def run(fleet: Fleet, *jobs: Job, timeout_s: float = UNHURRIED_S) -> list[Record]:
    return list(fleet.run(jobs, timeout_s))


# --- what happens to one case ---------------------------------------------------------------------


def test_records_come_in_the_order_of_the_jobs(fleet: Fleet) -> None:
    jobs = [job(name, seed=seed) for seed in (0, 1) for name in ("native", "one_pass")]
    records = run(fleet, *jobs)
    assert [record.case for record in records] == [job.case for job in jobs]
    assert {record.status for record in records} == {Status.OK}
    assert {record.environment for record in records} == {fleet.info.environment.fingerprint}


def test_a_crash_costs_one_case_and_its_reason_says_how_the_process_ended(
    fleet: Fleet, targets: Path
) -> None:
    names = (f"{targets}:crashes", f"{targets}:loses_the_device", "native")
    segfault, lost_device, after = run(fleet, *map(job, names))
    assert (segfault.status, lost_device.status) == (Status.CRASHED, Status.CRASHED)
    assert "SIGSEGV" in segfault.reason
    assert "about to fall" in segfault.reason  # its last line of output
    assert "CUDA error: an illegal memory access" in lost_device.reason
    assert after.status is Status.OK


def test_an_implementation_that_hangs_is_ended_and_the_next_case_is_measured(
    fleet: Fleet, targets: Path
) -> None:
    hung, after = run(fleet, job(f"{targets}:hangs"), job("native"), timeout_s=3)
    assert (hung.status, after.status) == (Status.TIMEOUT, Status.OK)
    assert "3 s" in hung.reason


def test_a_worker_that_ends_between_two_cases_costs_at_most_one_case(fleet: Fleet) -> None:
    run(fleet, job("native"))
    worker, *_ = fleet._workers
    os.kill(worker.process.pid or 0, 9)
    worker.process.join()
    first, second = run(fleet, job("native"), job("two_pass"))
    assert (first.status, second.status) == (Status.CRASHED, Status.OK)
    assert "SIGKILL" in first.reason


def test_each_target_that_cannot_be_found_has_a_reason(fleet: Fleet, targets: Path) -> None:
    targets.with_name("broken.py").write_text("raise RuntimeError('on import')\n")
    targets.with_name("falls.py").write_text("import os\nos._exit(7)\n")
    missing = {
        "nativ": "'native'",
        f"{targets}:gone": "'gone'",
        f"{targets.parent}/broken.py:f": "RuntimeError: on import",
        f"{targets.parent}/falls.py:f": "exit code 7",  # of the process that imports it
    }
    reasons = fleet.unresolved([*missing, "native", f"{targets}:hangs"])
    assert all(why in said for why, said in zip(missing.values(), reasons, strict=True))


def test_no_case_starts_after_stop_at(fleet: Fleet) -> None:
    assert list(fleet.run([job("native")], UNHURRIED_S, stop_at=0.0)) == []


# --- what happens to the fleet --------------------------------------------------------------------


def test_a_bug_in_the_harness_stops_the_run_and_leaving_ends_all_processes() -> None:
    with Fleet() as fleet:
        processes = [worker.process for worker in fleet._workers]
        folder = Path(fleet._folder.name)
        assert folder.exists()
        with pytest.raises(HarnessError) as found:  # no sweep would let this distribution through
            run(fleet, job("native", distribution="no_such_distribution"), job("native"))
    assert "KeyError: 'no_such_distribution'" in str(found.value)
    assert [process.is_alive() for process in processes] == [False]
    assert not folder.exists()


def test_a_worker_whose_log_cannot_be_opened_says_so_in_one_line(tmp_path: Path) -> None:
    connection, log = Mock(), str(tmp_path / "missing" / "log")
    serve(connection, log, None)
    ((_, why),) = connection.send.call_args.args
    assert why == f"{log}: cannot be written: No such file or directory"


# --- one case in several processes ----------------------------------------------------------------


def test_a_case_is_timed_in_as_many_processes_as_asked_which_are_kept(fleet: Fleet) -> None:
    in_two = Job(CASE, (Measurement.LATENCY,), IN_TWO)
    (found,) = run(fleet, in_two)
    assert (found.latency.processes, found.latency.process_of_epoch) == (2, (0, 1))
    before = [worker.process.pid for worker in fleet._workers]
    run(fleet, in_two)
    assert [worker.process.pid for worker in fleet._workers] == before
    assert len(before) == 2


# --- cases beside each other, on fake workers of fake devices -------------------------------------

HERE = LocalFleet().info
GPU = Gpu(name="X", uuid="1", memory_bytes=1, power_limit_w=None, compute_capability="9.0")
INFO = replace(HERE, unavailable={}, device_counts={"cpu": 1, "cuda": 3})


class Worker:
    """Answers a case as soon as its record is read, and notes when cases begin and end."""

    noted: list[str] = []  # noqa: RUF012 - shared by all

    def __init__(self, log: Path, cuda_device: str | None) -> None:
        self.cuda_device, self.deadline = cuda_device, float("inf")
        self.connection, self._far = Pipe()
        self.info: WorkerInfo = INFO

    def send(self, function: object, job: Job, timeout_s: float) -> None:
        self.job, self.deadline = job, monotonic() + timeout_s
        self.noted.append(f"{job.case.seed} begins on {self.cuda_device or 'cpu'}")
        self._far.send("done")

    def reply(self) -> Record:
        assert self.connection.recv() == "done"
        self.noted.append(f"{self.job.case.seed} ends")
        return Record(case=self.job.case, environment="here", status=Status.OK)

    def kill(self) -> None:
        self.connection.close()
        self._far.close()


@pytest.mark.parametrize(
    ("visible", "used"),
    [("", {"0", "1", "2"}), ("7,6,5", {"7", "6", "5"}), ("2,1,0,9", {"2", "1", "0"})],
)  # CUDA shows three
def test_gpus_run_cases_at_once_and_cpu_cases_run_alone(
    monkeypatch: pytest.MonkeyPatch, visible: str, used: set[str]
) -> None:
    monkeypatch.setattr("harness.run.fleet.WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "noted", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = ["cuda"] * 5 + ["cpu"] * 2
    jobs = [job("native", device=device, seed=seed) for seed, device in enumerate(devices)]
    with Fleet() as fleet:
        records = run(fleet, *jobs)
    assert sorted(record.case.seed for record in records) == list(range(7))
    noted = Worker.noted
    assert {note.rpartition(" ")[2] for note in noted[:3]} == used
    assert [note for note in noted if note.startswith(("5", "6"))] == noted[-4:] == [
        *("5 begins on cpu", "5 ends", "6 begins on cpu", "6 ends"),
    ]  # fmt: skip


def test_gpus_of_several_models_are_not_used_at_once() -> None:
    environment = replace(INFO.environment, gpus=(GPU, replace(GPU, uuid="2")))
    assert len(usable_gpus(["0", "1"], environment)) == 2
    other = replace(environment, gpus=(GPU, replace(GPU, name="Y")))
    assert usable_gpus(["0", "1"], other) == ["0"]


# --- records of several processes ----------------------------------------------------------------

BUDGET = Budget(target_ratio=0.01)
FOUR = Budget(min_epochs=4, max_epochs=4, limit_s=1e9)
AGREE, DISAGREE = (1.2,) * 7, (1.0, 1.1, 1.3, 1.1, 1.1, 1.1, 1.1)


def latency(factor: float = 1.0, **changes: Any) -> Latency:
    """Return the latency of a subject that takes ``factor`` times as long as its reference."""
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    return replace(latency_of(measure(device, budget=FOUR)), **changes)


def record(status: Status = Status.OK, *warnings: WarningKind, **changes: Any) -> Record:
    given = tuple(MeasurementWarning(kind=kind, advice="") for kind in warnings)
    return Record(case=CASE, environment="here", status=status, warnings=given, **changes)


def timed(*factors: float, field: str = "latency") -> list[Record]:
    return [record(**{field: latency(factor)}) for factor in factors]


def kinds(found: Record) -> list[WarningKind]:
    return [warning.kind for warning in found.warnings]


# --- how many processes run a case, and what their records are merged to -------------------------


@pytest.mark.parametrize(
    ("records", "processes"),
    [
        (timed(*AGREE), 5),
        (timed(*DISAGREE), 7),
        ([record()] * 7, 1),
    ],
)
def test_processes_are_added_until_five_or_more_agree(
    records: list[Record], processes: int
) -> None:
    budget = Budget(processes=7)
    numbers = (number for number in range(8) if is_enough(records[:number], budget))
    assert next(numbers) == processes


def test_samples_are_concatenated_and_epochs_are_numbered_on() -> None:
    one, other = timed(1.0, 2.0)
    assert merged([one], BUDGET) is one
    found = merged([one, record(), other], BUDGET).latency  # one process has no latency
    assert (found.processes, found.process_of_epoch) == (2, (0, 0, 0, 0, 1, 1, 1, 1))
    arms = zip(one.latency.arms, other.latency.arms, found.arms, strict=True)
    for first, second, both in arms:
        assert both.wall_s == first.wall_s + second.wall_s
        assert both.epochs == first.epochs + tuple(4 + epoch for epoch in second.epochs)


@pytest.mark.parametrize("field", ["latency", "cold"])
def test_estimates_are_across_processes_and_a_wide_interval_has_a_warning(field: str) -> None:
    record = merged(timed(1.0, 1.1, 1.3, field=field), BUDGET)
    found = getattr(record, field)
    expected = median_estimate([1.0, 1.1, 1.3])
    assert found.reference_ratio.low == pytest.approx(expected.low)
    assert found.per_call_s.value == pytest.approx(2.2e-6)
    assert (found.processes, found.converged) == (3, False)
    assert kinds(record) == [WarningKind.NOT_CONVERGED]


@pytest.mark.parametrize(
    ("processes", "is_valid"),
    [
        ([(0.5, True), (0.5, False)], False),  # work was left over in one
        ([(1.0, True), (1.1, False), (0.97, True), (0.95, True), (1.02, True)], True),
        ([(1.2, False), (1.21, False), (1.19, False), (1.2, False)], False),
    ],
)
def test_a_time_is_too_fast_if_it_is_so_across_processes(
    processes: list[tuple[float, bool]], is_valid: bool
) -> None:
    latencies = [latency(ceiling_ratio=ratio, is_valid=valid) for ratio, valid in processes]
    found = merged([record(latency=one) for one in latencies], BUDGET)
    assert found.latency.is_valid is is_valid


@pytest.mark.parametrize(
    ("better", "worse"),
    [(Status.OUT_OF_GUARANTEE, Status.WRONG), (Status.WRONG, Status.CRASHED)],
)
def test_the_worst_status_of_any_process_decides(better: Status, worse: Status) -> None:
    first, second = record(better), record(worse, reason="what happened")
    assert merged([first, second, first], BUDGET) is second


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        (WarningKind.NOISY, WarningKind.NOISY, [WarningKind.NOISY]),
        (WarningKind.NOISY, WarningKind.PAGE_FAULTS, [WarningKind.NOISY, WarningKind.PAGE_FAULTS]),
        (WarningKind.NOT_CONVERGED, WarningKind.NOT_CONVERGED, []),  # all together are narrow
    ],
)
def test_a_warning_is_kept_once_if_it_is_still_true(
    one: WarningKind, other: WarningKind, kept: list[WarningKind]
) -> None:
    warned = [record(Status.OK, kind, latency=latency(1.2)) for kind in (one, one, one, one, other)]
    assert kinds(merged(warned, BUDGET)) == kept


# --- which case runs in which environment --------------------------------------------------------

CASES = [
    Case(implementation=name, shape=(rows, 8)) for rows in (1, 2) for name in ("native", "two_pass")
]
NODES = (HERE, replace(HERE, environment=replace(HERE.environment, cpu="Other")))
FIRST, SECOND = (node.environment.fingerprint for node in NODES)


def jobs(*measured: tuple[Case, str]) -> list[Job]:
    planned = [Planned(case, (Measurement.ERRORS,)) for case in CASES]
    return missing_jobs(planned, Budget(), NODES, measured)


def test_a_scenario_that_was_begun_is_continued_in_its_environment() -> None:
    left = [*zip(CASES[1:], (SECOND, None, None), strict=True)]
    assert [(job.case, job.environment) for job in jobs((CASES[0], SECOND))] == left


def test_the_cases_of_a_scenario_go_to_one_environment() -> None:
    queue = JobQueue(jobs())
    taken = [queue.take(name) for name in (FIRST, SECOND, FIRST)]
    assert [job and job.case for job in taken] == [CASES[0], CASES[2], CASES[1]]
    assert queue.take(FIRST) is None  # the last case belongs to the other
    assert len(queue) == 1


def test_a_case_of_a_node_that_died_comes_next_there_or_else_elsewhere() -> None:
    queue = JobQueue(jobs())
    job = queue.take(FIRST)
    assert job
    queue.give_back(job)
    assert queue.take(FIRST) is job
    queue.give_back(job)
    queue.leave(FIRST)
    assert queue.take(SECOND) is job


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("CUDA driver error: unspecified launch failure", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: invalid argument", False),
        ("an illegal memory access in a test", False),
    ],
)
def test_a_device_is_lost_in_the_words_of_each_runtime(message: str, is_lost: bool) -> None:
    assert is_of_lost_device(RuntimeError(message)) is is_lost

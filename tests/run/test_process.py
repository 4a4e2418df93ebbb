"""One case in several processes: their order, their number, and the effect of a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import cast

import pytest
from fake_device import FakeDevice, latency_of, measure

from harness.records import Budget, Case, Errors, Latency, Measurement, Record, Status
from harness.run.fleet import Fleet, Slot
from harness.run.worker import Job, KnownErrors, WorkerProcess

CASE = Case(implementation="native", shape=(4, 8))
QUICK = Budget(limit_s=0.0, min_epochs=1, max_epochs=1, target_ratio=0.0)
UNHURRIED_S = 120.0
ERRORS = cast("Errors", "not looked at")


# --- which process runs the case -----------------------------------------------------------------


@dataclass
class Worker:
    """Stands for a worker process, and notes its calls."""

    name: str
    noted: list[str]
    asked: list[Job] = field(default_factory=list)
    measured: KnownErrors = ()

    @property
    def info(self) -> str:
        self.noted.append(f"{self.name} is up")
        return "hello"

    def start(self, job: Job, timeout_s: float) -> None:
        self.noted.append(f"{self.name} starts")
        self.asked.append(job)


def slot_of(count: int) -> tuple[Slot, list[Worker], list[str]]:
    noted: list[str] = []
    workers = [Worker("ABCDEFG"[place], noted) for place in range(count)]
    return Slot(cast("list[WorkerProcess]", workers)), workers, noted


def latency(factor: float) -> Latency:
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    return latency_of(measure(device))


def record(*, warm: float | None = None, cold: float | None = None) -> Record:
    return Record(
        case=CASE,
        environment="here",
        status=Status.OK,
        latency=None if warm is None else latency(warm),
        cold=None if cold is None else latency(cold),
    )


def turns(slot: Slot, records: list[Record], budget: Budget) -> int:
    """Let a slot run a case whose records are known; return the number of processes."""
    slot.begin(Job(CASE, tuple(Measurement), budget), UNHURRIED_S)
    for each in records:
        slot.records.append(each)
        if not slot.continue_in_next_process(UNHURRIED_S):
            break
    return len(slot.records)


def test_processes_run_the_case_one_after_the_other_once_all_are_up() -> None:
    slot, _, noted = slot_of(4)
    assert turns(slot, [record(warm=each) for each in (1.0, 1.1, 1.3, 1.2)], Budget()) == 4
    assert noted[:5] == ["A is up", "B is up", "C is up", "D is up", "A starts"]
    assert [each for each in noted if "starts" in each] == [f"{each} starts" for each in "ABCD"]
    assert slot.record().latency is not None


@pytest.mark.parametrize(
    ("records", "processes"),
    [
        ([record(warm=1.2)] * 7, 5),
        ([record(warm=each) for each in (1.0, 1.1, 1.3, 1.1, 1.1, 1.1, 1.1)], 7),
        ([record(cold=each) for each in (1.0, 1.1, 1.3, 1.2, 1.2, 1.2, 1.2)], 7),
        ([record()] * 7, 1),
    ],
    ids=["agree", "disagree", "cold times disagree", "no time"],
)
def test_processes_are_added_until_five_or_more_agree(
    records: list[Record], processes: int
) -> None:
    assert turns(slot_of(7)[0], records, Budget()) == processes


def test_later_processes_measure_times_only() -> None:
    slot, workers, _ = slot_of(2)
    turns(slot, [record(warm=1.0)], Budget())
    assert set(workers[0].asked[0].measurements) == set(Measurement)
    assert workers[1].asked == [
        Job(CASE, [Measurement.LATENCY, Measurement.COLD], Budget()),
    ]


def test_later_processes_get_the_errors_that_earlier_ones_measured() -> None:
    slot, workers, _ = slot_of(3)
    workers[0].measured, workers[1].measured = ((b"outputs", ERRORS),), ((b"others", ERRORS),)
    for _ in range(2):  # nothing is kept for the next case
        turns(slot, [record(warm=1.0), record(warm=1.5)], Budget())
        known = [worker.asked.pop().known for worker in workers]
        assert known == [(), workers[0].measured, workers[0].measured + workers[1].measured]


def test_the_next_case_begins_with_the_first_process_again() -> None:
    slot, _, noted = slot_of(2)
    for _ in range(2):
        turns(slot, [record(warm=1.0), record(warm=1.5)], Budget())
    assert [each[0] for each in noted if "starts" in each] == ["A", "B", "A", "B"]


def test_a_record_that_does_not_follow_its_errors_is_not_waited_for_beyond_the_deadline() -> None:
    worker = WorkerProcess.__new__(WorkerProcess)  # without a process
    worker.connection, other = Pipe()
    worker.deadline = 0.0
    other.send(("update", ()))
    with pytest.raises(TimeoutError):
        worker.record()


# --- in processes of their own -------------------------------------------------------------------

SUBJECTS = """
import os, signal
from pathlib import Path
from torch.nn.functional import layer_norm

FOLDER = Path(__file__).parent

def good(x, shape, weight=None, bias=None, eps=1e-5):
    (FOLDER / f"seen-by-{os.getpid()}").touch()
    return layer_norm(x, tuple(shape), weight, bias, eps)

def falls_in_the_second(x, *arguments):
    try:
        (FOLDER / "first").symlink_to(str(os.getpid()))
    except FileExistsError:
        if os.readlink(FOLDER / "first") != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGSEGV)
    return layer_norm(x, *arguments)
"""


@pytest.fixture
def implementations(tmp_path: Path) -> Path:
    path = tmp_path / "subjects.py"
    path.write_text(SUBJECTS)
    return path


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


def run(fleet: Fleet, budget: Budget, *implementations: str) -> list[Record]:
    jobs = [
        Job(replace(CASE, implementation=each), (Measurement.LATENCY,), budget)
        for each in implementations
    ]
    return list(fleet.run(jobs, UNHURRIED_S))


def test_a_case_is_timed_in_as_many_processes_as_asked(fleet: Fleet, implementations: Path) -> None:
    (found,) = run(fleet, replace(QUICK, processes=2), f"{implementations}:good")
    assert found.status is Status.OK
    assert found.latency is not None
    assert (found.latency.processes, found.latency.process_of_epoch) == (2, (0, 1))
    seen_by = {int(each.name[8:]) for each in implementations.parent.glob("seen-by-*")}
    assert len(seen_by) == 2
    assert seen_by <= {each.process.pid for each in fleet._workers}


def test_a_crash_in_the_second_process_ends_the_case(fleet: Fleet, implementations: Path) -> None:
    fallen, after = run(
        fleet, replace(QUICK, processes=2), f"{implementations}:falls_in_the_second", "native"
    )
    assert fallen.status is Status.CRASHED
    assert "SIGSEGV" in fallen.reason
    assert fallen.latency is None
    assert after.status is Status.OK
    assert after.latency is not None
    assert after.latency.processes == 2


def test_a_second_run_reuses_the_processes(fleet: Fleet) -> None:
    run(fleet, replace(QUICK, processes=2), "native")
    before = [each.process.pid for each in fleet._workers]
    run(fleet, replace(QUICK, processes=2), "native")
    run(fleet, QUICK, "native")
    assert [each.process.pid for each in fleet._workers] == before

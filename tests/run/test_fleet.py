"""Worker processes: what a crash costs, how many run a case, and which run beside each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from factories.fake_device import LocalFleet

from harness.records import Budget, Case, Gpu, Measurement, Record, Status
from harness.run import Fleet, HarnessError, Job, WorkerInfo, usable_gpus

SUBJECTS = """
import os, signal, sys
from torch.nn.functional import layer_norm

def talks(*arguments):
    print("hello from the implementation")
    print("and to standard error", file=sys.stderr)
    return layer_norm(*arguments)

def segfaults(*arguments):
    os.write(2, b"about to fall\\n\\n")
    os.kill(os.getpid(), signal.SIGSEGV)

def loses_the_device(*arguments):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore words")

def hangs(*arguments):
    while True:
        pass
"""
CASE = Case(implementation="native", shape=(4, 8))
IN_TWO = Budget(limit_s=0.0, min_epochs=1, max_epochs=1, target_ratio=0.0, processes=2)
UNHURRIED_S = 120.0


@pytest.fixture
def subjects(tmp_path: Path) -> Path:
    path = tmp_path / "subjects.py"
    path.write_text(SUBJECTS)
    return path


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


def test_records_come_in_the_order_of_the_jobs_and_nothing_is_printed(
    fleet: Fleet, subjects: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("native", f"{subjects}:talks", "one_pass")
    jobs = [job(name, seed=seed) for seed in (0, 1) for name in names]
    records = run(fleet, *jobs)
    assert [record.case for record in records] == [job.case for job in jobs]
    assert {record.status for record in records} == {Status.OK}
    assert {record.environment for record in records} == {fleet.info.environment.fingerprint}
    assert capfd.readouterr() == ("", "")


def test_a_crash_costs_one_case_and_its_reason_says_how_the_process_ended(
    fleet: Fleet, subjects: Path
) -> None:
    names = (f"{subjects}:segfaults", f"{subjects}:loses_the_device", "native")
    segfault, lost_device, after = run(fleet, *map(job, names))
    assert (segfault.status, lost_device.status) == (Status.CRASHED, Status.CRASHED)
    assert "SIGSEGV" in segfault.reason
    assert "about to fall" in segfault.reason  # its last line of output
    assert "CUDA error: an illegal memory access" in lost_device.reason
    assert after.status is Status.OK


def test_an_implementation_that_hangs_is_ended_and_the_next_case_is_measured(
    fleet: Fleet, subjects: Path
) -> None:
    hung, after = run(fleet, job(f"{subjects}:hangs"), job("native"), timeout_s=3)
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


def test_each_target_that_cannot_be_found_has_a_reason(fleet: Fleet, subjects: Path) -> None:
    subjects.with_name("broken.py").write_text("raise RuntimeError('on import')\n")
    subjects.with_name("falls.py").write_text("import os\nos._exit(7)\n")
    missing = {
        "nativ": "'native'",
        f"{subjects}:gone": "'gone'",
        f"{subjects.parent}/broken.py:f": "RuntimeError: on import",
        f"{subjects.parent}/falls.py:f": "exit code 7",  # of the process that imports it
    }
    reasons = fleet.unresolved([*missing, "native", f"{subjects}:talks"])
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


# --- one case in several processes ----------------------------------------------------------------


def test_a_case_is_timed_in_as_many_processes_as_asked_which_are_kept(fleet: Fleet) -> None:
    in_two = Job(CASE, (Measurement.LATENCY,), IN_TWO)
    (found,) = run(fleet, in_two)
    assert found.latency is not None
    assert (found.latency.processes, found.latency.process_of_epoch) == (2, (0, 1))
    before = [worker.process.pid for worker in fleet._workers]
    run(fleet, in_two)
    assert [worker.process.pid for worker in fleet._workers] == before
    assert len(before) == 2


# --- cases beside each other, on fake workers of fake devices -------------------------------------

GPU = Gpu(name="X", uuid="1", memory_bytes=1, power_limit_w=None, compute_capability="9.0")
INFO = replace(LocalFleet().info, unavailable={}, device_counts={"cpu": 1, "cuda": 3})


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


def test_gpus_run_cases_at_once_and_cpu_cases_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.fleet.WorkerProcess", Worker)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = ["cuda"] * 5 + ["cpu"] * 2
    jobs = [job("native", device=device, seed=seed) for seed, device in enumerate(devices)]
    with Fleet() as fleet:
        records = run(fleet, *jobs)
    assert sorted(record.case.seed for record in records) == list(range(7))
    noted = Worker.noted
    assert {note.rpartition(" ")[2] for note in noted[:3]} == {"0", "1", "2"}
    assert [note for note in noted if note.startswith(("5", "6"))] == noted[-4:] == [
        *("5 begins on cpu", "5 ends", "6 begins on cpu", "6 ends"),
    ]  # fmt: skip


def test_gpus_of_several_models_are_not_used_at_once() -> None:
    environment = replace(INFO.environment, gpus=(GPU, replace(GPU, uuid="2")))
    assert len(usable_gpus(["0", "1"], environment)) == 2
    other = replace(environment, gpus=(GPU, replace(GPU, name="Y")))
    assert usable_gpus(["0", "1"], other) == ["0"]

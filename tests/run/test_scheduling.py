"""Which cases run beside each other, on fake workers of fake devices."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic, sleep

import pytest
from factories.fake_device import LocalFleet

from harness.records import Budget, Case, Gpu, Measurement, Record, Status
from harness.run import fleet as module
from harness.run.fleet import Fleet, Job, WorkerInfo, usable_gpus

GPU = Gpu(name="X", uuid="1", memory_bytes=1, power_limit_w=None, compute_capability="9.0")
INFO = replace(LocalFleet().info, unavailable={}, device_counts={"cpu": 1, "cuda": 3})


class Worker:
    """Answers a case as soon as its record is read, and notes when cases begin and end."""

    noted: list[str]

    def __init__(self, log: Path, cuda_device: str | None) -> None:
        self.cuda_device, self.deadline = cuda_device, float("inf")
        self.connection, self._far = Pipe()

    @property
    def info(self) -> WorkerInfo:
        return INFO

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


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(Worker, "noted", [], raising=False)
    monkeypatch.setattr(module, "WorkerProcess", Worker)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Worker.noted


def run(fleet: Fleet, devices: str) -> list[Record]:
    """Run a case per letter: c on a CPU, g on a GPU."""
    kinds = {"c": "cpu", "g": "cuda"}
    cases = [
        Case(implementation="native", shape=(4, 8), device=kinds[each], seed=seed)
        for seed, each in enumerate(devices)
    ]
    jobs = [Job(case, (Measurement.ERRORS,), Budget()) for case in cases]
    return list(fleet.run(jobs, 60.0))


def test_gpus_run_cases_at_once_and_cpu_cases_run_alone(noted: list[str]) -> None:
    with Fleet() as fleet:
        records = run(fleet, "gggggcc")
    assert sorted(record.case.seed for record in records) == list(range(7))
    assert {note.rpartition(" ")[2] for note in noted[:3]} == {"0", "1", "2"}
    assert [note for note in noted if note.startswith(("5", "6"))] == noted[-4:] == [
        *("5 begins on cpu", "5 ends", "6 begins on cpu", "6 ends"),
    ]  # fmt: skip


def test_a_record_that_comes_while_another_one_is_read_is_in_time(
    noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = 0.02
    waiting: list[Worker] = []

    def send(self: Worker, function: object, job: Job, timeout_s: float) -> None:
        self.job, self.deadline = job, monotonic() + limit_s
        waiting.append(self)
        if len(waiting) == 2:
            waiting[0]._far.send("done")

    def reply(self: Worker) -> Record:
        self.connection.recv()
        waiting.remove(self)
        for other in waiting:
            other._far.send("done")
            sleep(2 * limit_s)
        return Record(case=self.job.case, environment="here", status=Status.OK)

    monkeypatch.setattr(Worker, "send", send)
    monkeypatch.setattr(Worker, "reply", reply)
    with Fleet() as fleet:
        assert [record.status for record in run(fleet, "gg")] == [Status.OK] * 2


def test_gpus_of_several_models_are_not_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = replace(INFO.environment, gpus=(GPU, replace(GPU, uuid="2")))
    assert len(usable_gpus(["0", "1"], environment)) == 2
    other = replace(environment, gpus=(GPU, replace(GPU, name="Y")))
    assert usable_gpus(["0", "1"], other) == ["0"]

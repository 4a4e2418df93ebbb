"""One case in several processes: their order, their number, and the effect of a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from factories.fake_device import FakeDevice, latency_of, measure

from harness.records import Budget, Case, Latency, Measurement, Record, Status
from harness.run.fleet import Fleet, Job, is_enough

CASE = Case(implementation="native", shape=(4, 8))
QUICK = Budget(limit_s=0.0, min_epochs=1, max_epochs=1, target_ratio=0.0)
UNHURRIED_S = 120.0


# --- how many processes run the case -------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("records", "processes"),
    [
        ([record(warm=1.2)] * 7, 5),
        ([record(warm=ratio) for ratio in (1.0, 1.1, 1.3, 1.1, 1.1, 1.1, 1.1)], 7),
        ([record(cold=ratio) for ratio in (1.0, 1.1, 1.3, 1.2, 1.2, 1.2, 1.2)], 7),
        ([record()] * 7, 1),
    ],
    ids=["agree", "disagree", "cold times disagree", "no time"],
)
def test_processes_are_added_until_five_or_more_agree(
    records: list[Record], processes: int
) -> None:
    budget = Budget(processes=7)
    numbers = (number for number in range(8) if is_enough(records[:number], budget))
    assert next(numbers) == processes


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
    seen_by = {int(path.name[8:]) for path in implementations.parent.glob("seen-by-*")}
    assert len(seen_by) == 2
    assert seen_by <= {worker.process.pid for worker in fleet._workers}


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
    before = [worker.process.pid for worker in fleet._workers]
    run(fleet, replace(QUICK, processes=2), "native")
    run(fleet, QUICK, "native")
    assert [worker.process.pid for worker in fleet._workers] == before

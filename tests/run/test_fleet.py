"""Worker processes: a crash, a hang or output of an implementation affects its own case only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.records import Budget, Case, Measurement, Record, Refusal, Status
from harness.run import fleet as module
from harness.run.fleet import Fleet, HarnessError, Job

SUBJECTS = """
import os, signal, sys
from torch.nn.functional import layer_norm

def good(x, shape, weight=None, bias=None, eps=1e-5):
    return layer_norm(x, tuple(shape), weight, bias, eps)

def talks(*arguments):
    print("hello from the implementation")
    print("and to standard error", file=sys.stderr)
    os.write(1, b"\\xff\\xfe not text\\n")
    return good(*arguments)

def segfaults(*arguments):
    os.write(2, b"about to fall\\n\\n")
    os.kill(os.getpid(), signal.SIGSEGV)

def aborts(*arguments):
    os.abort()

def is_killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def leaves(*arguments):
    sys.exit(4)

def loses_the_device(*arguments):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore words")

def hangs(*arguments):
    while True:
        pass
"""
CASE = Case(implementation="native", shape=(4, 8))
UNHURRIED_S = 60.0


@pytest.fixture(scope="module")
def implementations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("implementations") / "subjects.py"
    path.write_text(SUBJECTS)
    return path


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


def job(implementation: str, **changes: object) -> Job:
    case = replace(CASE, implementation=implementation, **changes)  # type: ignore[arg-type]
    return Job(case, (Measurement.ERRORS,), Budget())


def run(fleet: Fleet, *jobs: Job, timeout_s: float = UNHURRIED_S) -> list[Record]:
    return list(fleet.run(jobs, timeout_s))


def test_records_come_in_the_order_of_the_jobs(fleet: Fleet) -> None:
    jobs = [job(name, seed=seed) for seed in (0, 1) for name in ("native", "one_pass")]
    records = run(fleet, *jobs)
    assert [record.case for record in records] == [job.case for job in jobs]
    assert {record.status for record in records} == {Status.OK}
    assert {record.environment for record in records} == {fleet.info.environment.fingerprint}


def test_output_of_an_implementation_is_kept_out_of_the_results(
    fleet: Fleet, implementations: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = run(fleet, job(f"{implementations}:talks"), job("native"))
    assert [record.status for record in records] == [Status.OK, Status.OK]
    assert capfd.readouterr() == ("", "")


def test_a_crash_costs_one_case_and_its_reason_says_how_the_process_ended(
    fleet: Fleet, implementations: Path
) -> None:
    names = ("segfaults", "leaves", "loses_the_device", "aborts", "is_killed")
    jobs = [job(f"{implementations}:{name}") for name in names]
    before, *crashed, after = run(fleet, job("native"), *jobs, job("two_pass"))
    assert (before.status, after.status) == (Status.OK, Status.OK)
    assert {record.status for record in crashed} == {Status.CRASHED}
    assert {(record.errors, record.cost, record.environment) for record in crashed} == {
        (None, None, after.environment)
    }
    segfault, leaving, lost_device, abort, kill = (record.reason for record in crashed)
    assert "SIGABRT" in abort
    assert "SIGKILL" in kill
    assert "SIGSEGV" in segfault
    assert "about to fall" in segfault  # its last line of output
    assert "exit code 4" in leaving
    assert "CUDA error: an illegal memory access" in lost_device


def test_an_implementation_that_hangs_is_ended_and_the_next_case_is_measured(
    fleet: Fleet, implementations: Path
) -> None:
    hung, after = run(fleet, job(f"{implementations}:hangs"), job("native"), timeout_s=4)
    assert hung.status is Status.TIMEOUT
    assert "4 s" in hung.reason
    assert hung.errors is None
    assert after.status is Status.OK


def test_no_case_starts_after_stop_at(fleet: Fleet) -> None:
    assert list(fleet.run([job("native")], UNHURRIED_S, stop_at=0.0)) == []


def test_each_target_that_cannot_be_found_has_a_reason(
    fleet: Fleet, implementations: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('on import')\n")
    (tmp_path / "falls.py").write_text("import os\nos._exit(7)\n")
    targets = [
        "nativ",
        "native",
        f"{implementations}:good",
        f"{implementations}:gone",
        f"{tmp_path}/broken.py:f",
        f"{tmp_path}/falls.py:f",  # ends the process that imports it
        "gone.py:f",
    ]
    misspelt, no_function, broken, falls, no_file = fleet.unresolved(targets)
    assert "'native'" in misspelt
    assert "'gone'" in no_function
    assert "RuntimeError: on import" in broken
    assert "exit code 7" in falls
    assert "gone.py" in no_file


def test_leaving_a_fleet_ends_its_processes_and_removes_their_logs() -> None:
    with Fleet() as fleet:
        processes = [worker.process for worker in fleet._workers]
        folder = Path(fleet._folder.name)
        assert folder.exists()
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)
    assert not folder.exists()


def test_a_bug_in_the_harness_stops_the_run_and_shows_where() -> None:
    # no sweep would let this distribution through
    with Fleet() as fleet, pytest.raises(HarnessError) as found:
        run(fleet, job("native", distribution="no_such_distribution"), job("native"))
    assert issubclass(HarnessError, Refusal)
    assert HarnessError.exit_code == 3
    assert "KeyError: 'no_such_distribution'" in str(found.value)


def test_a_worker_that_does_not_start_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0)
    with Fleet() as fleet, pytest.raises(HarnessError, match="not done after 0 s"):
        _ = fleet.info


def test_a_worker_that_ends_while_it_starts_is_an_error() -> None:
    with Fleet() as fleet:
        (worker,) = fleet._workers
        os.kill(worker.process.pid or 0, 9)
        with pytest.raises(HarnessError, match="SIGKILL"):
            _ = fleet.info


def test_a_worker_that_ends_between_two_cases_costs_at_most_one_case(fleet: Fleet) -> None:
    assert run(fleet, job("native"))[0].status is Status.OK
    (worker,) = fleet._workers
    os.kill(worker.process.pid or 0, 9)
    worker.process.join()
    first, second = run(fleet, job("native"), job("two_pass"))
    assert first.status is Status.CRASHED
    assert "SIGKILL" in first.reason
    assert second.status is Status.OK

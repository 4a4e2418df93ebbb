"""A Ray cluster of three nodes: where cases run, and the cost of a dead node, actor or driver."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories.commanding import started, wait_until
from factories.ray_cluster import LOOPBACK, RayCluster

os.environ.update(LOOPBACK)  # before Ray is imported
pytest.importorskip("ray", reason="the extra ray is not installed")


from harness.records import Budget, Case, Measurement, Status
from harness.run import Job
from harness.run import ray_fleet as module
from harness.run.ray_fleet import RayFleet
from harness.store import read, read_journal

UNHURRIED_S = 60.0
NO_COMPILER = "no-such-compiler"
ROWS = (1, 2, 3, 4, 5, 6)

# writes the node of each case that it begins and ends; in the case of 3 rows it waits for "go"
SUBJECTS = """
import os, signal, time
from pathlib import Path
from torch.nn.functional import layer_norm

HERE = Path(__file__).parent

def noted(x, shape, weight=None, bias=None, eps=1e-5):
    where = os.environ["NAME_OF_NODE"]
    with open(HERE / "begun", "a") as file:
        file.write(f"{len(x)} {where}\\n")
    while len(x) == 3 and not (HERE / "go").exists():
        time.sleep(0.01)
    return layer_norm(x, tuple(shape), weight, bias, eps)

def segfaults(*arguments):
    os.kill(os.getpid(), signal.SIGSEGV)

def ends_its_actor_once(x, *arguments):
    try:
        (HERE / "was here").touch(exist_ok=False)
    except FileExistsError:
        return layer_norm(x, *arguments)
    ends_its_actor()

def ends_its_actor(*arguments):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes of one kind, and one without a compiler."""
    with RayCluster() as made:
        made.add("first", "second")
        made.add("third", CXX=NO_COMPILER)
        yield made


@pytest.fixture(scope="class")
def fleet(cluster: RayCluster) -> Iterator[RayFleet]:
    with RayFleet(cluster.address) as fleet:
        yield fleet


@pytest.fixture
def subjects(tmp_path: Path) -> Path:
    path = tmp_path / "subjects.py"
    path.write_text(SUBJECTS)
    return path


def job(implementation: str) -> Job:
    case = Case(implementation=implementation, shape=(4, 8))
    return Job(case, (Measurement.ERRORS,), Budget())


def begun(subjects: Path) -> list[tuple[int, str]]:
    """Return rows and node of each call so far."""
    path = subjects.with_name("begun")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(rows), node) for rows, node in map(str.split, lines)]


# --- the driver and a node end while cases run ---------------------------------------------------


def test_what_is_finished_outlasts_a_killed_node_and_a_killed_driver(
    cluster: RayCluster, subjects: Path, tmp_path: Path
) -> None:
    out, shapes = tmp_path / "run.parquet", ",".join(f"{rows}x8" for rows in ROWS)
    line = (
        *("run", "--on", f"ray:{cluster.address}", "--quiet", "-i", f"{subjects}:noted"),
        *("--shape", shapes, "--measure", "errors", "--out", out),
    )
    driver = started(*line)

    # the case of 3 rows waits, the other nodes go on
    journal = out.with_suffix(".jsonl")
    wait_until(lambda: journal.exists() and len(read_journal(journal).records) == 5)
    acknowledged = read_journal(journal).records
    assert {record.case.rows for record in acknowledged} == set(ROWS) - {3}
    (dying,) = (node for rows, node in begun(subjects) if rows == 3)

    # its node dies in mid-case: another one begins the case
    cluster.kill(dying)
    wait_until(lambda: Counter(rows for rows, _ in begun(subjects))[3] == 2)

    # the driver dies in mid-case too, and is started again
    driver.kill()
    driver.communicate()
    subjects.with_name("go").touch()
    again = started(*line, "--resume")
    _, errors = again.communicate()
    cluster.add(dying, **({"CXX": NO_COMPILER} if dying == "third" else {}))  # for other tests
    assert again.returncode == 0, errors
    found = read(out).records
    assert [record.case.rows for record in found] == list(ROWS)
    assert {record.status for record in found} == {Status.OK}
    assert {record for record in found if record.case.rows != 3} == {*acknowledged}
    assert Counter(rows for rows, _ in begun(subjects)) == {**dict.fromkeys(ROWS, 1), 3: 3}


# --- one fleet for several tests -----------------------------------------------------------------


class TestFleet:
    def test_each_node_describes_itself(self, fleet: RayFleet) -> None:
        assert len(fleet.nodes) == fleet.info.device_counts["cpu"] == 3
        names = Counter(node.environment.fingerprint for node in fleet.nodes)
        assert sorted(names.values()) == [1, 2]
        assert sorted(node.environment.compiler is None for node in fleet.nodes) == [0, 0, 1]

    def test_a_crash_costs_one_case_and_is_recorded_with_its_signal(
        self, fleet: RayFleet, subjects: Path
    ) -> None:
        jobs = [job(f"{subjects}:segfaults"), job("native")]
        found = {record.case.implementation: record for record in fleet.run(jobs, UNHURRIED_S)}
        crashed, right = found[f"{subjects}:segfaults"], found["native"]
        assert (crashed.status, right.status) == (Status.CRASHED, Status.OK)
        assert "SIGSEGV" in crashed.reason
        assert right.environment in {node.environment.fingerprint for node in fleet.nodes}

    def test_a_killed_actor_is_restarted_and_its_case_run_again(
        self, fleet: RayFleet, subjects: Path
    ) -> None:
        (found,) = fleet.run([job(f"{subjects}:ends_its_actor_once")], UNHURRIED_S)
        assert found.status is Status.OK
        assert fleet.lost == []

    def test_a_case_that_ends_its_actor_each_time_is_recorded(
        self, fleet: RayFleet, subjects: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_ATTEMPTS", 1)
        (found,) = fleet.run([job(f"{subjects}:ends_its_actor")], UNHURRIED_S)
        assert found.status is Status.CRASHED
        assert "Ray actor" in found.reason

    def test_a_target_that_cannot_be_found_is_reported_once(self, fleet: RayFleet) -> None:
        (why,) = fleet.unresolved(["nativ", "native"])
        assert "did you mean 'native'?" in why


def test_an_address_without_a_cluster_is_refused_in_one_line() -> None:
    with pytest.raises(module.HarnessError, match="ray start --head"), RayFleet("127.0.0.1:1"):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

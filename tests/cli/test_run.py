"""The command run: exit codes, files and JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from click.testing import Result
from factories.commanding import ONE, call, complaint
from factories.fake_device import LocalFleet

from harness.cases import load_preset
from harness.records import Record
from harness.run import fleet as fleet_module
from harness.run.fleet import Fleet, HarnessError
from harness.store import read

SUBJECTS = """
import os

def double(x, *_):
    return x * 2

def raises(*_):
    raise ValueError("no")

def aborts(*_):
    print("noise")
    os.abort()

def prints(x, *_):
    print("noise")
    os.write(1, b"more noise")
    return x
"""


@pytest.fixture(autouse=True)
def _subjects() -> None:
    Path("mine.py").write_text(SUBJECTS)


def errors_of(targets: str, *more: str) -> Result:
    """Measure the errors of some targets on one small case."""
    return call("run", "-i", targets, *ONE[2:], *more)


# --- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fail_on", "exit_code", "failed_on"),
    [
        ((), 0, []),
        (("--fail-on", "wrong"), 1, ["mine.py:double"]),
        (("--fail-on", "out_of_guarantee"), 1, ["one_pass"]),
        (("--fail-on", "unsupported,out_of_memory"), 0, []),
        (("--fail-on", "wrong,out_of_guarantee"), 1, ["mine.py:double", "one_pass"]),
        (("--fail-on", "wrong", "--fail-on", "out_of_guarantee"), 1,
         ["mine.py:double", "one_pass"]),
    ],
)  # fmt: skip
def test_wrong_results_fail_a_run_only_if_asked(
    fail_on: tuple[str, ...], exit_code: int, failed_on: list[str]
) -> None:
    sweep = ("--shape", "4x64", "--distribution", "offset_1e3", "--measure", "errors")
    found = call("run", "-i", "mine.py:double,one_pass,recentred", *sweep, *fail_on,
                 "--out", "mine.parquet", "--json")  # fmt: skip
    assert found.exit_code == exit_code
    outcome = json.loads(found.stdout)
    assert outcome["statuses"] == {"wrong": 1, "out_of_guarantee": 1, "ok": 1}
    assert [each.split("/")[0] for each in outcome["failed_on"]] == failed_on
    assert [each.split("/")[0] for each in outcome["wrong"]] == ["mine.py:double"]
    assert outcome["next_command"].startswith("layernorm-bench explain mine.py:double ")
    assert ("--fail-on" in found.stderr) == bool(exit_code)


def test_a_failed_case_fails_the_run() -> None:
    found = errors_of("native,mine.py:raises", "--json")
    assert found.exit_code == 3
    assert "1 case could not be measured (1 error)" in found.stderr
    outcome = json.loads(found.stdout)
    assert [each["status"] for each in outcome["cases"]] == ["ok", "error"]
    assert outcome["cases"][1]["reason"] == "ValueError: no"
    assert len(read(Path("mine.parquet")).records) == 2


def test_wrong_results_outrank_a_failed_case() -> None:
    found = errors_of("mine.py:double,mine.py:raises", "--fail-on", "wrong")
    assert found.exit_code == 1
    error, wrong = found.stderr.splitlines()[-2:]
    assert "1 error" in error
    assert "--fail-on wrong" in wrong


def test_a_run_that_measured_nothing_fails() -> None:
    found = call("run", *ONE, "--dtype", "float16", "--distribution", "offset_1e6", "--json")
    assert found.exit_code == 3
    assert "nothing was measured" in found.stderr
    assert json.loads(found.stdout)["cases"][0]["status"] == "unsupported"


def test_a_run_out_of_time_prints_how_to_continue(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "run", lambda *_: iter(()))
    monkeypatch.setattr("sys.argv", ["layernorm-bench", "run", *ONE])
    found = call("run", *ONE, "--quiet", "--time-budget", "1s")
    assert found.exit_code == 3
    left, command, why = found.stderr.splitlines()
    assert "cases not started: 1" in left
    assert shlex.split(command) == ["layernorm-bench", "run", *ONE, "--resume"]
    assert "the time budget was spent" in why


def test_a_bug_in_the_harness_ends_the_run(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Record]:
        raise HarnessError("KeyError: 'x'\nthis is a bug in layernorm-bench")
        yield

    monkeypatch.setattr(fleet, "run", broken)
    found = call("run", *ONE)
    assert found.exit_code == 3
    assert "layernorm-bench: this is a bug in layernorm-bench" in found.stderr


def test_an_interrupt_before_the_first_case_has_the_code_of_an_interrupt(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(targets: object) -> tuple[str, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr(fleet, "unresolved", interrupted)
    assert call("run", *ONE).exit_code == 130


def test_a_shard_without_a_case_measures_nothing() -> None:
    codes = [
        call("run", *ONE[:-1], f"part{index}.parquet", "--shard", f"{index}/2").exit_code
        for index in (1, 2)
    ]
    assert sorted(codes) == [0, 3]
    assert complaint("report", f"part{codes.index(3) + 1}.parquet", code=3)


# --- the outcome ---------------------------------------------------------------------------------


def test_the_outcome_as_json() -> None:
    found = json.loads(call("run", *ONE, "--json").stdout)
    assert found.pop("wall_s") > 0
    assert 0 <= found.pop("overhead_ratio") <= 1
    assert found == {
        "results": "mine.parquet",
        "page": None,
        "measured": 1,
        "failed": 0,
        "left": 0,
        "statuses": {"ok": 1},
        "answer": ["right in every case: native"],
        "wrong": [],
        "fail_on": [],
        "failed_on": [],
        "next_command": "layernorm-bench report mine.parquet",
        "cases": [
            {"id": "native/forward/2x8/float32/normal", "status": "ok", "reason": ""},
        ],
    }


def test_results_are_printed_and_progress_is_not_if_quiet() -> None:
    loud = call("run", *ONE)
    assert loud.stderr.startswith("[1/1] ok ")
    Path("mine.parquet").unlink()
    quiet = call("run", *ONE, "--quiet")
    assert (loud.exit_code, quiet.exit_code, quiet.stderr) == (0, 0, "")
    assert "results: mine.parquet" in quiet.stdout


def test_a_dry_run_names_the_cases_and_measures_nothing() -> None:
    shown = call("run", *ONE, "--seed", "0,1", "--dry-run")
    ids = shown.stdout.splitlines()
    assert len(ids) == 2
    assert ids[1] == f"{ids[0]}/seed=1"
    assert shown.stderr.startswith("2 cases; sampling takes up to ")
    assert not Path("mine.parquet").exists()
    as_json = call("run", *ONE, "--dry-run", "--json")
    assert len(json.loads(as_json.stdout)["cases"]) == 1


@pytest.mark.parametrize(("targets", "code"), [("native", 2), ("native,mine.py:raises", 3)])
def test_a_page_that_cannot_be_written_costs_the_page_only(targets: str, code: int) -> None:
    Path("reports").write_text("no folder")
    found = errors_of(targets, "--report")
    assert found.exit_code == code
    assert "results: mine.parquet" in found.stdout
    assert "page:" not in found.stdout
    assert "reports/mine.html: cannot be written: " in found.stderr
    assert "`layernorm-bench report mine.parquet`" in found.stderr
    Path("mine.parquet").unlink()
    outcome = json.loads(errors_of(targets, "--report", "--json").stdout)
    assert (outcome["results"], outcome["page"]) == ("mine.parquet", None)


# --- which cases ---------------------------------------------------------------------------------


def ids(*arguments: str) -> list[str]:
    return [each["id"] for each in json.loads(call("run", *arguments, "--json").stdout)["cases"]]


def test_an_axis_given_twice_or_with_commas_has_all_its_values() -> None:
    found = ids("-i", "native", "-i", "two_pass,welford", "--shape", "2x8,0x8", "--shape", "4x8",
                "--measure", "errors")  # fmt: skip
    assert len(found) == 9


def test_an_axis_replaces_that_of_the_preset() -> None:
    names = {name for grid in load_preset("conditioning").grids for name in grid.distributions}
    found = ids("--preset", "conditioning", *ONE, "--dtype", "float32", "--mode", "eager")
    assert {each.split("/")[4] for each in found} == names
    assert {(each.split("/")[0], each.split("/")[2]) for each in found} == {("native", "2x8")}


def test_results_go_to_a_file_with_the_name_of_the_sweep() -> None:
    Path("mine.toml").write_text(
        '[[grids]]\nimplementations = ["native"]\nshapes = ["2x8"]\nmeasure = ["errors"]\n'
    )
    path = Path(json.loads(call("run", "--sweep", "mine.toml", "--json").stdout)["results"])
    assert path.parent == Path("results")
    assert path.name.startswith("mine-")
    assert path.exists()


# --- with a worker process of its own ------------------------------------------------------------


@pytest.fixture(scope="module")
def worker() -> Iterator[Fleet]:
    with Fleet() as real:
        yield real


@pytest.fixture
def _real(worker: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "Fleet", lambda: nullcontext(worker))


@pytest.mark.usefixtures("_real")
def test_a_crash_costs_its_case_and_no_implementation_prints_into_the_json(
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = Path("mine.py").resolve()  # the worker was started in another folder
    found = errors_of(f"{file}:aborts,{file}:prints,native", "--json")
    assert found.exit_code == 3
    cases = json.loads(found.stdout)["cases"]
    assert [each["status"] for each in cases] == ["crashed", "wrong", "ok"]
    assert "SIGABRT" in cases[0]["reason"]
    assert "1 case could not be measured (1 crashed)" in found.stderr
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("_real")
def test_the_command_printed_for_a_wrong_case_works() -> None:
    found = errors_of(f"native,{Path('mine.py').resolve()}:double")
    command = found.stdout[found.stdout.rindex("layernorm-bench ") :].replace("\\\n", "")
    name, *arguments = shlex.split(command)
    assert (name, arguments[0]) == ("layernorm-bench", "explain")
    explained = call(*arguments)
    assert explained.exit_code == 0, explained.stderr
    assert "mine.py:double" in explained.stdout


@pytest.mark.usefixtures("_real")
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_refused_by_the_machine_itself() -> None:
    assert complaint("run", "--device", "cuda").startswith("--device: device 'cuda' cannot be used")

"""The command run: exit codes, files, JSON, and the commands that it and the page print."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from shutil import copy
from unittest.mock import Mock

import pytest
import torch
from click.testing import Result
from factories import failing_targets
from factories.commanding import ONE, answer, call, complaint
from factories.fake_device import LocalFleet
from factories.golden import assert_golden

from harness.cases import load_preset
from harness.records import NotMeasuredError, Status
from harness.store import read, to_plain

RESULTS = Path("mine.parquet")


@pytest.fixture(autouse=True)
def _subjects() -> None:
    copy(failing_targets.__file__, "mine.py")


def errors_of(targets: str, *more: str, code: int | None = None) -> Result:
    """Measure the errors of some targets on one small case."""
    return call("run", "-i", targets, *ONE[2:], *more, code=code)


# --- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fail_on", "failed_on"),
    [("", []), ("--fail-on wrong,out_of_guarantee", ["mine.py:wrong", "one_pass"])],
)
def test_wrong_results_fail_a_run_only_if_asked(fail_on: str, failed_on: list[str]) -> None:
    sweep = "--shape 4x64 --distribution offset_1e3 --measure errors --out mine.parquet"
    options = ("-i", "mine.py:wrong,one_pass,recentred", *sweep.split(), *fail_on.split())
    outcome = answer("run", *options, code=bool(failed_on))
    assert outcome["statuses"] == {"wrong": 1, "out_of_guarantee": 1, "ok": 1}
    assert [name.split("/")[0] for name in outcome["failed_on"]] == failed_on
    assert outcome["next_command"].startswith("layernorm-bench explain mine.py:wrong ")


def test_a_failed_case_fails_the_run() -> None:
    found = errors_of("native,mine.py:raises", code=3)
    assert "1 case could not be measured (1 error)" in found.stderr
    assert [record.status for record in read(RESULTS).records] == [Status.OK, Status.ERROR]


def test_wrong_results_outrank_a_failed_case() -> None:
    found = errors_of("mine.py:wrong,mine.py:raises", "--fail-on", "wrong", code=1)
    assert "1 error" in found.stderr


def test_a_run_that_measured_nothing_fails() -> None:
    found = call("run", *ONE, "--dtype", "float16", "--distribution", "offset_1e6", code=3)
    assert "nothing was measured" in found.stderr


def test_a_run_out_of_time_prints_how_to_continue(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "run", lambda *_: iter(()))
    monkeypatch.setattr("sys.argv", ["layernorm-bench", "run", *ONE])
    found = call("run", *ONE, "--quiet", "--time-budget", "1s", code=3)
    _, command, _ = found.stderr.splitlines()
    assert shlex.split(command) == ["layernorm-bench", "run", *ONE, "--resume"]


def test_a_bug_ends_the_run(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    error = NotMeasuredError("KeyError: 'x'\nthis is a bug")
    monkeypatch.setattr(fleet, "run", Mock(side_effect=error))
    assert "this is a bug" in call("run", *ONE, code=3).stderr


# --- the outcome ---------------------------------------------------------------------------------


def test_the_outcome_as_json() -> None:
    found = answer("run", *ONE)
    assert found.pop("wall_s") > 0
    assert 0 <= found.pop("overhead_ratio") <= 1
    assert_golden(json.dumps(found, indent=1), __file__, "run_json.txt")


def test_results_are_printed_and_progress_is_not_if_quiet() -> None:
    quiet = call("run", *ONE, "--quiet")
    assert quiet.stderr == ""
    assert "results: mine.parquet" in quiet.stdout


def test_a_page_that_cannot_be_written_costs_the_page_only() -> None:
    Path("reports").write_text("no folder")
    found = errors_of("native", "--report", code=2)
    assert "results: mine.parquet" in found.stdout
    assert "reports/mine.html: cannot be written: " in found.stderr


def test_a_page_is_written_if_asked() -> None:
    assert "page: reports/mine.html" in errors_of("native", "--report").stdout
    assert Path("reports/mine.html").exists()


# --- which cases ---------------------------------------------------------------------------------


def test_an_axis_replaces_that_of_the_preset() -> None:
    names = {name for grid in load_preset("conditioning").grids for name in grid.distributions}
    cases = answer("run", "--preset", "conditioning", *ONE, "--dry-run")["cases"]
    name, _, shape, _, distribution = zip(*(case.split("/")[:5] for case in cases), strict=True)
    assert ({*name}, {*shape}, {*distribution}) == ({"native"}, {"2x8"}, names)


def test_results_go_to_a_file_with_the_name_of_the_sweep() -> None:
    Path("mine.toml").write_text(
        '[[grids]]\nimplementations = ["native"]\nshapes = ["2x8"]\nmeasure = ["errors"]\n'
    )
    path = Path(answer("run", "--sweep", "mine.toml")["results"])
    assert path.parent == Path("results")
    assert path.name.startswith("mine-")
    assert path.exists()


# --- the next command ----------------------------------------------------------------------------


ODD = (
    "--shape 3x4x5 --normalized-dims 2 --dtype bfloat16 --param-dtype float32 --layout transposed "
    "--distribution offset_1e3 --affine bias --eps 1e-12 --seed 7 --measure errors"
)
ODDER = f"{ODD} --direction backward --grad-output ones --parameters nan_bias --threads 2"


def next_words(name: str, options: str, code: int) -> list[str]:
    """Return the arguments of the command that a run of one case in an odd folder prints."""
    Path("my folder").mkdir()
    Path("mine.py").rename("my folder/mine.py")
    target = f"my folder/mine.py:{name}"
    outcome = answer("run", "-i", target, *options.split(), "--out", "mine.parquet", code=code)
    program, *words = shlex.split(outcome["next_command"])
    assert program == "layernorm-bench"
    return words


def test_a_case_that_failed_is_run_again_by_itself() -> None:
    words = next_words("raises", ODDER, code=3)
    (record,) = read(RESULTS).records
    assert call(*words, "--dry-run").stdout == f"{record.case.id}\n"


def test_a_wrong_case_is_explained() -> None:
    explained = answer(*next_words("double", ODD, code=0))
    (record,) = read(RESULTS).records
    assert (record.status, explained["status"]) == (Status.WRONG, "wrong")
    assert explained["case"] == json.loads(json.dumps(to_plain(record.case)))


# --- parts ---------------------------------------------------------------------------------------

SWEEP = (
    "-i", "native,two_pass", "--shape", "2x8,3x8", "--dtype", "float32,float64",
    "--measure", "errors",
)  # fmt: skip


def test_shards_become_one_file_that_a_run_continues() -> None:
    shards = [f"part{number}.parquet" for number in (1, 2, 3)]
    for number, shard in enumerate(shards, 1):
        options = ("--shard", f"{number}/3", "--out", shard, "--quiet")
        call("run", *SWEEP, *options, code=0)
    call("merge", shards[0], shards[2], "--out", "most.parquet")
    assert len(answer("run", *SWEEP, "--out", "most.parquet", "--resume")["cases"]) == 8
    text = call("merge", *shards, "--out", "whole.parquet").stdout
    assert text == "results: whole.parquet, 8 cases in 1 environment\n"


# --- with a worker process of its own ------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_a_crash_costs_its_case_and_no_implementation_prints_into_the_json(
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = Path("mine.py").resolve()  # the worker was started in another folder
    found = errors_of(f"{file}:crashes,{file}:prints,native", "--json")
    cases = json.loads(found.stdout)["cases"]
    assert [case["status"] for case in cases] == ["crashed", "ok", "ok"]
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("worker")
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_refused_by_the_machine_itself() -> None:
    assert complaint("run", "--device", "cuda").startswith("--device: device 'cuda' cannot be used")

"""How a run ends, and by which exit code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import ONE, call, spawn
from fake_device import LocalFleet

import implementations
from harness.records import Record
from harness.run import fleet as fleet_module
from harness.run.fleet import HarnessError
from harness.store import read
from harness.sweep import load_preset


def test_an_empty_tensor_is_legal() -> None:
    found = call("run", "-i", "two_pass", "--shape", "0x5", "--measure", "errors", "--json")
    assert found.exit_code == 0
    (case,) = json.loads(found.stdout)["cases"]
    assert case == {"id": "two_pass/forward/0x5/float32/normal", "status": "ok", "reason": ""}


def test_wrong_results_are_results_and_the_run_is_done() -> None:
    Path("mine.py").write_text("def norm(x, *_):\n    return x * 2\n")
    found = call("run", "-i", "mine.py:norm", *ONE[2:], "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["cases"][0]["status"] == "wrong"


def test_wrong_results_are_named_last_with_a_command_that_works() -> None:
    Path("mine.py").write_text("def norm(x, *_):\n    return x * 2\n")
    found = call("run", "-i", "native,mine.py:norm", *ONE[2:])
    heading, line, purpose, command = found.stdout.splitlines()[-4:]
    assert heading == "wrong (1 case):"
    assert line.startswith("  mine.py:norm/forward/2x8/float32/normal: y is ")
    assert purpose.endswith(":")
    name, *arguments = shlex.split(command)
    assert (name, arguments[0]) == ("layernorm-bench", "explain")
    explained = spawn(*arguments)
    assert explained.returncode == 0, explained.stderr
    assert "mine.py:norm" in explained.stdout


@pytest.mark.parametrize(
    ("fail_on", "exit_code", "failed_on"),
    [
        ((), 0, []),
        (("--fail-on", "wrong"), 1, ["mine.py:norm"]),
        (("--fail-on", "out_of_guarantee"), 1, ["one_pass"]),
        (("--fail-on", "unsupported,out_of_memory"), 0, []),
        (("--fail-on", "wrong,out_of_guarantee"), 1, ["mine.py:norm", "one_pass"]),
        (("--fail-on", "wrong", "--fail-on", "out_of_guarantee"), 1, ["mine.py:norm", "one_pass"]),
    ],
)
def test_a_run_fails_on_the_statuses_that_it_is_asked_to_fail_on(
    fail_on: tuple[str, ...], exit_code: int, failed_on: list[str]
) -> None:
    Path("mine.py").write_text("def norm(x, *_):\n    return x * 2\n")
    arguments = ("--shape", "4x64", "--distribution", "offset_1e3", "--out", "mine.parquet")
    found = call("run", "-i", "mine.py:norm,one_pass,recentred", *arguments, *ONE[4:6], *fail_on,
                 "--json")  # fmt: skip
    assert found.exit_code == exit_code
    outcome = json.loads(found.stdout)
    assert outcome["statuses"] == {"wrong": 1, "out_of_guarantee": 1, "ok": 1}
    assert [each.split("/")[0] for each in outcome["failed_on"]] == failed_on
    assert [each.split("/")[0] for each in outcome["wrong"]] == ["mine.py:norm"]
    assert outcome["next_command"].startswith("layernorm-bench explain mine.py:norm ")
    assert ("--fail-on" in found.stderr) == bool(exit_code)


def test_wrong_results_are_more_than_a_case_that_failed() -> None:
    Path("mine.py").write_text(
        "def norm(x, *_):\n    return x * 2\ndef no(*_):\n    raise ValueError('no')\n"
    )
    found = call("run", "-i", "mine.py:norm,mine.py:no", *ONE[2:], "--fail-on", "wrong")
    assert found.exit_code == 1
    error, wrong = found.stderr.splitlines()[-2:]
    assert "1 error" in error
    assert "--fail-on wrong" in wrong


def test_a_run_out_of_time_says_how_to_continue(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "run", lambda *_: iter(()))
    found = call("run", *ONE, "--quiet", "--time-budget", "1s")
    assert found.exit_code == 3
    said, command, why = found.stderr.splitlines()
    assert said == "layernorm-bench: 1 case was not started; continue with"
    assert command.startswith("  layernorm-bench ")
    assert command.endswith(" --resume --out mine.parquet")
    assert why == "layernorm-bench: nothing was measured: the time budget was spent"


def test_a_quiet_run_prints_its_results_and_no_progress() -> None:
    found = call("run", *ONE, "--quiet")
    assert found.exit_code == 0
    assert found.stderr == ""
    assert "results: mine.parquet" in found.stdout


def test_a_large_run_is_a_summary_and_a_verbose_one_has_every_case() -> None:
    seeds = ("--seed", ",".join(map(str, range(41))))
    found = call("run", *ONE, *seeds)
    assert found.stdout.splitlines()[1].split() == ["native", "41", "41"]
    assert "/forward/" not in found.stdout
    found = call("run", *ONE, *seeds, "--resume", "--verbose")
    assert found.stdout.count("native/forward/2x8/float32/normal") == 41
    assert "41 cases (41 of them measured earlier) in " in found.stdout


def test_where_nothing_was_measured_the_exit_code_says_so() -> None:
    arguments = ("--dtype", "float16", "--distribution", "offset_1e6")
    found = call("run", *ONE, *arguments, "--json")
    assert found.exit_code == 3
    assert found.stderr.splitlines()[-1] == (
        "layernorm-bench: nothing was measured; the reasons are above"
    )
    assert json.loads(found.stdout)["cases"][0]["status"] == "unsupported"


def test_where_one_of_several_cases_failed_the_exit_code_says_so() -> None:
    Path("mine.py").write_text("def norm(*_):\n    raise ValueError('no')\n")
    found = call("run", "-i", "native,mine.py:norm", *ONE[2:], "--json")
    assert found.exit_code == 3
    assert found.stderr.splitlines()[-1] == (
        "layernorm-bench: 1 case could not be measured (1 error); the reasons are above"
    )
    outcome = json.loads(found.stdout)
    assert [each["status"] for each in outcome["cases"]] == ["ok", "error"]
    assert outcome["cases"][1]["reason"] == "ValueError: no"
    assert len(read(Path("mine.parquet")).records) == 2


def test_a_bug_in_the_harness_has_an_exit_code_of_its_own(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Record]:
        raise HarnessError("KeyError: 'x'\nthis is a bug in layernorm-bench")
        yield

    monkeypatch.setattr(fleet, "run", broken)
    found = call("run", *ONE)
    assert found.exit_code == 3
    assert "layernorm-bench: this is a bug in layernorm-bench" in found.stderr


def test_ctrl_c_before_the_first_case_ends_like_ctrl_c_within_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(LocalFleet):
        def unresolved(self, targets: object) -> tuple[str, ...]:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet_module, "Fleet", Interrupted)
    assert call("run", *ONE).exit_code == 130


def test_a_run_without_any_case_says_so() -> None:
    # one of two shards of a single case has nothing to do
    codes = [
        call("run", *ONE[:-1], f"part{index}.parquet", "--shard", f"{index}/2").exit_code
        for index in (1, 2)
    ]
    assert sorted(codes) == [0, 3]
    empty = codes.index(3) + 1
    found = call("run", *ONE[:-1], "again.parquet", "--shard", f"{empty}/2", "--quiet")
    assert found.stderr == (
        "layernorm-bench: nothing was measured: this part of the sweep has no case\n"
    )
    found = call("report", f"part{empty}.parquet")
    assert found.exit_code == 3
    assert found.stderr == (
        "layernorm-bench: no records to report; measure some with `layernorm-bench run`\n"
    )


def test_shards_measure_every_case_once() -> None:
    arguments = ("--shape", "2x8", "--measure", "errors", "--seed", "0,1,2")
    ids: list[str] = []
    for index in (1, 2, 3):
        out = ("--shard", f"{index}/3", "--out", f"part{index}.parquet", "--json")
        ids += [each["id"] for each in json.loads(call("run", *arguments, *out).stdout)["cases"]]
    on_cpu = [each for each in implementations.ALL if "cpu" in each.devices]
    assert len(ids) == len(set(ids)) == 3 * len(on_cpu)


def test_another_seed_gives_other_errors_and_the_same_seed_the_same() -> None:
    errors = {}
    for name, seeds in (("one", "0,1"), ("other", "1,0")):
        out = ("--seed", seeds, "--out", f"{name}.parquet", "--json")
        assert call("run", "-i", "native", "--shape", "8x100", *ONE[4:6], *out).exit_code == 0
        errors[name] = {
            each.case.seed: each.errors for each in read(Path(f"{name}.parquet")).records
        }
    assert errors["one"][0] != errors["one"][1]
    assert errors["one"] == errors["other"]


def test_axes_given_twice_or_with_commas_are_all_run() -> None:
    found = call(
        "run", "-i", "native", "-i", "two_pass,welford", "--shape", "2x8,3x8", "--shape", "4x8",
        "--measure", "errors", "--json",
    )  # fmt: skip
    assert len(json.loads(found.stdout)["cases"]) == 9


def test_an_axis_replaces_that_of_the_preset() -> None:
    found = call("run", "--preset", "conditioning", *ONE, "--mode", "eager", "--json")
    ids = [each["id"] for each in json.loads(found.stdout)["cases"]]
    assert {each.split("/")[0] for each in ids} == {"native"}
    assert {each.split("/")[2] for each in ids} == {"2x8"}
    wanted = {name for grid in load_preset("conditioning").grids for name in grid.distributions}
    assert {each.split("/")[4] for each in ids} == wanted


def test_results_go_to_a_file_with_the_name_of_the_sweep() -> None:
    Path("mine.toml").write_text(
        '[[grids]]\nimplementations = ["native"]\nshapes = ["2x8"]\nmeasure = ["errors"]\n'
    )
    found = call("run", "--sweep", "mine.toml", "--json")
    path = Path(json.loads(found.stdout)["results"])
    assert path.parent == Path("results")
    assert path.name.startswith("mine-")
    assert path.exists()


def test_a_page_that_cannot_be_written_costs_the_page_alone() -> None:
    Path("reports").write_text("no folder")
    found = call("run", *ONE, "--report")
    assert found.exit_code == 2
    assert "results: mine.parquet" in found.stdout
    assert "page:" not in found.stdout
    (line,) = (each for each in found.stderr.splitlines() if each.startswith("layernorm-bench: "))
    assert line.startswith("layernorm-bench: reports/mine.html: cannot be written: ")
    assert line.endswith("; make it with `layernorm-bench report mine.parquet`")
    Path("mine.parquet").unlink()
    outcome = json.loads(call("run", *ONE, "--report", "--json").stdout)
    assert (outcome["results"], outcome["page"]) == ("mine.parquet", None)


def test_a_case_that_failed_is_more_than_a_page_that_cannot_be_written() -> None:
    Path("reports").write_text("no folder")
    Path("mine.py").write_text("def norm(*_):\n    raise ValueError('no')\n")
    found = call("run", "-i", "native,mine.py:norm", *ONE[2:], "--report")
    assert found.exit_code == 3
    assert "reports/mine.html: cannot be written: " in found.stderr
    assert "1 case could not be measured (1 error)" in found.stderr


def test_json_says_how_the_run_went() -> None:
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
        "wrong": [],
        "fail_on": [],
        "failed_on": [],
        "next_command": "layernorm-bench report mine.parquet",
        "cases": [
            {"id": "native/forward/2x8/float32/normal", "status": "ok", "reason": ""},
        ],
    }

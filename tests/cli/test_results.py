"""The commands that read results files: choose, report, export, history and merge."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from factories.choice_records import SHAPE, ran, results_of, with_latency
from factories.commanding import answer, call, complaint, write_journal
from factories.compared_runs import STEADY, failed, make_case, make_record
from factories.golden import assert_golden
from factories.histories import results_of_commit, runs_of, stored_history
from factories.results_factory import make_results

from harness.records import Case, Estimate, Record, Status
from harness.store import write

GOLDEN = Path(__file__).parent / "golden"
NATIVE, QUICK = ran("native", 1.0), ran("one_pass", 0.5)
INACCURATE, WRONG = (
    replace(NATIVE, status=status, reason="y is off")
    for status in (Status.INACCURATE, Status.WRONG)
)
RUN = Path("run.parquet")
WORKLOAD = """
[[calls]]
shape = "64x768"
dtype = "float32"
direction = "forward"
count = 24
"""


def store(*records: Record, path: Path = RUN) -> None:
    write(results_of(records), path)


# --- choose --------------------------------------------------------------------------------------


def chosen(*options: str) -> Any:
    """Choose from the run; return what is printed as JSON."""
    found = call("choose", "run.parquet", *options, "--format", "json")
    return json.loads(found.stdout, parse_constant=pytest.fail)


def test_choices_read_as_in_the_golden_files() -> None:
    other = ran("native", 1.0, shape=(8, 8))
    store(NATIVE, QUICK, ran("<b>a|b</b>", 4.0), other, ran("native", dtype="float64"))
    Path("work.toml").write_text(WORKLOAD + WORKLOAD.replace("64x768", "7x7"))
    for form in ("table", "markdown"):
        texts = []
        for options in ((), ("--workload", "work.toml")):
            done = call("choose", "run.parquet", *options, "--format", form)
            assert done.exit_code == 0
            texts += [line.rstrip() for line in done.stdout.splitlines()]
        assert_golden("\n".join(texts), GOLDEN / f"choose_{form}.txt")


@pytest.mark.parametrize(
    ("options", "record", "code"),
    [
        ("", NATIVE, 0),
        ("", WRONG, 1),
        ("--workload work.toml", WRONG, 1),
        ("", INACCURATE, 1),
        ("--accuracy inaccurate", INACCURATE, 0),
        ("--accuracy inaccurate", WRONG, 1),
        ("--max-error 0.5", NATIVE, 1),
    ],
)
def test_the_exit_code_tells_whether_every_scenario_has_a_choice(
    options: str, record: Record, code: int
) -> None:
    store(record)
    Path("work.toml").write_text(WORKLOAD)
    assert call("choose", "run.parquet", *options.split()).exit_code == code


def test_json_holds_every_candidate_and_the_choice_for_a_workload() -> None:
    store(NATIVE, QUICK, ran("welford", 0.1, status=Status.WRONG))
    Path("work.toml").write_text(WORKLOAD + WORKLOAD.replace("64x768", "7x7"))
    plain = chosen("--workload", "work.toml")
    (choice,) = plain["choices"]
    assert (choice["shape"], choice["implementation"]) == (list(SHAPE), "one_pass")
    candidates = {candidate["implementation"]: candidate for candidate in choice["candidates"]}
    assert candidates.keys() == {"one_pass", "native", "welford"}
    assert candidates["one_pass"]["price"] is None
    assert candidates["welford"]["disqualified_because"] == "wrong"
    assert plain["complete"] is True
    (choice,) = plain["workload"]
    assert choice["implementation"] == "one_pass"
    assert (choice["calls"], choice["calls_covered"]) == (48, 24)
    assert choice["missing"][0]["shape"] == [7, 7]


def test_json_holds_null_for_numbers_that_are_not_finite() -> None:
    endless = Estimate(value=1.0, low=0.0, high=inf)
    store(with_latency(ran("native", 1.0, error_ulp=inf), per_call_s=endless))
    (candidate,) = chosen()["choices"][0]["candidates"]
    assert (candidate["time_s"]["high"], candidate["error_ulp"]) == (None, None)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", ["one_pass", "native"]),
        ("--max-error 2", ["native", "native"]),
        ("--max-condition 2", ["two_pass", "native"]),
        ("--shape 8x8 --dtype float32 --device cpu --direction forward", ["native"]),
    ],
)
def test_filters_and_limits_reach_the_choice(options: str, names: list[str]) -> None:
    far: dict[str, Any] = {"condition": 50.0, "distribution": "uniform"}
    store(
        *(NATIVE, ran("native", **far), ran("native", 1.0, shape=(8, 8))),
        *(ran("one_pass", 0.5, error_ulp=9.0), ran("one_pass", **far)),
        *(ran("two_pass", 0.2), ran("two_pass", status=Status.WRONG, **far)),
    )
    choices = chosen(*options.split())["choices"]
    assert [choice["implementation"] for choice in choices] == names


def test_two_runs_are_chosen_from_together() -> None:
    store(NATIVE)
    store(QUICK, path=Path("two.parquet"))
    assert chosen("two.parquet")["choices"][0]["implementation"] == "one_pass"


@pytest.mark.parametrize("name", ["part.jsonl", "part.parquet"])
def test_an_unfinished_run_is_read_with_a_note(name: str) -> None:
    write_journal(Path("part.jsonl"), NATIVE, planned=5)
    found = call("export", name, "--format", "csv")
    assert (found.exit_code, found.stdout.count("\n")) == (0, 2)
    assert "1 of its 5 cases" in found.stderr
    assert "1 of its 5 cases" in call("choose", name).stdout


def test_choosing_needs_no_torch() -> None:
    store(NATIVE, QUICK)
    code = (
        "import sys; from harness.cli import main; "
        "main(['choose', 'run.parquet'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --- export --------------------------------------------------------------------------------------


@pytest.fixture
def _exported() -> None:
    timed = make_record(make_case("native"), STEADY), make_record(make_case("two_pass"), (2.0,))
    store(*timed, failed(make_case(rows=1), Status.WRONG))


CHECKS: dict[str, Callable[[str], bool]] = {
    "csv": lambda text: len(list(csv.reader(text.splitlines()))) == 4,
    "junit": lambda text: ElementTree.fromstring(text.encode()).attrib["tests"] == "3",
    "summary": lambda text: "1 wrong, 2 ok" in text.splitlines()[0],
    "smaller-is-better": lambda text: {"name", "unit", "value"} <= set(json.loads(text)[0]),
    "bencher": lambda text: len(json.loads(text)) == 2,
    "markdown": lambda text: text.startswith("### "),
}


@pytest.mark.usefixtures("_exported")
@pytest.mark.parametrize("form", CHECKS)
def test_a_run_is_exported_to_standard_output_or_to_a_file(form: str) -> None:
    found = call("export", "run.parquet", "--format", form)
    assert (found.exit_code, found.stderr) == (0, "")
    assert CHECKS[form](found.stdout)
    out = Path("folder/out")
    for before in ("", "something longer\n" * 1000):  # a new file, then one to replace
        out.parent.mkdir(exist_ok=True)
        out.write_text(before)
        quiet = call("export", "run.parquet", "--format", form, "--out", str(out))
        assert (quiet.exit_code, quiet.output) == (0, "")
        assert out.read_text() == found.stdout


@pytest.mark.usefixtures("_exported")
def test_a_summary_is_appended_to_githubs_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(Path.cwd() / "summary.md"))
    Path("summary.md").write_text("built")
    call("export", "run.parquet", "--format", "summary", "--out", "summary.md")
    assert Path("summary.md").read_text().startswith("built\n## layernorm-bench: ")


@pytest.mark.usefixtures("_exported")
def test_a_figure_and_a_table_of_the_page_are_exported() -> None:
    names = call("export", "run.parquet", "--format", "svg", "--figure", "list").stdout.split()
    assert "latency-cpu-forward-float32" in names
    arguments = ("export", "run.parquet", "--figure", "latency-cpu-forward-float32", "--format")
    drawn = call(*arguments, "svg").stdout
    assert ElementTree.fromstring(drawn.encode()).tag.endswith("svg")
    assert "var(--" not in drawn  # a file of its own has no style sheet
    assert "two_pass" in drawn
    assert call(*arguments, "svg").stdout == drawn
    call(*arguments, "png", "--out", "picture.png")
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
    arguments = ("export", "run.parquet", "--format", "markdown")
    table = call(*arguments, "--figure", "speed-cpu-forward").stdout
    assert table.startswith("### Speed relative to native")
    assert "\n| native | float32 | 1.00" in table
    assert table in call(*arguments).stdout


# --- history -------------------------------------------------------------------------------------


CASE, SLOW, FAST = map(make_case, ("c_recentred", "two_pass", "one_pass"))


def test_a_change_is_printed_and_in_the_json() -> None:
    ratios = [0.7 + 0.001 * (number % 3) + 0.05 * (number >= 6) for number in range(12)]
    stored_history(Path("runs"), *runs_of(CASE, ratios))
    assert "1 of 1 series changed" in call("history", "runs").stdout
    (series,) = answer("history", "runs")["series"]
    assert [change["is_worse"] for change in series["changes"]] == [True]
    (series,) = answer("history", "runs", "--metric", "time")["series"]
    assert len(series["points"]) == 12


@pytest.fixture
def _several() -> None:
    """Five runs of three cases, every second one of the preset "full"."""
    runs = []
    for number in range(5):
        ratios = {CASE: 0.7, SLOW: 2.1, FAST: 0.4}
        records = [make_record(case, (ratio,)) for case, ratio in ratios.items()]
        made = results_of_commit(number, *records)
        command = f"layernorm-bench run --preset {'full' if number % 2 else 'ci'}"
        runs.append(replace(made, runs=(replace(made.runs[0], command=command),)))
    stored_history(Path("runs"), *runs)


@pytest.mark.usefixtures("_several")
@pytest.mark.parametrize(
    ("options", "runs", "cases"),
    [
        ("--run 'preset ci' --last 2", [2, 4], [CASE, FAST, SLOW]),
        ("--worst 2", range(5), [SLOW, CASE]),
        ("--worst 1", range(5), [SLOW]),
        ("--worst 9 --case one_pass", range(5), [FAST]),
    ],
)
def test_runs_and_the_worst_cases_of_the_last_run_are_chosen(
    options: str, runs: list[int], cases: list[Case]
) -> None:
    found = answer("history", "runs", *shlex.split(options))
    assert [run["file"] for run in found["runs"]] == [f"run{number:03}.parquet" for number in runs]
    assert [series["id"] for series in found["series"]] == [case.id for case in cases]


@pytest.mark.usefixtures("_several")
def test_too_many_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.regression.history._MOST_RECORDS", 14)
    assert "15 records of 5 runs are too many" in complaint("history", "runs")
    for options in (("--case", "one_pass"), ("--last", "3"), ("--worst", "3")):
        assert answer("history", "runs", *options)["series"]


# --- merge ---------------------------------------------------------------------------------------


SWEEP = (
    "-i", "native,two_pass", "--shape", "2x8,3x8", "--dtype", "float32,float64",
    "--measure", "errors",
)  # fmt: skip


def test_shards_become_one_file_that_a_run_continues() -> None:
    shards = [f"part{number}.parquet" for number in (1, 2, 3)]
    for number, shard in enumerate(shards, 1):
        options = ("--shard", f"{number}/3", "--out", shard, "--quiet")
        assert call("run", *SWEEP, *options).exit_code == 0
    outcome = answer("merge", shards[0], shards[2], "--out", "most.parquet")
    assert (outcome["missing"], outcome["unfinished"]) == (0, [])
    assert len(answer("run", *SWEEP, "--out", "most.parquet", "--resume")["cases"]) == 8
    # the cases of the second shard, measured again
    line = complaint("merge", "most.parquet", shards[1], "--out", "whole.parquet")
    assert "with different results" in line
    text = call("merge", *shards, "--out", "whole.parquet").stdout
    assert text == "results: whole.parquet, 8 cases in 1 environment\n"
    assert call("export", "whole.parquet", "--format", "csv").stdout.count("\n") == 9


def test_an_unfinished_shard_is_named() -> None:
    write_journal(Path("cut.jsonl"), *make_results(4).records, planned=6)
    found = call("merge", "cut.parquet", "--out", "new/whole.parquet")
    assert found.exit_code == 0
    assert "2 cases of 6 planned have no record" in found.stdout
    assert "(cut.jsonl); continue it" in found.stdout

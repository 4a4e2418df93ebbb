"""The command ``choose``: its output in each format, and its exit codes."""

import json
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from click.testing import Result
from factories.choice_records import SHAPE, failed, ran, results_of, with_latency
from factories.commanding import call, write_journal
from factories.golden import assert_golden

from harness.records import Estimate, Record, Status
from harness.store import write

GOLDEN = Path(__file__).parent / "golden"
NATIVE, QUICK = ran("native", 1.0), ran("one_pass", 0.5)
WORKLOAD = """
[[calls]]
shape = "64x768"
dtype = "float32"
direction = "forward"
count = 24
"""


def store(tmp_path: Path, *records: Record) -> Path:
    path = tmp_path / "run.parquet"
    write(results_of(records), path)
    return path


def choose(*arguments: object) -> Result:
    return call("choose", *map(str, arguments))


def strict_json(text: str) -> dict:
    return json.loads(text, parse_constant=pytest.fail)


def test_the_table_of_choices_and_the_prices(tmp_path: Path) -> None:
    records = [NATIVE, QUICK, ran("native", 1.0, shape=(8, 8)), ran("native", dtype="float64")]
    done = choose(store(tmp_path, *records))
    assert done.exit_code == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert_golden("\n".join(lines), GOLDEN / "choose.txt")


def test_markdown_is_a_table_for_a_pull_request(tmp_path: Path) -> None:
    hostile = ran("<b>a|b</b>", 4.0)
    path = store(tmp_path, NATIVE, QUICK, hostile, ran("native", 1.0, shape=(8, 8)))
    done = choose(path, "--format", "markdown")
    assert_golden(done.stdout.rstrip(), GOLDEN / "choose_markdown.txt")
    (tmp_path / "work.toml").write_text(WORKLOAD)
    of_workload = choose(path, "--workload", tmp_path / "work.toml", "--format", "markdown")
    assert "- one_pass: 2.00x" in of_workload.stdout


INACCURATE = replace(NATIVE, status=Status.INACCURATE, reason="y is 21.9 ulp off")
WRONG = replace(NATIVE, status=Status.WRONG, reason="y is off")


@pytest.mark.parametrize(
    ("code", "options", "records"),
    [
        (1, "", [WRONG]),
        (1, "--workload work.toml", [WRONG]),
        (1, "", [INACCURATE]),
        (0, "--accuracy inaccurate", [INACCURATE]),
        (1, "--accuracy inaccurate", [WRONG]),
        (2, "--accuracy wrong", [NATIVE]),
        (2, "--workload bad.toml", [NATIVE]),
        (3, "", []),
        (3, "", [failed("native", Status.CRASHED)]),
        (3, "", [ran("native")]),
        (4, "--dtype float16", [NATIVE]),
        (4, "--workload other.toml", [NATIVE]),
    ],
)
def test_the_exit_code_tells_why_there_is_no_choice(
    tmp_path: Path, code: int, options: str, records: list[Record]
) -> None:
    Path("work.toml").write_text(WORKLOAD)
    Path("bad.toml").write_text(WORKLOAD.replace("24", "-1"))
    Path("other.toml").write_text(WORKLOAD.replace("64x768", "7x7"))
    assert choose(store(tmp_path, *records), *options.split()).exit_code == code


def test_json_holds_every_candidate(tmp_path: Path) -> None:
    wrong = ran("welford", 0.1, status=Status.WRONG)
    done = choose(store(tmp_path, NATIVE, QUICK, wrong), "--format", "json")
    plain = strict_json(done.stdout)
    (choice,) = plain["choices"]
    assert (choice["shape"], choice["implementation"]) == (list(SHAPE), "one_pass")
    candidates = {candidate["implementation"]: candidate for candidate in choice["candidates"]}
    assert candidates.keys() == {"one_pass", "native", "welford"}
    assert candidates["one_pass"]["price"] is None
    assert candidates["welford"]["disqualified_because"] == "wrong"
    assert plain["complete"] is True


def test_json_holds_null_for_numbers_that_are_not_finite(tmp_path: Path) -> None:
    endless = Estimate(value=1.0, low=0.0, high=inf)
    native = with_latency(ran("native", 1.0, error_ulp=inf), per_call_s=endless)
    done = choose(store(tmp_path, native), "--format", "json")
    (candidate,) = strict_json(done.stdout)["choices"][0]["candidates"]
    assert candidate["time_s"]["high"] is None
    assert candidate["error_ulp"] is None


def test_filters_and_limits_reach_the_choice(tmp_path: Path) -> None:
    quick = ran("one_pass", 0.5, error_ulp=9.0, condition=50.0)
    path = store(tmp_path, NATIVE, quick, ran("native", 1.0, dtype="float64"))
    done = choose(path, "--dtype", "float32", "--max-error", 2, "--format", "json")
    (choice,) = strict_json(done.stdout)["choices"]
    assert choice["implementation"] == "native"
    limited = choose(path, "--shape", "64x768", "--device", "cpu", "--direction", "forward",
                   "--max-condition", 2, "--dtype", "float32", "--format", "json")  # fmt: skip
    assert strict_json(limited.stdout)["choices"][0]["implementation"] == "native"


def test_the_journal_of_a_run_that_was_interrupted_can_be_chosen_from(tmp_path: Path) -> None:
    write_journal(tmp_path / "run.jsonl", NATIVE, planned=9)
    done = choose(tmp_path / "run.jsonl")
    assert done.exit_code == 0
    assert "1 of its 9 cases" in done.stdout


def test_two_runs_are_chosen_from_together(tmp_path: Path) -> None:
    write(results_of([NATIVE]), tmp_path / "one.parquet")
    write(results_of([QUICK]), tmp_path / "two.parquet")
    done = choose(tmp_path / "one.parquet", tmp_path / "two.parquet", "--format", "json")
    assert strict_json(done.stdout)["choices"][0]["implementation"] == "one_pass"


def test_a_workload_has_one_choice_for_all_calls(tmp_path: Path) -> None:
    (tmp_path / "work.toml").write_text(WORKLOAD + WORKLOAD.replace("64x768", "7x7"))
    path = store(tmp_path, NATIVE, QUICK)
    done = choose(path, "--workload", tmp_path / "work.toml")
    assert done.exit_code == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert_golden("\n".join(lines), GOLDEN / "choose_workload.txt")
    plain = choose(path, "--workload", tmp_path / "work.toml", "--format", "json")
    (choice,) = strict_json(plain.stdout)["workload"]
    assert choice["implementation"] == "one_pass"
    assert (choice["calls"], choice["calls_covered"]) == (48, 24)
    assert choice["missing"][0]["shape"] == [7, 7]


def test_choosing_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from harness.cli.results import choose; "
        "choose(sys.argv[1:], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    path = store(tmp_path, NATIVE, QUICK)
    subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True)

"""Command lines with their output and exit code, as in the golden files, which hold both.

A command is added to a golden file as a line ``$ layernorm-bench ...``; ``WRITE_GOLDEN=1 pytest
tests/cli/test_transcripts.py`` writes what it prints below it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from factories.checked_runs import BASELINE, ONE, run_of
from factories.choice_records import ran, with_latency
from factories.commanding import IS_RECENT, call, complaint, write_journal
from factories.compared_runs import STEADY, elsewhere, failed, make_case, make_record, results_of
from factories.fake_device import LocalFleet
from factories.golden import assert_golden
from factories.histories import results_of_commit, runs_of, stored_history

from harness.records import Direction, Estimate, Record, Status, install_extra
from harness.store import write

PROMPT = "$ layernorm-bench "
GOOD = make_record(make_case("native"), STEADY)
NATIVE, QUICK = ran("native", 1.0), ran("one_pass", 0.5)
FAR: dict[str, Any] = {"condition": 50.0, "distribution": "uniform"}
OFF = make_record(ONE, STEADY, status=Status.WRONG, reason="y is 99 ulp off")
RUNS: dict[str, Sequence[Record]] = {
    "good": [GOOD],
    "empty": [],
    "failures": [failed(GOOD.case), failed(make_case(rows=1), Status.CRASHED)],
    "untimed": [make_record(make_case(rows=8))],
    "twice": [GOOD, replace(GOOD, status=Status.WRONG)],
    "one_process": [make_record(GOOD.case, (1.5,))],
    "exported": [
        GOOD,
        make_record(make_case("two_pass"), (2.0,)),
        failed(make_case(rows=1), Status.WRONG),
    ],
    # to choose from
    "native": [NATIVE],
    "quick": [QUICK],
    "wrong": [replace(NATIVE, status=Status.WRONG, reason="y is off")],
    "inaccurate": [replace(NATIVE, status=Status.INACCURATE, reason="y is 21.9 ulp off")],
    "invalid": [ran("native", 0.1, is_valid=False), ran("native", shape=(8, 8))],
    "two_scenarios": [ran("native", 1.0, shape=(7, 7), threads=number) for number in (1, 4)],
    "endless": [
        with_latency(
            ran("native", 1.0, error_ulp=inf), per_call_s=Estimate(value=1.0, low=0.0, high=inf)
        )
    ],
    "choices": [
        *(NATIVE, QUICK, ran("<b>a|b</b>", 4.0), ran("welford", 0.1, status=Status.WRONG)),
        *(ran("native", 1.0, shape=(8, 8)), ran("native", dtype="float64")),
    ],
    "limits": [
        *(NATIVE, ran("native", **FAR), ran("native", 1.0, shape=(8, 8))),
        *(ran("one_pass", 0.5, error_ulp=9.0), ran("one_pass", **FAR)),
        *(ran("two_pass", 0.2), ran("two_pass", status=Status.WRONG, **FAR)),
    ],
    "hostile": [ran("a.py:f'); raise SystemExit('", 1.0), ran("native", 1.0, shape=(8, 8))],
    "training": [NATIVE, ran("one_pass", 0.5, direction=Direction.FORWARD_BACKWARD)],
    # to compare
    "base": BASELINE.records,
    "suspect": run_of(1.0, 1.2, 1.0).records,
    "wrong_now": [OFF, *run_of(1.0, 1.5, 1.0).records[1:]],
    "base_elsewhere": [*map(elsewhere, BASELINE.records)],
    "suspect_elsewhere": [*map(elsewhere, run_of(1.0, 1.2, 1.0).records)],
    "wrong_elsewhere": [*map(elsewhere, (OFF, *run_of(1.0, 1.0).records[1:]))],
    "slower": [make_record(ONE, [1.2] * 5)],
    "five": [make_record(ONE, STEADY[:5])],
    "four": [make_record(ONE, STEADY[:4])],
    "steady": [make_record(GOOD.case, (1.005,))],
    "elsewhere": [elsewhere(make_record(GOOD.case, (2.0,)))],
}
CALLS = '[[calls]]\nshape = "7x7"\ndtype = "float32"\ndirection = "forward"\n'
TEXTS = {
    "file": "no folder",
    "mine.py": "def my_norm(x): ...\n\n\nclass Mine: ...\n",
    "junk.parquet": "junk",
    **{"empty.json": "", "list.json": "[]", "deep.json": "[" * 99999},
    "number.json": '{"benchmarks": 3, "machine_info": {}}',
    "bad.toml": '[[grids]]\nshapes = ["4xx"]\nseeds = []\nshape = ["4x4"]\n',
    "names.toml": '[[grids]]\nlayouts = ["contigous"]\nimplementations = ["nativ"]\n',
    "no_grids.toml": "timeout_s = 5.0\n",
    "no_toml.toml": "description = 'a'\n\nmin_epochs = = 3\n",
    "no_calls.toml": "calls = []\n",
    "calls.toml": CALLS,
    "typo.toml": f"{CALLS}cuont = 24\n",
    "count.toml": f"{CALLS}count = -1\n",
    "work.toml": CALLS + CALLS.replace("7x7", "64x768") + "count = 24\n",
}


@pytest.fixture
def _files() -> None:
    """Results of every kind, histories, sweeps with mistakes, and what stands in a file's way."""
    for name, records in RUNS.items():
        write(results_of(*records), Path(f"{name}.parquet"))
    for name, text in TEXTS.items():
        Path(name).write_text(text)
    write_journal(Path("cut.jsonl"), GOOD, planned=3)
    Path("linked").symlink_to("good.parquet")
    Path("folder.html").mkdir()
    stored_history(Path("runs"), *runs_of(GOOD.case, STEADY))
    stored_history(Path("short"), *runs_of(GOOD.case, STEADY[:4]))
    ratios = [0.7 + 0.001 * (number % 3) + 0.05 * (number >= 6) for number in range(12)]
    stored_history(Path("changed"), *runs_of(make_case("c_recentred"), ratios))
    by_name = {"c_recentred": 0.7, "two_pass": 2.1, "one_pass": 0.4}
    records = [make_record(make_case(name), (ratio,)) for name, ratio in by_name.items()]
    for number, preset in enumerate(("ci", "full", "ci", "full", "ci")):
        command = f"layernorm-bench run --preset {preset}"
        stored_history(Path("several"), results_of_commit(number, *records, command=command))


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def without_lists(line: str) -> str:
    """Return the line without names that exist and words of pyarrow and Python: they change."""
    return re.split(r"; known: | \(or give|(?<=damaged): |(?<=FILE` writes): ", line)[0].rstrip()


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("name", ["refused", "choose", "compare", "history", "export", "dry_run"])
def test_commands_print_what_is_in_the_golden_file(name: str, fleet: LocalFleet) -> None:
    lines, before = [], contents()
    text = Path(__file__).with_name("golden").joinpath(f"{name}.txt").read_text()
    commands = [line for line in text.splitlines() if line.startswith(PROMPT)]
    assert len(commands) > 5
    stream = "" if name == "refused" else "standard error: "
    for command in commands:
        found = call(*shlex.split(command.removeprefix(PROMPT)))
        lines += [command, *found.stdout.splitlines()]
        lines += [f"{stream}{line}" for line in found.stderr.splitlines()]
        lines += [f"exit code {found.exit_code}"] if found.exit_code else []
        if name == "refused":  # in one line for each mistake
            assert (found.stdout, found.exit_code in {2, 3, 4}) == ("", True), command
            mistakes = found.stderr.splitlines()
            assert len(mistakes) == (3 if command.endswith(" --sweep bad.toml") else 1), command
            assert all(line.startswith("layernorm-bench: ") for line in mistakes)
    assert fleet.started == []
    after = contents()
    after.pop("out.xml", None)  # emptied before anything is compared
    assert after == before
    if IS_RECENT:  # earlier versions of click word some messages differently
        assert_golden("\n".join(map(without_lists, lines)), __file__, f"{name}.txt")


def test_where_ray_is_not_installed_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    monkeypatch.delitem(sys.modules, "harness.run.ray_fleet", raising=False)
    line = complaint("run", "-i", "native", "--out", "mine.parquet", "--on", "ray")
    assert line == f"--on ray needs the extra ray: {install_extra('ray')}"
    assert not Path("mine.jsonl").exists()

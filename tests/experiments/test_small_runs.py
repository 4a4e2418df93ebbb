"""Experiments in short: planted changes, histories, and calls that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import cycle
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from factories.stored import RESULTS
from faults import inject
from history.detection import CONDITIONS, EFFECTS, IN_USE, RUNS, simulate

from harness.store import write

IMPLEMENTATIONS = ("native", "one_pass", "two_pass", "welford_chunked")
GATES = Path(__file__).parents[2] / "experiments" / "gates"


@pytest.fixture(scope="module")
def gates() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GATES)
        yield import_module("live_gates")


@pytest.fixture(scope="module")
def repository(gates: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    sweep = ("--shape", "8x64", "--measure", "errors", "--measure", "memory")
    return gates.Repository(tmp_path_factory.mktemp("repository"), sweep)


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ("nothing", "unchanged"),
        ("bfloat16 statistics", "regressed"),
        ("extra copy", "regressed"),
    ],
)
def test_ab_fails_for_planted_changes_only(repository: Any, planted: str, kind: str) -> None:
    repository.plant(planted)
    answer = repository.run()
    unchanged = {f"subjects.py:{name}": "unchanged" for name in IMPLEMENTATIONS}
    found = {change["case"]["implementation"]: change["kind"] for change in answer["changes"]}
    assert found == unchanged | {"subjects.py:two_pass": kind}
    assert answer["failed"] is (kind == "regressed")


# === The experiment on histories: what its rows count


def test_large_changes_are_found_and_rows_are_complete() -> None:
    rows = [row for row in simulate(repeats=3, of_others=1) if row.detector == IN_USE]
    assert len(rows) == len(RUNS) * len(CONDITIONS) * len(EFFECTS)
    steady = [row for row in rows if row.condition == "1 %" and row.runs == 60]
    assert [row.found for row in steady if row.effect == 0.1] == [3]
    assert all(row.found == 0 for row in rows if not row.effect)


# === One call of each kind that fails in `merge`; all calls of all commands are an experiment

CALLED = {"openat", "write", "fsync", "ftruncate", "rename"}
MERGE = next(command for command in inject.COMMANDS if command.name == "merge")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The folder in which two shards are merged."""
    folder = tmp_path / "shards"
    folder.mkdir()
    first, second = (replace(RESULTS, records=(record,)) for record in RESULTS.records)
    write(first, folder / "a.parquet")
    inject.write_journal(second, folder / "b.jsonl")
    return folder


@pytest.mark.skipif(not inject.can_trace(), reason="strace is not installed, or cannot trace here")
def test_a_call_that_fails_in_a_merge_loses_nothing(shards: Path) -> None:
    whole = copytree(shards, shards.with_name("whole"))
    calls = {call.kind: call for call in inject.calls_of(MERGE, whole)}
    assert calls.keys() == CALLED
    for call, fault in zip(calls.values(), cycle(["EIO", "KILL"]), strict=False):
        row = inject.trial(MERGE, shards, whole, call, fault, set())
        assert (row.lost, row.torn, row.is_badly_told) == ("", "", False), row
        assert row.is_killed is (fault == "KILL")


def test_a_file_that_is_lost_or_torn_is_found(shards: Path) -> None:
    after = copytree(shards, shards.with_name("after"))
    before = inject.contents(shards)
    assert inject.torn_in(before, after, shards) == inject.lost_in(MERGE, shards, after, "") == ""
    said = "[1/1] ok               native/forward/4x8/float32/normal  1 ulp\n"
    assert inject.lost_in(MERGE, shards, after, said) == "native/forward/4x8/float32/normal"
    (after / "b.jsonl").write_bytes(before["b.jsonl"] * 2)
    assert inject.lost_in(MERGE, shards, after, "") == "b.jsonl"
    (after / "a.parquet").write_bytes(before["a.parquet"][:-9])
    assert "a.parquet: not a readable" in inject.torn_in(before, after, shards)

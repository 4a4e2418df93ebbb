"""Files of several runs become one; what disagrees is refused and named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from factories.results_factory import make_environment, make_record, make_results, make_run

from harness.records import Environment, Record
from harness.records.refusal import NotMeasuredError
from harness.store import Journal, Merged, Results, StoreError, merge, read, read_journal, write

RUN = make_run(name="whole", command="layernorm-bench merge", planned=0)
HERE = make_environment(git_dirty=False)
ALL = tuple(make_record(record.case, HERE) for record in make_results(9).records)


def shard(
    number: int | str,
    records: Sequence[Record],
    *,
    missing: int = 0,
    environment: Environment = HERE,
) -> Results:
    """Return the results of a shard that planned ``missing`` more cases than it has."""
    run = make_run(
        name=f"part{number}" if isinstance(number, int) else number,
        planned=len(records) + missing,
        command=f"layernorm-bench run --shard {number}/3",
        environment=environment.fingerprint,
        wall_s=None if missing else 10.0,
    )
    here = environment.fingerprint
    return Results(
        records=tuple(replace(record, environment=here) for record in records),
        runs=(run,),
        environments={here: environment},
    )


def stored(folder: Path, results: Results, name: str = "") -> Path:
    path = folder / f"{name or results.runs[0].name}.parquet"
    path.parent.mkdir(exist_ok=True)
    write(results, path)
    return path


def journalled(folder: Path, results: Results) -> Path:
    path = folder / f"{results.runs[0].name}.jsonl"
    with Journal(path) as journal:
        for entry in (*results.runs, *results.environments.values(), *results.records):
            journal.add(entry)
    return path


def merged(paths: Sequence[Path], out: Path) -> tuple[Merged, Results]:
    found = merge(paths, RUN, out)
    return found, read(out)


def ids(records: Sequence[Record]) -> set[str]:
    return {record.case.id for record in records}


def test_the_shards_of_a_sweep_become_a_file_like_that_of_one_run(tmp_path: Path) -> None:
    parts = [stored(tmp_path, shard(n, ALL[n::3])) for n in range(3)]
    found, results = merged(parts, tmp_path / "whole.parquet")
    assert (found.records, found.planned, found.duplicates, found.unfinished) == (9, 9, 0, ())
    assert sorted(results.records, key=repr) == sorted(ALL, key=repr)
    assert results.environments == {HERE.fingerprint: HERE}
    last = results.runs[-1]
    assert results.why_unfinished is None
    assert (last.planned, last.wall_s, last.environment) == (9, 30.0, HERE.fingerprint)
    assert (last.git_commit, last.git_dirty) == (HERE.git_commit, False)
    assert [run.name for run in results.runs] == ["part0", "part1", "part2", "whole"]


def test_the_journal_of_an_unfinished_shard_counts_what_is_missing(tmp_path: Path) -> None:
    parts = [
        stored(tmp_path, shard(0, ALL[:4])),
        journalled(tmp_path, shard(1, ALL[4:6], missing=3)),
    ]
    with parts[1].open("ab") as torn:
        torn.write(b'{"Record": {"case": {"impl')
    found, results = merged(parts, tmp_path / "whole.parquet")
    assert (found.records, found.planned, found.unfinished) == (6, 9, (parts[1],))
    assert results.why_unfinished == "6 of its 9 cases are there"


def test_identical_records_are_kept_once(tmp_path: Path) -> None:
    whole = shard(0, ALL)
    paths = [
        journalled(tmp_path, replace(whole, runs=(replace(whole.runs[0], wall_s=None),))),
        stored(tmp_path, whole),
        stored(tmp_path, whole, "copy"),
    ]
    found, results = merged(paths, tmp_path / "whole.parquet")
    assert (found.records, found.planned, found.duplicates) == (9, 9, 18)
    assert results.records == ALL
    assert [run.wall_s for run in results.runs] == [10.0, 10.0]


def test_a_merged_file_can_be_merged_again(tmp_path: Path) -> None:
    parts = [stored(tmp_path, shard(n, ALL[n::3], missing=n == 2)) for n in range(3)]
    merge(parts[:2], RUN, tmp_path / "two.parquet")
    found, results = merged([tmp_path / "two.parquet", *parts], tmp_path / "whole.parquet")
    assert (found.records, found.planned, found.duplicates) == (9, 10, 6)
    assert len(ids(results.records)) == 9


LATER = replace(HERE, git_commit="f" * 40, git_dirty=True)


@pytest.mark.parametrize(
    ("parts", "error", "fact"),
    [
        (
            (shard(0, ALL[:3]), shard(1, [replace(ALL[0], reason="measured again"), *ALL[3:]])),
            StoreError,
            "measured twice in one environment, with different results: 1 case in part0.parquet "
            "and part1.parquet; leave out one file of each pair",
        ),
        (
            (shard(0, ALL[:3]), shard(1, ALL[3:], environment=LATER)),
            StoreError,
            "part0.parquet is of 0123456789ab and part1.parquet of ffffffffffff with changes, in "
            f"one environment ({HERE.fingerprint})",
        ),
        ((shard(0, ()),), NotMeasuredError, "the files hold no record: nothing was measured"),
        ((shard(0, ALL), shard("whole", ALL)), StoreError, "whole.parquet exists; choose another"),
    ],
    ids=["two results of a case", "two revisions", "no record", "an existing file"],
)
def test_what_disagrees_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: Sequence[Results],
    error: type[Exception],
    fact: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [stored(Path(), part) for part in parts]
    with pytest.raises(error) as caught:
        merge(paths, RUN, Path("whole.parquet"))
    assert str(caught.value).startswith(fact)
    assert {*Path().iterdir()} == {*paths}


def test_a_case_may_have_a_record_in_each_environment(tmp_path: Path) -> None:
    there = make_environment(cpu="Another CPU")
    paths = [
        stored(tmp_path, shard(0, ALL[:3])),
        stored(tmp_path, shard(1, ALL[:3], environment=there)),
    ]
    found, results = merged(paths, tmp_path / "whole.parquet")
    assert (found.records, found.planned, found.environments) == (6, 6, 2)
    assert results.runs[-1].environment is None
    assert {record.environment for record in results.records} == {
        HERE.fingerprint,
        there.fingerprint,
    }


def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    parts = [stored(tmp_path, shard(n, ALL[n::3])) for n in range(3)]
    content = bytearray(parts[1].read_bytes())
    content[300] ^= 1  # in the first pages
    parts[1].write_bytes(content)
    with pytest.raises(StoreError, match=str(parts[1])):
        merge(parts, RUN, tmp_path / "whole.parquet")
    assert not list(tmp_path.glob("whole*"))


def test_the_last_entry_of_a_journal_counts(tmp_path: Path) -> None:
    earlier = replace(ALL[0], reason="first attempt")
    path = journalled(tmp_path, shard(0, [earlier, *ALL]))
    _, results = merged([path], tmp_path / "whole.parquet")
    assert sorted(map(repr, results.records)) == sorted(map(repr, read_journal(path).records))


def test_a_number_without_a_fraction_is_the_same_in_both_formats(tmp_path: Path) -> None:
    # JSON keeps 1, parquet reads 1.0
    assert ALL[0].cost is not None
    whole = shard(0, [replace(ALL[0], cost=replace(ALL[0].cost, total_s=1))])
    paths = [journalled(tmp_path, whole), stored(tmp_path, whole)]
    assert '"total_s": 1,' in json.dumps(json.loads(paths[0].read_text().splitlines()[-1]))
    found, _ = merged(paths, tmp_path / "whole.parquet")
    assert found.duplicates == 1

"""Files of several runs become one; what disagrees is refused and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from factories.results_factory import make_environment, make_record, make_results, make_run
from factories.stored import journalled

from harness.records import Environment, Record
from harness.store import Results, merge, read, write

RUN = make_run(name="whole", command="layernorm-bench merge", planned=0)
HERE = make_environment(git_dirty=False)
THERE = make_environment(cpu="Another CPU", git_dirty=False)
ALL = tuple(make_record(record.case, HERE) for record in make_results(9).records)
OUT = Path("whole.parquet")


pytestmark = pytest.mark.usefixtures("folder")


def shard(
    number: int, records: Sequence[Record], missing: int = 0, environment: Environment = HERE
) -> Results:
    """Return the results of a shard that planned ``missing`` more cases than it has."""
    here = environment.fingerprint
    run = make_run(
        name=f"part{number}",
        planned=len(records) + missing,
        command=f"layernorm-bench run --shard {number}/3",
        environment=here,
        wall_s=None if missing else 10.0,
    )
    return Results(
        records=tuple(replace(record, environment=here) for record in records),
        runs=(run,),
        environments={here: environment},
    )


def stored(files: dict[str, Results]) -> list[Path]:
    """Write results files and journals, by name."""
    for name, results in files.items():
        if name.endswith(".parquet"):
            write(results, Path(name))
        else:
            entries = (*results.runs, *results.environments.values(), *results.records)
            journalled(Path(name), *entries)
    return [*map(Path, files)]


SHARDS: dict[str, Results] = {
    f"{number}.parquet": shard(number, ALL[number::3]) for number in range(3)
}
WHOLE = shard(0, ALL)
UNENDED = replace(WHOLE, runs=(replace(WHOLE.runs[0], wall_s=None),))
assert ALL[0].cost is not None
OF_1_S = shard(0, [replace(ALL[0], cost=replace(ALL[0].cost, total_s=1))])


@pytest.mark.parametrize(
    ("files", "counts", "kept", "unfinished"),
    [
        (SHARDS, (9, 9, 0, 1), ALL, ()),
        (
            {"0.parquet": shard(0, ALL[:4]), "1.jsonl": shard(1, ALL[4:6], missing=3)},
            *((6, 9, 0, 1), ALL[:6], (Path("1.jsonl"),)),
        ),
        # identical records are kept once
        (
            {"0.jsonl": UNENDED, "1.parquet": WHOLE, "2.parquet": WHOLE},
            *((9, 9, 18, 1), ALL, (Path("0.jsonl"),)),
        ),
        # JSON keeps 1 for a number without a fraction, parquet reads 1.0
        ({"0.jsonl": OF_1_S, "1.parquet": OF_1_S}, (1, 1, 1, 1), OF_1_S.records, ()),
        # a case may have a record in each environment
        (
            {"0.parquet": shard(0, ALL[:3]), "1.parquet": shard(1, ALL[:3], 0, THERE)},
            *((6, 6, 0, 2), (*ALL[:3], *shard(1, ALL[:3], 0, THERE).records), ()),
        ),
    ],
)
def test_the_records_of_several_files_are_kept_once(
    files: dict[str, Results],
    counts: tuple[int, int, int, int],
    kept: Sequence[Record],
    unfinished: tuple[Path, ...],
) -> None:
    found = merge(stored(files), RUN, OUT)
    assert (found.records, found.planned, found.duplicates, found.environments) == counts
    assert found.unfinished == unfinished
    results = read(OUT)
    assert set(results.records) == set(kept)
    assert len(results.records) == len(kept)


def test_shards_become_a_file_like_that_of_one_run() -> None:
    merge(stored(SHARDS), RUN, OUT)
    results = read(OUT)
    assert results.environments == {HERE.fingerprint: HERE}
    assert results.why_unfinished is None
    last = results.runs[-1]
    assert (last.planned, last.wall_s, last.environment) == (9, 30.0, HERE.fingerprint)
    assert last.git_commit == HERE.git_commit


def test_the_end_of_a_run_is_taken_from_the_file_that_has_it() -> None:
    later = shard(1, ALL[:3], 1, replace(THERE, git_commit="f" * 40))
    merge(stored({"0.jsonl": UNENDED, "1.parquet": WHOLE, "2.parquet": later}), RUN, OUT)
    results = read(OUT)
    assert [run.wall_s for run in results.runs] == [10.0, None, 10.0]
    assert results.why_unfinished == "12 of its 13 cases are there"
    assert results.runs[-1].environment is None


def test_a_merged_file_can_be_merged_again() -> None:
    parts = stored(SHARDS | {"2.parquet": shard(2, ALL[2::3], missing=1)})
    merge(parts[:2], RUN, Path("two.parquet"))
    found = merge([Path("two.parquet"), *parts], RUN, OUT)
    assert (found.records, found.planned, found.duplicates) == (9, 10, 6)


LATER = replace(HERE, git_commit="f" * 40, git_dirty=True)

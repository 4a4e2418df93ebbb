"""Many small files become few; killed at any moment, each run is read once."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from full_disk import full_disk_after
from results_factory import make_environment, make_record, make_results, make_run
from stored import FULL, same

from harness.records import Case, Record
from harness.store import (
    Journal,
    Results,
    StoreError,
    compact,
    read,
    read_runs,
    scan_folder,
    scan_runs,
    stored_runs,
    write,
)

HERE = make_environment()
RUNS = 5
_FULL = replace(FULL, environment=HERE.fingerprint)


def results_of(number: int) -> Results:
    made = make_results(4).records
    cases = [replace(record.case, seed=number * (place == 3)) for place, record in enumerate(made)]
    return Results(
        records=(*(make_record(case, HERE) for case in cases), _FULL),
        runs=(make_run(name=f"run{number}", planned=5, environment=HERE.fingerprint),),
        environments={HERE.fingerprint: HERE},
    )


ALL = {f"run{number}.parquet": results_of(number) for number in range(RUNS)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "history"
    path.mkdir()
    for name, results in ALL.items():
        write(results, path / name)
    return path


def held(folder: Path) -> list[tuple[str, tuple[Record, ...]]]:
    """Return the name and the records of each run that a reader finds."""
    runs, errors = stored_runs(folder)
    records, unread = read_runs(runs, samples=True)
    assert (errors, unread) == ([], [])
    return sorted((run.path.name, records[run.path]) for run in runs)


def is_whole(folder: Path) -> bool:
    wanted = [(name, results.records) for name, results in sorted(ALL.items())]
    return same(held(folder), wanted)


def test_a_compacted_folder_holds_the_same_runs(folder: Path) -> None:
    before, _ = stored_runs(folder)
    done = compact(folder)
    assert (done.runs, done.records, done.files_before, done.files_after) == (
        RUNS,
        5 * RUNS,
        RUNS,
        1,
    )
    (file,) = folder.iterdir()
    assert is_whole(folder)
    after, _ = stored_runs(folder)
    assert [run.path for run in after] == [run.path for run in before]
    assert [(run.runs, run.environments) for run in after] == [
        (run.runs, run.environments) for run in before
    ]
    assert {run.file for run in after} == {file}


def test_a_compacted_file_is_compacted_again_with_new_ones(folder: Path) -> None:
    later = {name: folder / name for name in list(ALL)[3:]}
    for path in later.values():
        path.unlink()
    compact(folder)
    for name, path in later.items():
        write(ALL[name], path)
    assert is_whole(folder)
    assert compact(folder).files_before == 3
    assert compact(folder).files_after == 0
    assert len(list(folder.iterdir())) == 1
    assert is_whole(folder)


def test_files_that_a_killed_compaction_has_left_are_not_read_twice(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "old")
    compact(folder)
    shutil.copytree(tmp_path / "old", folder, dirs_exist_ok=True)
    (folder / "compacted-0123.parquet.partial").write_bytes(b"PAR1")
    assert is_whole(folder)
    assert compact(folder).files_after == 0
    assert len(list(folder.iterdir())) == 1
    assert is_whole(folder)


def test_a_run_that_two_compacted_files_hold_counts_once(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "old")
    (tmp_path / "old" / "run0.parquet").unlink()
    for path in (folder, tmp_path / "old"):  # as two processes do where nothing can be locked
        compact(path)
    shutil.copytree(tmp_path / "old", folder, dirs_exist_ok=True)
    assert len(list(folder.iterdir())) == 2
    assert is_whole(folder)
    assert compact(folder).runs == RUNS
    assert is_whole(folder)


def test_another_file_of_a_former_name_is_a_run_of_its_own(folder: Path) -> None:
    compact(folder)
    write(results_of(77), folder / "run0.parquet")
    assert Counter(name for name, _ in held(folder))["run0.parquet"] == 2


# loads the store once, then compacts each folder in a process that is killed after its delay
KILLED = """
import os, signal, sys, time
from pathlib import Path
from harness.store import compact, prepare
prepare()
for argument in sys.argv[1:]:
    folder, delay = argument.rsplit("@", 1)
    child = os.fork()
    if not child:
        compact(Path(folder))
        os._exit(0)
    time.sleep(float(delay))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_a_compaction_that_is_killed_at_any_moment_loses_nothing_and_counts_nothing_twice(
    folder: Path, tmp_path: Path
) -> None:
    draw = random.Random(18)
    delays = [draw.uniform(0, 0.12) for _ in range(30)]
    copies = [tmp_path / f"copy{place}" for place in range(len(delays))]
    for copy in copies:
        shutil.copytree(folder, copy)
    arguments = [f"{copy}@{delay}" for copy, delay in zip(copies, delays, strict=True)]
    subprocess.run([sys.executable, "-c", KILLED, *arguments], check=True)
    for copy in copies:
        assert is_whole(copy)
    for copy in copies[::6]:
        compact(copy)
        assert len(list(copy.iterdir())) == 1
        assert is_whole(copy)


@pytest.mark.parametrize("room", [0, 5000, 30_000])
def test_a_full_disk_leaves_the_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    full_disk_after(monkeypatch, room)
    with pytest.raises(StoreError, match="No space left"):
        compact(folder)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_files_that_cannot_be_removed_are_not_read_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(StoreError, match=r"run0\.parquet: cannot be removed: Read-only"):
        compact(folder)
    monkeypatch.undo()
    assert is_whole(folder)


def test_where_nothing_can_be_written_the_old_files_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "replace", read_only)
    with pytest.raises(StoreError, match="cannot be written: Read-only file system"):
        compact(folder)
    monkeypatch.undo()
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)


def test_a_damaged_file_is_named_and_nothing_is_removed(folder: Path) -> None:
    content = bytearray((folder / "run2.parquet").read_bytes())
    content[300] ^= 1
    (folder / "run2.parquet").write_bytes(content)
    with pytest.raises(StoreError, match=r"run2\.parquet"):
        compact(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)


def test_what_is_no_results_file_or_is_being_written_is_left(folder: Path) -> None:
    (folder / "junk.parquet").write_bytes(b"junk")
    with Journal(folder / "run1.jsonl"):
        done = compact(folder)
    assert done.files_before == RUNS - 1
    assert [why.partition(":")[0].rpartition("/")[2] for why in done.left_out] == [
        "junk.parquet",
        "run1.parquet",
    ]


def test_a_folder_is_compacted_by_one_process_at_a_time(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match="another run is writing it"):
        compact(folder)
    os.close(descriptor)


def test_a_compacted_file_is_no_results_file(folder: Path) -> None:
    compact(folder)
    (file,) = folder.iterdir()
    with pytest.raises(StoreError, match="holds 5 runs, made by `compact`; give its folder to"):
        read(file)


COLUMNS = ("reason", "errors", "memory")
_FULL_READ = replace(_FULL, latency=None, warnings=(), cost=None)  # without the other columns


def in_two_passes(folder: Path, case: Case) -> tuple[Any, list[StoreError]]:
    runs, errors = stored_runs(folder)
    found, unread = scan_runs(runs, COLUMNS, lambda own: own == case)
    return found, [*errors, *unread]


def in_one_pass(folder: Path, case: Case) -> tuple[Any, list[StoreError]]:
    _, found, errors = scan_folder(folder, COLUMNS, lambda own: own == case, lambda run: True)
    return found, errors


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_flipped_bit_is_named_and_never_averaged(folder: Path, is_compacted: bool) -> None:
    if is_compacted:
        compact(folder)
    file = min(folder.iterdir())
    whole = file.read_bytes()
    case = _FULL.case
    footer = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    assert footer > 10_000
    refused = 0
    for position, scan in zip(range(4, footer, 293), cycle((in_one_pass, in_two_passes))):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        found, errors = scan(folder, case)
        for error in errors:
            assert str(file) in str(error)
            refused += 1
        for records in found.values():
            assert same(list(records), [_FULL_READ]), position
    assert refused


def test_a_flipped_bit_in_cases_that_another_file_has_too_is_named(tmp_path: Path) -> None:
    write(results_of(0), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    column = next(
        group.column(place)
        for place in range(group.num_columns)
        if group.column(place).path_in_schema == "case.seed"
    )
    first = column.dictionary_page_offset
    for position in range(first, first + column.total_compressed_size, 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        (tmp_path / "b.parquet").write_bytes(damaged)
        found, errors = in_two_passes(tmp_path, _FULL.case)
        assert all(same(list(records), [_FULL_READ]) for records in found.values())
        assert tmp_path / "a.parquet" in found
        assert len(errors) == 1 - (tmp_path / "b.parquet" in found)
        assert all("b.parquet" in str(error) for error in errors)

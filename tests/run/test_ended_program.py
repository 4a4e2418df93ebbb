"""The whole program, ended from outside: which records it keeps, and how it is continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from factories.sessions import ROWS, calls, rows

from harness.store import read, read_journal


def command(subjects: Path, *more: str) -> list[str]:
    shapes = ",".join(f"{rows}x8" for rows in ROWS)
    program = "import sys; from harness.cli import main; sys.exit(main())"
    return [
        *(sys.executable, "-c", program, "run", "--shape", shapes, "--measure", "errors"),
        *("-i", f"{subjects}:waits"),
        *("--out", str(subjects.with_name("mine.parquet")), *more),
    ]


@pytest.fixture
def waiting(subjects: Path) -> Iterator[subprocess.Popen[str]]:
    """A run with two cases in its journal, which waits in its third."""
    with subprocess.Popen(
        command(subjects),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that Ctrl-C reaches all of it, and nothing else
        # a shell that runs the tests in the background has them ignore the interrupt
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        path, patience = subjects.with_name("mine.jsonl"), monotonic() + 60
        while not path.exists() or path.read_bytes().count(b'{"Record"') < 2:
            assert process.poll() is None, process.communicate()
            assert monotonic() < patience
            sleep(0.02)
        try:
            yield process
        finally:
            subjects.with_name("go").touch()  # nothing is left waiting, whatever became of it
            process.kill()


def finish(subjects: Path) -> dict[str, Any]:
    done = subprocess.run(
        command(subjects, "--resume", "--json"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_that_is_killed_is_continued_with_every_case_once(
    waiting: subprocess.Popen[str], subjects: Path
) -> None:
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait()
    path = subjects.with_name("mine.jsonl")
    kept = read_journal(path)
    assert rows(kept.records) == [1, 2]
    assert kept.runs[0].wall_s is None
    subjects.with_name("go").touch()
    found = finish(subjects)
    ids = [case["id"] for case in found["cases"]]
    assert len(set(ids)) == len(ids) == 5
    assert {case["status"] for case in found["cases"]} == {"ok"}
    assert (calls(subjects).count(1), calls(subjects).count(2)) == (1, 1)
    assert rows(read(subjects.with_name("mine.parquet")).records) == list(ROWS)
    assert not path.exists()


# a batch system sends SIGTERM, to the workers too, before it kills
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_records_and_says_how_to_continue(
    waiting: subprocess.Popen[str], subjects: Path, sent: signal.Signals
) -> None:
    os.killpg(waiting.pid, sent)
    out, err = waiting.communicate(timeout=60)
    path = subjects.with_name("mine.jsonl")
    assert waiting.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    *_, said, how = err.splitlines()
    assert str(path) in said
    assert how.startswith("  layernorm-bench run --shape 1x8,2x8,3x8,4x8,5x8 ")
    assert how.endswith(f" --out {subjects.with_name('mine.parquet')} --resume")
    assert rows(read_journal(path).records) == [1, 2]
    assert calls(subjects) == [1, 2]


def test_the_parent_of_a_run_does_not_import_torch() -> None:
    parents = "harness.run.session, harness.run.fleet, harness.regression.ab"
    program = f"import sys, {parents}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

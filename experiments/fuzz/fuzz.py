"""Mutated input files and random command lines: a traceback, a wrong exit code or a lost file?

    python experiments/fuzz/fuzz.py                 500 files and 2,000 command lines
    ... --files 50 --lines 100 --seed 7             fewer, of another seed

Each file is a right one with a few random changes: bits, bytes, lines, numbers, words of other
files. Commands read it. Each command line is made of words that the commands know, mixed with
wrong ones. Everything runs in one process, in a folder of its own; nothing is measured, because
the fleet of worker processes is replaced by one that refuses to start.

A finding is an exception that a user would see as a traceback, an exit code that is not in the
documentation, an error of several lines, or an input file that a command has changed or removed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import click
from click.testing import CliRunner

from harness.cli import main
from harness.records.refusal import Refusal
from harness.run import fleet as fleet_module

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published"
CODES = {0, 1, 2, 3, 4}
SEED = 18
SWEEP = (
    'description = "ours"\nseconds_per_case = 2.0\ntimeout_s = 120\n\n[[grids]]\n'
    'implementations = ["native"]\nshapes = ["4x8"]\ndtypes = ["float32"]\n'
)
WORKLOAD = (
    'description = "ours"\n\n[[calls]]\nshape = "4x8"\ndtype = "float32"\ncount = 3\n'
    'direction = "forward"\n'
)


class NoWorkersError(Refusal):
    """Raised in place of starting a worker."""


class NoFleet:
    def __init__(self, places: object = None) -> None:
        return

    def __enter__(self) -> NoFleet:
        raise NoWorkersError("no workers: this is a fuzzer")

    def __exit__(self, *_: object) -> None:
        return


def make_inputs(folder: Path) -> None:
    """Write one right file of each kind."""
    commits = sorted((PUBLISHED / "commits").glob("*.parquet"))
    shutil.copy(commits[0], folder / "run.parquet")
    shutil.copy(commits[1], folder / "other.parquet")
    (folder / "history").mkdir()
    for path in commits[:2]:
        shutil.copy(path, folder / "history")
    (folder / "sweep.toml").write_text(SWEEP, encoding="utf-8")
    (folder / "workload.toml").write_text(WORKLOAD, encoding="utf-8")
    (folder / "mine.py").write_text("def norm(x, shape, w=None, b=None, eps=1e-5):\n    return x\n")
    _write_journal(folder)
    _write_benchmarks(folder)


def _write_benchmarks(folder: Path) -> None:
    """Write what pytest-benchmark would have written of the first timed cases of a run."""
    from harness.report.pytest_benchmark import extra_info_of, machine_info_of
    from harness.store import read

    results = read(folder / "run.parquet")
    timed = [record for record in results.records if record.latency is not None][:3]
    benchmarks = [
        {
            "name": record.case.id,
            "fullname": record.case.id,
            "extra_info": extra_info_of(record, model_bytes=4096),
            "options": {"timer": "perf_counter", "disable_gc": False},
            "stats": {"data": [2e-5 + number * 1e-7 for number in range(30)], "iterations": 1},
        }
        for record in timed
    ]
    content = {
        "machine_info": machine_info_of(next(iter(results.environments.values()))),
        "commit_info": {"id": "unversioned", "dirty": False},
        "benchmarks": benchmarks,
        "datetime": "2026-11-23T00:00:00+00:00",
        "version": "5.3.1",
    }
    (folder / "benchmark.json").write_text(json.dumps(content), encoding="utf-8")


def _write_journal(folder: Path) -> None:
    from harness.store import Journal, read

    results = read(folder / "run.parquet", samples=False)
    with Journal(folder / "cut.jsonl") as journal:
        for entry in (*results.runs, *results.environments.values(), *results.records[:3]):
            journal.add(entry)


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, its standard error, and a traceback if it raised."""
    runner = CliRunner()
    found = runner.invoke(main, arguments)
    raised = ""
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raised = repr(found.exception)
    return found.exit_code, found.stderr, raised


# commands that read a file of each kind, in a folder with all of them
READERS: dict[str, tuple[str, ...]] = {
    "run.parquet": (
        "report run.parquet --out page.html", "compare run.parquet other.parquet",
        "choose run.parquet", "export run.parquet --format csv",
        "merge run.parquet other.parquet --out new.parquet",
        "check run.parquet --baseline other.parquet",
    ),
    "history": (
        "history history", "history history --worst 2 --metric time",
        "history history --metric error --case native",
    ),
    "cut.jsonl": (
        "report cut.jsonl --out page.html", "export cut.jsonl --format csv",
        "merge cut.jsonl --out new.parquet", "compare cut.jsonl run.parquet",
    ),
    "benchmark.json": ("import benchmark.json --out new.parquet",),
    "sweep.toml": ("run --sweep sweep.toml --out new.parquet",),
    "workload.toml": ("choose run.parquet --workload workload.toml",),
}  # fmt: skip


def mutated(content: bytes, draw: Random, words: list[bytes]) -> bytes:
    """Return content with one to four random changes."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        match draw.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case 1:
                changed[place:place] = draw.randbytes(draw.randint(1, 8))
            case 2:
                del changed[place : place + draw.choice((1, 7, 100, 5000))]
            case 3:
                changed[place : place + draw.randint(0, 9)] = draw.choice(words)
            case 4:
                del changed[place:]
            case 5:
                lines = bytes(changed).split(b"\n")
                draw.shuffle(lines)
                changed = bytearray(b"\n".join(lines))
            case _:
                start = draw.randrange(len(changed) + 1)
                changed[place:place] = changed[start : start + draw.choice((3, 40, 400))]
    return bytes(changed)


WORDS = [
    b"null", b"NaN", b"-1", b"1e999", b"[]", b"{}", b'"', b"\x00", b"\xff\xfe", b"true", b"9" * 400,
    b"[[[[", b"\n", b"99999999999999999999", b"-0.0", b"''", b"\\ud800", b"[" * 3000, b"inf", b"=",
]  # fmt: skip


def fuzz_files(number: int, draw: Random) -> Iterator[tuple[str, str]]:
    """Yield the input and the finding of each mutated file that is not handled."""
    with tempfile.TemporaryDirectory() as kept:
        right = Path(kept)
        make_inputs(right)
        for turn in range(number):
            kind = list(READERS)[turn % len(READERS)]
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name) / "work"
                shutil.copytree(right, folder)
                target = folder / kind
                if target.is_dir():
                    target = min(target.iterdir())
                target.write_bytes(mutated(target.read_bytes(), draw, WORDS))
                for line in READERS[kind]:
                    yield from ((f"{kind} {turn}: {line}", why) for why in run(line, folder))


def run(line: str, folder: Path) -> list[str]:
    """Run a command line in a folder; return what is wrong with how it ended."""
    before = contents(folder)
    here = Path.cwd()
    os.chdir(folder)
    try:
        code, stderr, raised = invoke(*line.split(" "))
    finally:
        os.chdir(here)
    found = [f"raised {raised}"] if raised else []
    if code not in CODES:
        found.append(f"exit code {code}")
    if not raised and code == 2 and not stderr.startswith("layernorm-bench: "):
        found.append(f"no message: {stderr[:200]!r}")
    after = contents(folder)
    inputs = {path for path in before if path.parent.name != "reports"}
    found += [f"{path} changed" for path in inputs if after.get(path) != before[path]]
    return found


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fuzz_lines(number: int, draw: Random) -> Iterator[tuple[str, str]]:
    """Yield the command line and the finding of each that is not handled."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder)
        for _ in range(number):
            line = command_line(draw, folder)
            yield from ((line, why) for why in run(line, folder))


VALUES = (
    "run.parquet", "other.parquet", "history", "cut.jsonl", "benchmark.json", "sweep.toml",
    "workload.toml", "gone.parquet", "mine.py:norm", "mine.py:gone", "native", "two_pass", "4x8",
    "8", "0x8", "-3", "1e400", "nan", "inf", "float32", "bfloat16", "int8", "cpu", "cuda",
    "forward", "backward", "normal", "offset_1e3", "ci", "quick", "fast", "2/3", "3/2", "10m", "0s",
    "csv", "junit", "markdown", "list", "HEAD", "", "/", ".", "..", "é", "\udcff", "a" * 5000, ",",
    "1,2", "=", "dim=8", "new.parquet", "new.html", "page.html", "speed", "error", "%s", "*", "[",
)  # fmt: skip
# starts git worktrees, which take seconds each
SLOW = {"ab"}


def command_line(draw: Random, folder: Path) -> str:
    """Return a command, some of its options and some values, mostly of the right number."""
    names = sorted(set(main.commands) - SLOW)
    name = draw.choice(names)
    words = [name]
    options = [known for known in main.commands[name].params if isinstance(known, click.Option)]
    for parameter in main.commands[name].params:
        if isinstance(parameter, click.Argument) and draw.random() < 0.9:
            words += [draw.choice(VALUES[:7]) for _ in range(draw.choice((1, 1, 2)))]
    for option in draw.sample(options, min(len(options), draw.randrange(4))):
        words.append(draw.choice(option.opts))
        if not option.is_flag or draw.random() < 0.1:
            words.append(draw.choice(VALUES))
    if draw.random() < 0.1:
        words.append(draw.choice(VALUES))
    if draw.random() < 0.03:
        draw.shuffle(words)
    return " ".join(words)


def findings(files: int, lines: int, seed: int) -> list[tuple[str, str]]:
    """Return each input that was not handled, with what happened."""
    draw = Random(seed)
    with patch.object(fleet_module, "Fleet", NoFleet):
        return [*fuzz_files(files, draw), *fuzz_lines(lines, draw)]


@click.command()
@click.option("--files", default=500, show_default=True)
@click.option("--lines", default=2000, show_default=True)
@click.option("--seed", default=SEED, show_default=True)
def fuzz(files: int, lines: int, seed: int) -> None:
    found = findings(files, lines, seed)
    kinds: Counter[str] = Counter()
    for where, why in found:
        if kinds[why[:60]] < 3:
            click.echo(f"{where[:160]!r}: {why[:300]}")
        kinds[why[:60]] += 1
    click.echo(json.dumps({"files": files, "lines": lines, "seed": seed, "findings": len(found)}))
    raise SystemExit(bool(found))


if __name__ == "__main__":
    fuzz()

"""What is refused: one line on standard error and an exit code; nothing is measured or written."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from factories.commanding import IS_RECENT, ONE, call, complaint, write_journal
from factories.compared_runs import STEADY, failed, make_case, make_record, results_of
from factories.fake_device import LocalFleet
from factories.golden import assert_golden
from factories.histories import runs_of, stored_history

from harness.records import Status, install_extra
from harness.store import write

RUN = (
    "--shape 4xx", "--shape=-1x3", "--shape 1e9x1e9", "--shape 1000000000x1000000000",
    "--shape 4x4,,5x5", "--shape '4x4,(2,3)'",
    "--shape 64,768", "--shape 64x768,8", "--shape '(64,768)'", "--shape 64X768",
    "--shape 5 --normalized-dims 2", "--preset ci --shape 4x4 --normalized-dims 3",
    "--dtype float23", "--dtype float32,", "--dtype same", "--param-dtype int8",
    "--distribution nromal", "--layout contigous", "--grad-output oens", "--device cuda",
    "--device tpu", "--direction backwar", "--parameters norml", "--mode jit", "--affine all",
    "--measure speed", "--eps=-1", "--eps nan", "--eps small", "--threads 0", "--threads 1.5",
    "--seed one", "--seed 99999999999999999999",
    "-i nativ", "-i json:decoder",
    "--preset models_gpu", "--preset quik", "--sweep gone.toml", "--preset ci --sweep mine.toml",
    "--sweep bad.toml", "--sweep names.toml", "--sweep names.toml -i native",
    "--sweep names.toml -i native --layout contigous",
    "--out mine.csv", "--resume", "--shard 3/2", "--shard 0/2", "--shard \u00b2/3", "--shard 2",
    "--time-budget 10", "--time-budget 0s", "--time-budget=-5m", "--time-budget infh",
    "--on ray --instructions",
    "--on slurm", "--case-timeout 10",
    "--processes 0", "--fail-on wrong,crashed", "--dtyp float32", "stray",
    "-i native --shape 2x8 --out good.parquet", "-i native --shape 2x8 --out file/mine.parquet",
    "-i native --shape 2x8 --out junk.parquet --resume",
)  # fmt: skip
OTHERS = (
    "bad", "--verbose", "list everything",
    "report", "report gone.parquet", "report gone.jsonl", "report junk.parquet",
    "report gone.parquet --out gone.parquet", "report gone.parquet --out mine.py",
    "report good.parquet --out file/page.html", "report good.parquet --out folder.html",
    "report good.parquet good.parquet --baseline good.parquet", "report empty.parquet",
    "report runs --baseline good.parquet", "report runs good.parquet",
    "check good.parquet", "check good.parquet --against-history runs --baseline good.parquet",
    "check good.parquet --against-history runs --accept",
    "check good.parquet --baseline base.parquet",
    "check good.parquet --baseline good.parquet --accept --record-baseline",
    "check good.parquet --baseline good.parquet --record-baseline --json",
    "check good.parquet --baseline good.parquet --record-baseline --junit out.xml",
    "check good.parquet --baseline base.csv --accept",
    "check good.parquet --baseline base.csv --record-baseline",
    "check good.parquet --baseline good.parquet --junit report --summary ./report",
    "check good.parquet --junit run.jsonl",
    "check one_process.parquet --baseline good.parquet --accept",
    "check cut.jsonl --baseline good.parquet", "check cut.parquet --baseline good.parquet",
    "compare gone.parquet gone.parquet",
    "choose gone.parquet", "choose gone.jsonl", "choose empty.parquet", "choose failures.parquet",
    "choose untimed.parquet", "choose good.parquet --dtype float16",
    "choose good.parquet --accuracy wrong", "choose good.parquet --workload calls.toml",
    "choose gone.parquet --max-error nan", "choose gone.parquet --max-condition nan",
    "choose gone.parquet --max-error -1", "choose gone.parquet --workload gone.toml",
    "choose gone.parquet --workload gpt2xl", "choose good.parquet --workload count.toml",
    "ab", "ab --base HEAD --preset quik", "ab --base HEAD --dtype float23",
    "export gone.parquet", "export gone.parquet --format junit", "export gone.parquet --format xml",
    "export gone.parquet --format csv --out mine.toml", "export twice.parquet --format bencher",
    "export failures.parquet --format bencher",
    "export failures.parquet --format smaller-is-better",
    "export empty.parquet --format csv", "export good.parquet --format svg",
    "export good.parquet --format png --figure nothing",
    "export good.parquet --format csv --figure list",
    "import gone.json --out mine.csv", "import gone.json --out run.parquet",
    "import gone.json --out good.parquet",
    "history gone", "history runs --case nobody", "history runs --run 'preset gone'",
    "merge gone.parquet --out whole.parquet", "merge good.parquet --out whole.csv",
    "merge good.parquet --out good.parquet", "merge good.parquet --out file/whole.parquet",
    "verify", "verify native --self-test", "verify native --quik", "verify native --eps nan",
    "verify native --eps=-1", "verify native --dtype float23", "verify native --dtype float32,",
    "verify native --direction forwards", "verify native --init dim",
    "verify native --normalized-dims 0", "verify native --time-budget soon",
    "verify native --timeout soon", "verify native --timeout 0s",
    "explain native", "explain nativ --shape 4x8", "explain native --shape 4xx",
    "explain native --shape 4 --normalized-dims 2", "explain native --shape 4x4 --row -1",
    "explain native --shape 4x8 --row best", "explain native --shape 4x8 --device tpu",
    "explain native --shape 4x8 --eps nan", "explain native --shape 4x8 --seed 1,2",
    "explain native --shape 4x8 --row 4", "explain native --shape 0x8",
    "explain native --shape 4x8 --dtype float16 --distribution offset_1e6",
)  # fmt: skip
# runs that cannot be compared, as BEFORE and AFTER
PAIRS = ("empty good", "good failures", "untimed good", "good twice", "gone good")
# files that must not or cannot be written: inputs, results by another name, and what is no file
OUTPUTS = ("''", ".", "good.parquet", "good.parquet/out", "twice.parquet", "linked")

CALLS = '[[calls]]\nshape = "7x7"\ndtype = "float32"\ndirection = "forward"\n'


@pytest.fixture
def _files() -> None:
    """Results of every kind, sweeps with mistakes, and what stands in the way of a file."""
    good, other = make_record(make_case("native"), STEADY), make_record(make_case(rows=8))
    runs = {
        "good": [good],
        "empty": [],
        "failures": [failed(good.case)],
        "untimed": [other],
        "twice": [good, replace(good, status=Status.WRONG)],
        "one_process": [make_record(good.case, (1.5,))],
    }
    for name, records in runs.items():
        write(results_of(*records), Path(f"{name}.parquet"))
    write_journal(Path("cut.jsonl"), good, planned=3)
    stored_history(Path("runs"), *runs_of(good.case, STEADY))
    Path("linked").symlink_to("good.parquet")
    Path("folder.html").mkdir()
    texts = {
        "file": "no folder",
        "junk.parquet": "junk",
        "bad.toml": '[[grids]]\nshapes = ["4xx"]\nseeds = []\nshape = ["4x4"]\n',
        "names.toml": '[[grids]]\nlayouts = ["contiguous", "contigous"]\n'
        'implementations = ["nativ"]\n',
        "calls.toml": CALLS,
        "count.toml": f"{CALLS}count = -1\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.usefixtures("_files")
def test_what_is_refused_reads_as_in_the_golden_file(fleet: LocalFleet) -> None:
    before, lines = contents(), []
    commands = [f"run {arguments}" for arguments in RUN] + [*OTHERS]
    for pair in PAIRS:
        old, new = (f"{name}.parquet" for name in pair.split())
        commands += [f"compare {old} {new}", f"check {new} --baseline {old} --no-confirm"]
    for out in OUTPUTS:
        commands.append(f"export good.parquet --format csv --out {out}")
        for option in ("--junit", "--summary"):
            commands.append(f"check good.parquet --baseline good.parquet {option} {out}")
    for text in commands:
        found = call(*shlex.split(text))
        assert found.exit_code in {2, 3, 4}, text
        assert found.stdout == ""
        # the names that exist, and the words of pyarrow, change often, and come last
        messages = [
            re.split(r"; known: | \(or give|(?<=damaged): ", line)[0]
            for line in found.stderr.splitlines()
        ]
        assert len(messages) == (3 if text == "run --sweep bad.toml" else 1), messages
        assert all(message.startswith("layernorm-bench: ") for message in messages)
        lines += [f"$ layernorm-bench {text}", *messages, f"exit code {found.exit_code}"]
    assert fleet.started == []
    assert contents() == {**before, "out.xml": b""}  # emptied before anything is compared
    if IS_RECENT:  # earlier versions of click word some messages differently
        assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "wrong_use.txt")


def test_where_ray_is_not_installed_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    monkeypatch.delitem(sys.modules, "harness.run.ray_fleet", raising=False)
    line = complaint("run", *ONE, "--on", "ray")
    assert line == f"--on ray needs the extra ray: {install_extra('ray')}"
    assert not Path("mine.jsonl").exists()

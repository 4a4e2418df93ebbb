"""Wrong use is one line on standard error and exit code 2; nothing is measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from factories.commanding import IS_RECENT, ONE, call, complaint
from factories.fake_device import LocalFleet
from factories.golden import assert_golden

from harness.records import install_extra

RUN = (
    "--shape 4xx", "--shape=-1x3", "--shape 1e9x1e9", "--shape 1000000000x1000000000",
    "--shape 4x4,,5x5", "--shape 4x4,(2,3)",
    "--shape 64,768", "--shape 64x768,8", "--shape (64,768)", "--shape 64X768",
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
)  # fmt: skip
OTHERS = (
    "bad", "--verbose", "list everything", "report", "report gone.parquet", "report gone.jsonl",
    "report gone.parquet --out gone.parquet", "report gone.parquet --out mine.py",
    "check run.parquet",
    "check run.parquet --baseline base.parquet --accept --record-baseline",
    "check run.parquet --baseline base.parquet --record-baseline --json",
    "check run.parquet --baseline base.parquet --record-baseline --junit out.xml",
    "check run.parquet --baseline base.csv --accept",
    "check run.parquet --baseline base.csv --record-baseline",
    "check run.parquet --baseline base.parquet --junit report --summary ./report",
    "compare gone.parquet gone.parquet",
    "choose gone.parquet", "choose gone.jsonl",
    "choose gone.parquet --max-error nan", "choose gone.parquet --max-condition nan",
    "ab", "ab --base HEAD --preset quik", "ab --base HEAD --dtype float23",
    "choose gone.parquet --max-error -1", "choose gone.parquet --workload gone.toml",
    "choose gone.parquet --workload gpt2xl",
    "export gone.parquet", "export gone.parquet --format junit", "export gone.parquet --format xml",
    "export gone.parquet --format csv --out mine.toml", "check a.parquet --junit run.jsonl",
    "import gone.json --out mine.csv",
    "verify", "verify native --self-test", "verify native --quik", "verify native --eps nan",
    "verify native --eps=-1", "verify native --dtype float23", "verify native --dtype float32,",
    "verify native --direction forwards", "verify native --init dim",
    "verify native --normalized-dims 0", "verify native --time-budget soon",
    "verify native --timeout soon", "verify native --timeout 0s",
    "explain native", "explain nativ --shape 4x8", "explain native --shape 4xx",
    "explain native --shape 4 --normalized-dims 2", "explain native --shape 4x4 --row -1",
    "explain native --shape 4x8 --row best", "explain native --shape 4x8 --device tpu",
    "explain native --shape 4x8 --eps nan", "explain native --shape 4x8 --seed 1,2",
)  # fmt: skip


@pytest.fixture
def _sweeps() -> None:
    Path("bad.toml").write_text('[[grids]]\nshapes = ["4xx"]\nseeds = []\nshape = ["4x4"]\n')
    Path("names.toml").write_text(
        '[[grids]]\nlayouts = ["contiguous", "contigous"]\nimplementations = ["nativ"]\n'
    )


@pytest.mark.usefixtures("_sweeps")
def test_wrong_use_has_one_line_per_mistake(fleet: LocalFleet) -> None:
    lines = []
    for text in (*(f"run {arguments}" for arguments in RUN), *OTHERS):
        found = call(*text.split())
        assert (found.exit_code, found.stdout) == (2, ""), text
        # the names that exist change often, and are listed last
        messages = [
            re.split("; known: | \\(or give", line)[0] for line in found.stderr.splitlines()
        ]
        assert len(messages) == (3 if "bad.toml" in text else 1), messages
        assert all(message.startswith("layernorm-bench: ") for message in messages)
        lines += [f"$ layernorm-bench {text}", *messages]
    assert fleet.started == []
    assert not Path("results").exists()
    if IS_RECENT:  # earlier versions of click word some messages differently
        assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "wrong_use.txt")


def test_where_ray_is_not_installed_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    for name in ("harness.run.ray_fleet",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    line = complaint("run", *ONE, "--on", "ray")
    assert line == f"--on ray needs the extra ray: {install_extra('ray')}"
    assert not Path("mine.jsonl").exists()


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_file_without_results_is_named(command: str) -> None:
    Path("mine.parquet").write_text("junk")
    arguments = ("run", *ONE, "--resume") if command == "run" else ("report", "mine.parquet")
    line = complaint(*arguments)
    assert line.startswith("mine.parquet: not a readable results file, or damaged: ")
    assert Path("mine.parquet").read_text() == "junk"


def test_existing_results_are_not_overwritten() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    before = Path("mine.parquet").read_bytes()
    assert complaint("run", *ONE).startswith("mine.parquet exists; ")
    assert Path("mine.parquet").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(fleet: LocalFleet) -> None:
    Path("file").write_text("no folder")
    line = complaint("run", "-i", "native", "--shape", "2x8", "--out", "file/mine.parquet")
    assert line.startswith("file/mine.jsonl: cannot be written: ")
    assert fleet.started == []


def test_a_page_that_cannot_be_written_is_named() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    Path("file").write_text("no folder")
    Path("folder.html").mkdir()
    for out, why in (("file/page.html", "File exists"), ("folder.html", "Is a directory")):
        line = complaint("report", "mine.parquet", "--out", out)
        assert line.startswith(f"{out}: cannot be written: {why}")

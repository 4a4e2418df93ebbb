"""The command line: one clear line and the right exit code, results on standard output alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_device import LocalFleet

import implementations
from harness.cli import main
from harness.inputs import DISTRIBUTIONS
from harness.records import Record
from harness.run import fleet as fleet_module
from harness.run.fleet import HarnessError
from harness.store import read
from harness.sweep import load_preset, preset_names

PROGRAM = "import sys; from harness.cli import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to a folder of their own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> LocalFleet:
    """The fleet of the command: none of its cases leaves this process."""
    made = LocalFleet()
    monkeypatch.setattr(fleet_module, "Fleet", lambda: made)
    return made


def call(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments)


def spawn(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )


def complaint(*arguments: str) -> str:
    """Run what is refused as wrong use; return the line that says why."""
    found = call(*arguments)
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    lines = found.stderr.splitlines()
    if lines[0].startswith("Usage:"):  # where the mistake is in how an option is written
        lines = [line for line in lines if line.startswith("Error: ")]
    (line,) = lines
    return line.removeprefix("layernorm-bench: ").removeprefix("Error: ")


ONE = ("-i", "native", "--shape", "2x8", "--measure", "errors", "--out", "mine.parquet")


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--shape 4xx", "'4xx' is not a shape: write sizes joined by x, such as 4096x1024"),
        ("--shape=-1x3", "'-1x3' is not a shape: write sizes joined by x, such as 4096x1024"),
        ("--shape 1e9x1e9", "'1e9x1e9' is not a shape"),
        ("--shape 1000000000x1000000000", "1e+18 elements, more than any device holds"),
        ("--shape 4x4,,5x5", "'4x4,,5x5' has an empty name"),
        ("--shape 5 --normalized-dims 2", "shape 5 has fewer than 2 axes to normalise over"),
        ("--dtype float23", "'float23' is not one of float16, bfloat16, float32, float64; did"),
        ("--dtype float32,", "'float32,' has an empty name"),
        ("--dtype same", "dtypes[0]"),
        ("--param-dtype int8", "'int8' is not one of float16, bfloat16, float32, float64"),
        ("--distribution nromal", "no distribution named 'nromal'; did you mean 'normal'?"),
        ("--layout contigous", "no layout named 'contigous'; did you mean 'contiguous'?"),
        ("--upstream oens", "no upstream named 'oens'; did you mean 'ones'?"),
        ("--device cuda", "device 'cuda' cannot be used: torch sees no CUDA device"),
        ("--device tpu", "no device named 'tpu'; did you mean 'cpu'?"),
        ("--direction sideways", "'forward', 'backward' or 'forward+backward' (found 'sideways')"),
        ("--mode jit", "Input should be 'eager' or 'compiled' (found 'jit')"),
        ("--affine all", "(found 'all')"),
        (
            "--measure speed",
            "Input should be 'errors', 'latency', 'cold' or 'memory' (found 'speed')",
        ),
        ("--eps=-1", "greater than or equal to 0 (found -1.0)"),
        ("--eps nan", "finite number (found nan)"),
        ("--eps small", "'small' is not float numbers joined by commas"),
        ("--threads 0", "greater than or equal to 1 (found 0)"),
        ("--threads 1.5", "'1.5' is not int numbers joined by commas"),
        ("--seed one", "'one' is not int numbers joined by commas"),
        ("--seed 99999999999999999999", "seeds[0]"),
        ("-i nativ", "no implementation named 'nativ'; did you mean 'native'?"),
        ("-i gone.py:f", "gone.py:f: cannot import: FileNotFoundError: no file gone.py"),
        ("-i json:nope", "json:nope: json has no 'nope'"),
        ("-i json:decoder", "json:decoder: is of type module, not a function"),
        ("--preset quik", "no preset named 'quik'; presets: ci, conditioning, full, models, "),
        ("--sweep gone.toml", "gone.toml: cannot be read: No such file or directory"),
        ("--preset ci --sweep mine.toml", "give --preset or --sweep, not both"),
        ("--out mine.csv", "--out mine.csv: a results file ends in .parquet"),
        ("--resume", "--resume needs --out, the results file to continue"),
        ("--shard 3/2", "'3/2' is not a shard: write i/n with i from 1 to n, such as 2/4"),
        ("--shard 0/2", "'0/2' is not a shard"),
        ("--shard ²/3", "'²/3' is not a shard"),
        ("--shard 2", "'2' is not a shard"),
        ("--time-budget 10", "'10' is not a time: write 90s, 10m or 2h"),
        ("--time-budget 0s", "'0s' is not a time"),
        ("--time-budget=-5m", "'-5m' is not a time"),
        ("--time-budget infh", "'infh' is not a time"),
        ("--dtyp float32", "No such option"),
        ("stray", "unexpected extra argument"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line(
    fleet: LocalFleet, arguments: str, line: str
) -> None:
    assert line in complaint("run", *arguments.split())
    assert fleet.started == []
    assert not Path("results").exists()


def test_every_mistake_of_a_sweep_file_has_its_line() -> None:
    Path("mine.toml").write_text('[[grids]]\nshapes = ["4xx"]\nseeds = []\nshape = ["4x4"]\n')
    found = call("run", "--sweep", "mine.toml")
    assert found.exit_code == 2
    assert found.stderr.splitlines() == [
        "layernorm-bench: mine.toml: grids[0].shapes[0]: '4xx' is not a shape: write sizes joined "
        "by x, such as 4096x1024",
        "layernorm-bench: mine.toml: grids[0].seeds: needs at least one value (found [])",
        "layernorm-bench: mine.toml: grids[0].shape: unknown key; did you mean 'shapes'?",
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("bad",), "No such command 'bad'"),
        (("list", "everything"), "'everything' is not one of 'all', 'implementations'"),
        (("report",), "Missing argument 'RUN...'"),
        (("--verbose",), "No such option"),
    ],
)
def test_a_command_that_is_misspelt_is_refused(arguments: tuple[str, ...], line: str) -> None:
    assert line in complaint(*arguments)


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_file_that_is_no_results_file_is_named(command: str) -> None:
    Path("mine.parquet").write_text("junk")
    arguments = ("run", *ONE, "--resume") if command == "run" else ("report", "mine.parquet")
    line = complaint(*arguments)
    assert line.startswith("mine.parquet: not a readable results file, or damaged: ")
    assert Path("mine.parquet").read_text() == "junk"


def test_a_results_file_with_damaged_bytes_is_named() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    path = Path("mine.parquet")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    # more than the header of a page, in some bytes of which a change means nothing
    content[middle : middle + 256] = bytes(256)
    path.write_bytes(content)
    assert complaint("report", "mine.parquet").startswith("mine.parquet: ")


def test_a_parquet_file_of_something_else_is_named() -> None:
    import pandas

    pandas.DataFrame({"a": [1]}).to_parquet("mine.parquet")
    assert complaint("report", "mine.parquet") == (
        "mine.parquet: a parquet file, but not one that layernorm-bench wrote"
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gone.parquet", "gone.parquet: no such file; make one with `layernorm-bench run`"),
        ("gone.jsonl", "gone.jsonl: cannot be read: No such file or directory"),
    ],
)
def test_a_report_of_a_run_that_is_not_there_is_refused(name: str, line: str) -> None:
    assert complaint("report", name) == line


def test_a_report_of_a_damaged_journal_is_refused_with_its_line() -> None:
    Path("mine.jsonl").write_text('{"Run": {}}\n{"Run": {}}\n')
    assert complaint("report", "mine.jsonl").startswith("mine.jsonl: line 1 is damaged: ")


def test_one_bad_run_among_good_ones_is_refused() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    assert "gone.parquet" in complaint("report", "mine.parquet", "gone.parquet")


def test_results_that_are_there_are_not_overwritten() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    before = Path("mine.parquet").read_bytes()
    assert complaint("run", *ONE) == (
        "mine.parquet exists; continue it with --resume, or choose another --out"
    )
    assert Path("mine.parquet").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(fleet: LocalFleet) -> None:
    Path("file").write_text("no folder")
    line = complaint("run", "-i", "native", "--shape", "2x8", "--out", "file/mine.parquet")
    assert line.startswith("file/mine.jsonl: cannot be written: ")
    assert fleet.started == []


# --- how a run ends ------------------------------------------------------------------------------


def test_an_empty_tensor_is_legal() -> None:
    found = call("run", "-i", "two_pass", "--shape", "0x5", "--measure", "errors", "--json")
    assert found.exit_code == 0
    (case,) = json.loads(found.stdout)["cases"]
    assert case == {"id": "two_pass/forward/0x5/float32/normal", "status": "ok", "reason": ""}


def test_wrong_results_are_results_and_the_run_is_done() -> None:
    Path("mine.py").write_text("def norm(x, *_):\n    return x * 2\n")
    found = call("run", "-i", "mine.py:norm", *ONE[2:], "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["cases"][0]["status"] == "wrong"


def test_where_nothing_was_measured_the_exit_code_says_so() -> None:
    arguments = ("--dtype", "float16", "--distribution", "offset_1e6")
    found = call("run", *ONE, *arguments, "--json")
    assert found.exit_code == 3
    assert found.stderr.splitlines()[-1] == (
        "layernorm-bench: nothing was measured; the reasons are above"
    )
    assert json.loads(found.stdout)["cases"][0]["status"] == "unsupported"


def test_where_one_of_several_cases_failed_the_exit_code_says_so() -> None:
    Path("mine.py").write_text("def norm(*_):\n    raise ValueError('no')\n")
    found = call("run", "-i", "native,mine.py:norm", *ONE[2:], "--json")
    assert found.exit_code == 3
    assert "1 cases ended that should not; the reasons are above" in found.stderr
    outcome = json.loads(found.stdout)
    assert [each["status"] for each in outcome["cases"]] == ["ok", "error"]
    assert outcome["cases"][1]["reason"] == "ValueError: no"
    assert len(read(Path("mine.parquet")).records) == 2


def test_a_bug_in_the_harness_has_an_exit_code_of_its_own(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Record]:
        raise HarnessError("KeyError: 'x'\nthis is a bug in layernorm-bench")
        yield

    monkeypatch.setattr(fleet, "run", broken)
    found = call("run", *ONE)
    assert found.exit_code == 3
    assert "layernorm-bench: this is a bug in layernorm-bench" in found.stderr


def test_ctrl_c_before_the_first_case_ends_like_ctrl_c_within_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(LocalFleet):
        def unresolved(self, targets: object) -> tuple[str, ...]:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet_module, "Fleet", Interrupted)
    assert call("run", *ONE).exit_code == 130


def test_a_run_without_any_case_says_so() -> None:
    # one of two shards of a single case has nothing to do
    codes = [
        call("run", *ONE[:-1], f"part{index}.parquet", "--shard", f"{index}/2").exit_code
        for index in (1, 2)
    ]
    assert sorted(codes) == [0, 3]


def test_shards_measure_every_case_once() -> None:
    arguments = ("--shape", "2x8", "--measure", "errors", "--seed", "0,1,2")
    ids: list[str] = []
    for index in (1, 2, 3):
        out = ("--shard", f"{index}/3", "--out", f"part{index}.parquet", "--json")
        ids += [each["id"] for each in json.loads(call("run", *arguments, *out).stdout)["cases"]]
    on_cpu = [each for each in implementations.ALL if "cpu" in each.devices]
    assert len(ids) == len(set(ids)) == 3 * len(on_cpu)


def test_another_seed_gives_other_errors_and_the_same_seed_the_same() -> None:
    errors = {}
    for name, seeds in (("one", "0,1"), ("other", "1,0")):
        out = ("--seed", seeds, "--out", f"{name}.parquet", "--json")
        assert call("run", "-i", "native", "--shape", "8x100", *ONE[4:6], *out).exit_code == 0
        errors[name] = {
            each.case.seed: each.errors for each in read(Path(f"{name}.parquet")).records
        }
    assert errors["one"][0] != errors["one"][1]
    assert errors["one"] == errors["other"]


def test_axes_given_twice_or_with_commas_are_all_run() -> None:
    found = call(
        "run", "-i", "native", "-i", "two_pass,welford", "--shape", "2x8,3x8", "--shape", "4x8",
        "--measure", "errors", "--json",
    )  # fmt: skip
    assert len(json.loads(found.stdout)["cases"]) == 9


def test_an_axis_replaces_that_of_the_preset() -> None:
    found = call("run", "--preset", "conditioning", *ONE, "--mode", "eager", "--json")
    ids = [each["id"] for each in json.loads(found.stdout)["cases"]]
    assert {each.split("/")[0] for each in ids} == {"native"}
    assert {each.split("/")[2] for each in ids} == {"2x8"}
    wanted = {name for grid in load_preset("conditioning").grids for name in grid.distributions}
    assert {each.split("/")[4] for each in ids} == wanted


def test_results_go_to_a_file_with_the_name_of_the_sweep() -> None:
    Path("mine.toml").write_text(
        '[[grids]]\nimplementations = ["native"]\nshapes = ["2x8"]\nmeasure = ["errors"]\n'
    )
    found = call("run", "--sweep", "mine.toml", "--json")
    path = Path(json.loads(found.stdout)["results"])
    assert path.parent == Path("results")
    assert path.name.startswith("mine-")
    assert path.exists()


def test_json_says_how_the_run_went() -> None:
    found = json.loads(call("run", *ONE, "--json").stdout)
    assert found.pop("wall_s") > 0
    assert 0 <= found.pop("overhead_ratio") <= 1
    assert found == {
        "results": "mine.parquet",
        "page": None,
        "measured": 1,
        "failed": 0,
        "left": 0,
        "cases": [
            {"id": "native/forward/2x8/float32/normal", "status": "ok", "reason": ""},
        ],
    }


# --- list ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("implementations", {each.name for each in implementations.ALL}),
        ("presets", set(preset_names())),
        ("workloads", {"bert_base", "gpt2_xl"}),
        ("distributions", set(DISTRIBUTIONS)),
        ("layouts", {"contiguous", "transposed"}),
        ("upstreams", {"shifted_normal", "ones"}),
        ("devices", {"cpu", "cuda"}),
    ],
)
def test_what_exists_is_listed_each_with_a_line_about_itself(what: str, names: set[str]) -> None:
    plain, found = call("list", what), json.loads(call("list", what, "--json").stdout)
    assert plain.exit_code == 0
    assert names <= found[what].keys()
    lines = [line.split(maxsplit=1) for line in plain.stdout.splitlines()]
    assert {name: text for name, text in lines} == found[what]  # noqa: C416 - checks the pairs


def test_without_a_kind_everything_is_listed_under_its_kind() -> None:
    found = call("list").stdout.splitlines()
    kinds = [
        "implementations:",
        "presets:",
        "workloads:",
        "distributions:",
        "layouts:",
        "upstreams:",
        "parameters:",
        "devices:",
    ]
    assert [line for line in found if not line.startswith(" ")] == kinds
    assert list(json.loads(call("list", "--json").stdout)) == [each[:-1] for each in kinds]


# --- as a person would run it --------------------------------------------------------------------


def test_no_help_imports_what_takes_long() -> None:
    script = """
import json, sys
from click.testing import CliRunner
from harness.cli import main
for arguments in ([], *([name] for name in main.commands)):
    found = CliRunner().invoke(main, [*arguments, "--help"])
    assert found.exit_code == 0, found.output
    assert "Usage:" in found.stdout
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "numpy", "pandas", "pyarrow", "seaborn", "matplotlib", "pydantic", "rich"}
    assert not heavy & set(json.loads(done.stdout))


def test_no_example_of_how_to_write_an_option_is_refused() -> None:
    found = call("run", "--help").stdout
    for example in ("4096X1024", "I/N", "10M"):
        assert example not in found


def test_a_first_look_at_four_algorithms() -> None:
    arguments = (
        "run", "--shape", "64x768", "--dtype", "float32", "--distribution", "normal,offset_1e4",
        "-i", "one_pass", "-i", "two_pass", "-i", "welford", "-i", "native",
        "--measure", "errors",
    )  # fmt: skip
    done = spawn(*arguments)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split()[:2] == ["case", "status"]
    status = dict(line.split()[:2] for line in lines[:8])
    assert status.pop("one_pass/forward/64x768/float32/offset_1e4") == "out_of_guarantee"
    assert set(status.values()) == {"ok"}
    assert len(status) == 7
    reason, outcome, where = lines[8:]
    assert "promises nothing beyond condition" in reason
    assert outcome.startswith("8 cases in ")
    path = Path(where.removeprefix("results: "))
    assert len(read(path).records) == 8
    assert read(path).runs[0].planned == 8
    # a line for each case as it was done, and nothing else
    progress = done.stderr.splitlines()
    assert len(progress) == 8
    assert progress[0].startswith("[1/8] ok ")
    assert progress[0].endswith(" left)")


def test_a_guest_that_falls_costs_its_case_and_the_exit_code() -> None:
    Path("mine.py").write_text(
        "import os\ndef norm(*_):\n    print('noise')\n    os.abort()\n"
        "def talks(x, *_):\n    print('noise')\n    return x\n"
    )
    done = spawn("run", "-i", "mine.py:norm,mine.py:talks,native", *ONE[2:], "--json")
    assert done.returncode == 3
    outcome = json.loads(done.stdout)  # nothing but JSON, whatever the guests print
    assert [each["status"] for each in outcome["cases"]] == ["crashed", "wrong", "ok"]
    assert "SIGABRT" in outcome["cases"][0]["reason"]
    assert "1 cases ended that should not" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there_is_refused_by_the_machine_itself() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    done = spawn("run", "--device", "cuda")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("layernorm-bench: device 'cuda' cannot be used: torch ")


def test_the_version_is_said() -> None:
    assert call("--version").exit_code == 0

"""What there is to list, and the commands as a person would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import ONE, call, spawn

import implementations
from harness.inputs import DISTRIBUTIONS
from harness.store import read
from harness.sweep import preset_names

# --- list ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("implementations", {each.name for each in implementations.ALL}),
        ("presets", set(preset_names())),
        ("workloads", {"bert_base", "gpt2_xl"}),
        ("distributions", set(DISTRIBUTIONS)),
        ("layouts", {"contiguous", "transposed"}),
        ("grad_outputs", {"shifted_normal", "ones"}),
        ("devices", {"cpu", "cuda"}),
    ],
)
def test_what_exists_is_listed_each_with_a_line_about_itself(what: str, names: set[str]) -> None:
    plain, found = call("list", what), json.loads(call("list", what, "--json").stdout)
    assert plain.exit_code == 0
    assert names <= found[what].keys()
    lines = [line.split(maxsplit=1) for line in plain.stdout.splitlines()]
    assert {name: text for name, text in lines} == found[what]  # noqa: C416 - checks the pairs


def test_an_implementation_for_other_devices_than_the_cpu_says_which() -> None:
    found = json.loads(call("list", "implementations", "--json").stdout)["implementations"]
    assert found["triton_welford"].endswith("(CUDA only)")
    assert "only)" not in found["native"]


def test_without_a_kind_everything_is_listed_under_its_kind() -> None:
    found = call("list").stdout.splitlines()
    kinds = [
        "implementations:",
        "presets:",
        "workloads:",
        "distributions:",
        "layouts:",
        "grad_outputs:",
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
    heading, reason, outcome, where, purpose, command = lines[8:]
    assert heading == "out_of_guarantee (1 case):"
    assert "promises nothing beyond condition" in reason
    assert outcome.startswith("8 cases in ")
    assert outcome.endswith(": 7 ok, 1 out_of_guarantee")
    assert purpose == "to make a page of these results:"
    assert command == f"  layernorm-bench report {where.removeprefix('results: ')}"
    path = Path(where.removeprefix("results: "))
    assert len(read(path).records) == 8
    assert read(path).runs[0].planned == 8
    # a line for each case as it was done, and nothing else
    progress = done.stderr.splitlines()
    assert len(progress) == 8
    assert progress[0].startswith("[1/8] ok ")
    assert progress[0].endswith(" left)")
    assert progress[-1].endswith(" ulp")


def test_a_guest_that_falls_costs_its_case_and_the_exit_code() -> None:
    Path("mine.py").write_text(
        "import os\ndef norm(*_):\n    print('noise')\n    os.abort()\n"
        "def talks(x, *_):\n    print('noise')\n    return x\n"
    )
    done = spawn("run", "-i", "mine.py:norm,mine.py:talks,native", *ONE[2:], "--json")
    assert done.returncode == 3
    outcome = json.loads(done.stdout)  # nothing but JSON, whatever the implementations print
    assert [each["status"] for each in outcome["cases"]] == ["crashed", "wrong", "ok"]
    assert "SIGABRT" in outcome["cases"][0]["reason"]
    assert "1 case could not be measured (1 crashed)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there_is_refused_by_the_machine_itself() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    done = spawn("run", "--device", "cuda")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("layernorm-bench: --device: device 'cuda' cannot be used: torch ")


def test_the_version_is_said() -> None:
    assert call("--version").exit_code == 0

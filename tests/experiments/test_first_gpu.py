"""The first contact with a GPU, on fakes: steps that end in every way, and what is made of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.cli import main

FOLDER = Path(__file__).parents[2] / "experiments" / "first_gpu"
NAMES = ("first_gpu", "steps", "assumptions", "probe", "wheels")


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """The scripts as modules, with kernels where triton is installed."""
    names = [*NAMES, *(["kernels"] if find_spec("triton") else [])]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        for name in names:
            patch.setitem(sys.modules, name, None)  # to be restored to what it was
            del sys.modules[name]
        yield SimpleNamespace(**{name: import_module(name) for name in names})


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "rcs", "state", "why"),
    [
        ("print('fine')", (0,), "done", ""),
        ("exit(3)", (3,), "done", ""),
        ("import sys; sys.exit('it broke')", (0,), "failed", "it broke"),
        ("import time; time.sleep(60)", (0,), "timed out", ""),
        (None, (0,), "left out", "needs a GPU"),
    ],
)
def test_a_step_ends_once(
    code: str | None, rcs: tuple[int, ...], state: str, why: str, scripts: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", code] if code else "needs a GPU"
    limit_s = 0.5 if state == "timed out" else 30.0
    step = scripts.steps.Step("one", "?", limit_s, lambda at: command, rcs)
    at = scripts.steps.Setting(tmp_path)
    assert "not begun" in scripts.first_gpu.settle(step, at, limit_s - 0.1)
    assert not (tmp_path / "one.json").exists()
    assert scripts.first_gpu.settle(step, at, limit_s).startswith(state)
    result = json.loads((tmp_path / "one.json").read_text())
    assert (result["state"], result["why"]) == (state, why)
    assert scripts.first_gpu.settle(step, at, limit_s) == f"{state} earlier, skipped"


@pytest.mark.parametrize("is_rehearsal", [True, False])
def test_each_step_is_a_command_line_or_says_why_not(
    is_rehearsal: bool, scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.steps.shutil, "which", lambda name: None)
    at = scripts.steps.Setting(tmp_path, is_rehearsal)
    commands = {step.name: step.command(at) for step in scripts.steps.STEPS}
    assert sum(step.limit_s for step in scripts.steps.STEPS) <= 1500
    assert [name for name, why in commands.items() if isinstance(why, str)] == ["sanitizer"]
    own = len(scripts.steps.BENCH)
    context = main.make_context("layernorm-bench", ["run"], resilient_parsing=True)
    for name in ("run", "ab", "ab-again", "blame"):
        words = commands[name][own:]
        command = main.get_command(context, words[0])
        assert isinstance(command.make_context(words[0], words[1:], parent=context), click.Context)
    assert all(Path(word).exists() for word in commands["probe"] if word.endswith(".py"))


def test_the_probe_answers_on_a_cpu(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.probe, "REPEATS", 2)
    answers = json.loads(CliRunner().invoke(scripts.probe.main, ["--device", "cpu"]).stdout)
    words = {name: told for name, told in answers.items() if isinstance(told, str)}
    assert set(words.values()) == {"left out: needs a GPU"}
    assert {"versions", "bandwidth", "late_waits_ratio"} <= answers.keys() - words.keys()


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="interpreted, nothing is compiled")
@pytest.mark.filterwarnings("ignore:.*TRITON_DEFAULT_FP_FUSION:UserWarning")
def test_the_kernels_are_compiled_as_meant(scripts: Any) -> None:
    from triton import compile as compile_for
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def ptx(kernel: Any, pointers: str, **known: str) -> str:
        signature = dict.fromkeys(pointers.split(), "*fp32") | dict.fromkeys(known, "constexpr")
        places = {(kernel.arg_names.index(name),): value for name, value in known.items()}
        source = ASTSource(kernel, signature, places)
        return str(compile_for(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])

    read = scripts.kernels.read_block
    assert "evict_last" in ptx(read, "x_ptr sums_ptr", POLICY="evict_last")
    assert "evict_last" not in ptx(read, "x_ptr sums_ptr", POLICY="")
    assert str(4 << 44) in ptx(scripts.kernels.write_far, "y_ptr")  # bytes


# --- what differs --------------------------------------------------------------------------------


def test_what_differs_comes_first_and_what_is_not_measured_is_not_taken_for_it(
    scripts: Any, tmp_path: Path
) -> None:
    answers = {
        "unreadable": ["power_w"],
        "event_floor_s": 2e-6,
        "small_kernel_s": {"alone": 4e-6, "among": 2e-6},
        "late_waits_ratio": "failed: RuntimeError: CUDA error",
        "bandwidth": "failed: RuntimeError: CUDA error",
        "captures": [],
        "flush_after_evict_last": "left out: needs a GPU",
    }
    (tmp_path / "probe.out").write_text(json.dumps(answers))
    (tmp_path / "ab.out").write_text(json.dumps({"counts": {"unchanged": 2}}))
    for step, state in (("tests", "failed"), ("sanitizer", "left out")):
        (tmp_path / f"{step}.json").write_text(json.dumps({"state": state, "why": "none here"}))
    rows = [line.split(" | ") for line in scripts.assumptions.page(tmp_path).splitlines()[4:]]
    holds = [row[-1].strip("| ") for row in rows]
    assert holds == sorted(holds, key=["NO", "?", "yes"].index)
    found = {row[0].strip("| "): (row[2], row[-1].strip("| ")) for row in rows}
    assert [name for name, (_, held) in found.items() if held == "NO"] == [
        "fields that NVML does not tell",
        "share of idle waits that are late",
        "bandwidth of copy_ over that of add",
        "tests",
    ]
    assert found["memory checker"] == ("not measured (none here)", "?")
    assert found["statuses of native"] == ("not measured (no result)", "?")
    assert found["small kernel alone, without that, over one of 100"] == ("1", "yes")
    assert found["unchanged code, to ab"] == ("unchanged", "yes")


# --- wheels --------------------------------------------------------------------------------------

THERE = "torch==2.9.0+cu128\nTyping_Extensions==4.16.0\npandas @ file:///x\nnumpy==1.20.0\n"


def test_what_is_missing_or_too_old_is_found(scripts: Any) -> None:
    have = scripts.wheels.installed(THERE)
    assert have == {"torch": "2.9.0", "typing-extensions": "4.16.0", "numpy": "1.20.0"}
    missing = {found.name for found in scripts.wheels.lacking(have, scripts.wheels.required())}
    assert {"numpy", "pandas", "pydantic", "pytest"} <= missing
    assert "torch" not in missing


@pytest.mark.parametrize("most_mib", [0, 64])
def test_wheels_above_the_limit_are_refused(
    most_mib: int, scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(command: str, *words: str) -> str:
        if command == "install":
            names = ("pydantic", "typing-extensions")  # the second is there already
            entries = [{"metadata": {"name": name, "version": "9"}} for name in names]
            return json.dumps({"install": entries})
        assert words[-1] == "pydantic==9"
        (Path(words[words.index("--dest") + 1]) / "pydantic.whl").write_bytes(bytes(1 << 20))
        return ""

    monkeypatch.setattr(scripts.wheels, "pip", pip)
    monkeypatch.setattr(scripts.wheels, "MOST_MIB", most_mib)
    (tmp_path / "have.txt").write_text(THERE)
    arguments = ["--have", str(tmp_path / "have.txt"), "--to", str(tmp_path / "wheels")]
    done = CliRunner().invoke(scripts.wheels.main, arguments)
    assert done.exit_code == (0 if most_mib else 1)
    assert ("1 wheels, 1.0 MiB" if most_mib else "at most 0 are taken") in done.output
    assert (tmp_path / "wheels").exists() is bool(most_mib)

"""The commands ``verify`` and ``explain``: exit codes, one clear line, JSON alone on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from factories.commanding import PROGRAM, call, complaint

from harness.run import fleet as fleet_module
from harness.run.fleet import Fleet
from harness.verify import MutantResult, SelfTest, self_test
from harness.verify import workers as verdicts_module

SUBJECTS = """
import os
import signal
import time

import torch
from torch.nn import functional


def right(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def zeros(x, *arguments):
    return x.detach().clone().zero_()


def wrong(*arguments):
    return right(*arguments) + 1


def raising(*arguments):
    raise RuntimeError("never")


def crashing(*arguments):
    os.kill(os.getpid(), signal.SIGSEGV)


def exiting(*arguments):
    os._exit(7)


def hanging(*arguments):
    time.sleep(1000)


def printing(*arguments):
    print("I am no JSON")
    os.write(1, b"nor am I\\n")
    return right(*arguments)


def small_eps(x, normalized_shape, weight=None, bias=None, eps=1e-6):
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def declines_transposed(x, *arguments):
    if x.dim() > 1 and x.stride(-1) != 1:
        raise ValueError("give me rows")
    return right(x, *arguments)


class OfDepth(torch.nn.Module):
    def __init__(self, dim, depth, kind):
        super().__init__()
        assert (depth, kind) == (3, "pre")
        self.norm = torch.nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """One worker process for all tests, replaced if a target ends it."""
    with Fleet() as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def _one_fleet(shared: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lent() -> Iterator[Fleet]:
        yield shared

    monkeypatch.setattr(fleet_module, "Fleet", lent)
    monkeypatch.setattr(verdicts_module, "Fleet", lent)


@pytest.fixture
def implementations(tmp_path: Path) -> Path:
    path = tmp_path / "subjects.py"
    path.write_text(SUBJECTS)
    return path


QUICKLY = ("--quick", "--dtype", "float32", "--direction", "forward")


def verified(*arguments: str) -> Result:
    return call("verify", *QUICKLY, *arguments)


def test_a_wrong_and_a_crashing_target_exit_with_1_and_the_next_one_is_verified(
    implementations: Path,
) -> None:
    targets = [f"{implementations}:{name}" for name in ("wrong", "crashing", "right")]
    found = verified("--json", "--normalized-dims", "1", *targets)
    assert found.exit_code == 1
    wrong, crashed, right = json.loads(found.stdout)
    assert (wrong["passed"], crashed["outcome"], right["outcome"]) == (False, "wrong", "right")
    assert wrong["failed"] > 0
    assert wrong["findings"][0]["kind"] == "wrong"
    assert "verify_case" in wrong["reproduce"]
    assert {each["kind"] for each in crashed["findings"]} == {"crashed"}
    assert "SIGSEGV" in crashed["findings"][0]["text"]


def test_a_target_that_always_raises_exits_with_3(implementations: Path) -> None:
    found = verified(f"{implementations}:raising")
    assert found.exit_code == 3
    assert "RuntimeError: never" in " ".join(found.stdout.split())
    assert "Traceback" not in found.output


@pytest.fixture
def _interrupted(shared: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as the second target is being verified."""
    call, called = shared.call, list[object]()

    def until_the_second(function: Any, *others: Any) -> object:
        if function is verdicts_module.verify_in_worker:
            called.append(function)
            if len(called) == 2:
                raise KeyboardInterrupt
        return call(function, *others)

    monkeypatch.setattr(shared, "call", until_the_second)


@pytest.mark.usefixtures("_interrupted")
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_an_interruption_keeps_earlier_verdicts(
    implementations: Path, options: tuple[str, ...]
) -> None:
    found = verified(f"{implementations}:right", f"{implementations}:wrong", *options)
    assert found.exit_code == 130
    assert "1 of 2" in found.stderr.splitlines()[-1]
    if not options:
        assert f"{implementations}:right is a LayerNorm" in " ".join(found.stdout.split())
        return
    right, wrong = json.loads(found.stdout)
    assert (right["outcome"], right["ended"]) == ("right", "")
    assert (wrong["outcome"], wrong["ended"]) == ("not_verified", "was interrupted")


def test_standard_output_is_only_json_if_a_target_prints(implementations: Path) -> None:
    target = f"{implementations}:printing"
    options = (*QUICKLY, "--json", "--time-budget", "1.5s")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, "verify", *options, target],
        capture_output=True,
        text=True,
        check=False,
    )
    (verdict,) = json.loads(found.stdout)
    assert verdict["target"] == target
    assert "no JSON" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("nativ", "no implementation named 'nativ'; did you mean 'native'?"),
        ("json:decoder", "json:decoder: is of type module, not a function"),
        ("gone.py:f", "gone.py:f: cannot import: no file gone.py in "),
        ("native --device tpu", "device 'tpu' cannot be used: known are "),
    ],
)
def test_a_target_or_device_that_cannot_be_found_is_refused_in_one_line(
    arguments: str, line: str
) -> None:
    assert line in complaint("verify", *arguments.split())


def test_a_remark_exits_with_0_and_under_strict_with_1(implementations: Path) -> None:
    target = f"{implementations}:small_eps"
    relaxed = verified("--json", target)
    assert relaxed.exit_code == 0
    (verdict,) = json.loads(relaxed.stdout)
    assert [each["kind"] for each in verdict["findings"]] == ["default_eps"]
    assert verified("--strict", target).exit_code == 1
    assert verified("--strict", "native").exit_code == 0


def test_init_takes_literals_and_strings(implementations: Path) -> None:
    target = f"{implementations}:OfDepth"
    options = ("--json",)
    missing = verified(*options, target)
    assert missing.exit_code == 3
    (verdict,) = json.loads(missing.stdout)
    assert "--init 'depth=...' --init 'kind=...'" in verdict["findings"][0]["text"]
    given = verified(*options, "--init", "depth=3", "--init", "kind=pre", target)
    assert given.exit_code == 0, given.output


def test_a_time_budget_leaves_cases_out() -> None:
    found = verified("--json", "--time-budget", "0.05s", "native")
    (verdict,) = json.loads(found.stdout)
    assert verdict["left"] > 0
    assert verdict["wall_s"] < 30


@pytest.mark.parametrize(("is_found", "code"), [(True, 0), (False, 1)])
def test_the_self_test_exits_with_its_result(
    monkeypatch: pytest.MonkeyPatch, is_found: bool, code: int
) -> None:
    mutant = MutantResult(name="no_root", mistake="m", dtype="float32", is_found=is_found)
    result = SelfTest(mutants=(mutant,), rejected=())
    monkeypatch.setattr(self_test, "run_self_test", lambda on_line: result)
    as_text, as_json = call("verify", "--self-test"), call("verify", "--self-test", "--json")
    assert as_text.exit_code == as_json.exit_code == code
    assert ("no_root in float32" in as_text.stdout) is not is_found
    plain = json.loads(as_json.stdout)
    assert (plain["passed"], plain["mutants"][0]["is_found"]) == (is_found, is_found)


def test_a_row_is_explained_as_text_and_as_json() -> None:
    found = call("explain", "two_pass", "--shape", "4x8", "--row", "2")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("two_pass/forward/4x8/float32/normal: ok\nrow 2 of 4;")
    found = call("explain", "native", "--shape", "4x8", "--affine", "none", "--json")
    assert found.exit_code == 0, found.output
    explanation = json.loads(found.stdout)
    assert explanation["status"] == "ok"
    assert [each["name"] for each in explanation["steps"]] == [
        "mean", "variance", "rstd", "normalised", "y"
    ]  # fmt: skip


def test_a_row_that_should_be_nan_has_no_error_if_it_is_nan(implementations: Path) -> None:
    options = ("--shape", "8x16", "--distribution", "nan_row")
    right = _explained("native", *options)
    assert right["status"] == "ok"
    assert right["worst_ulp"] < 100
    (poisoned,) = (
        row
        for row in range(8)
        if _explained("native", *options, "--row", str(row))["steps"][-1]["exact"][0] is None
    )
    assert _explained("native", *options, "--row", str(poisoned))["worst_ulp"] == 0
    zeros = _explained(f"{implementations}:zeros", *options, "--row", str(poisoned))
    assert zeros["worst_ulp"] is None  # JSON knows no infinity


def _explained(*arguments: str) -> Any:
    return json.loads(call("explain", *arguments, "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("native --shape 4x8 --row 4", "row 4: x has rows 0 to 3"),
        ("native --shape 0x8", "there is no element to explain"),
        ("native --shape 4x8 --dtype float16 --distribution offset_1e6", "beyond the largest"),
    ],
)
def test_a_case_that_cannot_be_explained_is_refused_in_one_line(arguments: str, line: str) -> None:
    assert line in complaint("explain", *arguments.split())


@pytest.mark.parametrize(
    ("name", "words"), [("raising", "RuntimeError: never"), ("crashing", "ended by SIGSEGV")]
)
def test_a_call_without_a_result_is_refused_in_one_line(
    implementations: Path, name: str, words: str
) -> None:
    assert words in complaint("explain", f"{implementations}:{name}", "--shape", "4x8")

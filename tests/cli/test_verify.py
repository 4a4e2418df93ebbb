"""The commands ``verify`` and ``explain``: exit codes, one clear line, JSON alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from factories.commanding import answer, call, complaint

from harness.verify import MutantResult, SelfTest, verify_in_worker

QUICKLY = ("--quick", "--dtype", "float32", "--direction", "forward")


def verified(*arguments: str, code: int | None = None) -> Result:
    return call("verify", *QUICKLY, *arguments, code=code)


def verdicts(*arguments: str, code: int = 0) -> Any:
    return answer("verify", *QUICKLY, *arguments, code=code)


def kinds(verdict: Any) -> set[str]:
    return {finding["kind"] for finding in verdict["findings"]}


pytestmark = pytest.mark.usefixtures("worker")


def test_a_wrong_and_a_crashing_target_exit_with_1_and_the_next_one_is_verified(
    targets: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = (f"{targets}:{name}" for name in ("wrong", "crashes", "prints"))
    wrong, crashed, right = verdicts("--normalized-dims", "1", *given, code=1)
    assert capfd.readouterr().out == ""  # of a target, beside the JSON
    assert (wrong["passed"], crashed["outcome"], right["outcome"]) == (False, "wrong", "right")
    assert "verify_case" in wrong["reproduce"]
    assert kinds(crashed) == {"crashed"}


def test_an_interruption_keeps_earlier_verdicts(
    targets: Path, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_worker = worker.call

    def until_the_second(function: Any, request: Any, *others: Any) -> object:
        if function is verify_in_worker and request[0] == f"{targets}:wrong":
            raise KeyboardInterrupt
        return call_worker(function, request, *others)

    monkeypatch.setattr(worker, "call", until_the_second)
    right, wrong = verdicts(f"{targets}:right", f"{targets}:wrong", code=130)
    assert (right["outcome"], right["ended"]) == ("right", "")
    assert (wrong["outcome"], wrong["ended"]) == ("not_verified", "was interrupted")


def test_a_remark_exits_with_0_and_under_strict_with_1(targets: Path) -> None:
    (verdict,) = verdicts(f"{targets}:small_eps")
    assert kinds(verdict) == {"default_eps"}
    verified("--strict", f"{targets}:small_eps", code=1)


def test_init_takes_literals_and_strings(targets: Path) -> None:
    (verdict,) = verdicts(f"{targets}:OfDepth", code=3)
    assert "--init 'depth=...' --init 'kind=...'" in verdict["findings"][0]["text"]
    verdicts("--init", "depth=3", "--init", "kind=pre", f"{targets}:OfDepth")


def test_a_time_budget_leaves_cases_out() -> None:
    # whether so few cases are enough to tell depends on the machine
    (verdict,) = json.loads(verified("--json", "--time-budget", "0.05s", "native").stdout)
    assert verdict["left"] > 0


@pytest.mark.parametrize(("is_found", "code"), [(True, 0), (False, 1)])
def test_the_self_test_exits_with_its_result(
    monkeypatch: pytest.MonkeyPatch, is_found: bool, code: int
) -> None:
    mutant = MutantResult(name="no_root", mistake="m", dtype="float32", is_found=is_found)
    result = SelfTest(mutants=(mutant,), rejected=())
    monkeypatch.setattr("harness.verify.self_test.run_self_test", lambda on_line: result)
    assert ("no_root in float32" in call("verify", "--self-test").stdout) is not is_found
    assert answer("verify", "--self-test", code=code)["passed"] is is_found


# --- explain -------------------------------------------------------------------------------------


def test_a_row_is_explained_as_text_and_as_json() -> None:
    found = call("explain", "two_pass", "--shape", "4x8", "--row", "2", code=0)
    assert found.stdout.startswith("two_pass/forward/4x8/float32/normal: ok\nrow 2 of 4;")
    explanation = answer("explain", "native", "--shape", "4x8", "--affine", "none")
    steps = [step["name"] for step in explanation["steps"]]
    assert steps == ["mean", "variance", "rstd", "normalised", "y"]


def test_a_row_that_should_be_nan_has_no_error_if_it_is_nan(targets: Path) -> None:
    def explained(target: str, *row: str) -> Any:
        options = ("--shape", "8x16", "--distribution", "nan_row")
        return answer("explain", target, *options, *row)

    rows = [explained("native", "--row", str(row)) for row in range(8)]
    (poisoned,) = (row for row in rows if row["steps"][-1]["exact"][0] is None)
    assert poisoned["worst_ulp"] == 0
    zeros = explained(f"{targets}:zeros", "--row", str(poisoned["row"]))
    assert zeros["worst_ulp"] is None  # JSON knows no infinity


def test_a_call_without_a_result_is_refused_in_one_line(targets: Path) -> None:
    assert "ended by SIGSEGV" in complaint("explain", f"{targets}:crashes", "--shape", "4x8")

"""What a verification finds, what follows from it, and the state of the process after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.small_catalogue import Plan
from factories.verdict_examples import EXAMPLES
from factories.verify_targets import layer_norm, mutant, quick, raising, then
from torch import Tensor

import implementations
from harness.records import Case, Direction, Finding, RemarkKind, Severity, Status, remark
from harness.records.finding import OF_NATIVE
from harness.report.assertion import assert_layer_norm
from harness.verify import (
    Count,
    Outcome,
    Verdict,
    VerifyOptions,
    verify_case,
    verify_target,
)
from implementations import TargetError, UnsupportedError

pytestmark = pytest.mark.usefixtures("small_catalogue")

FORWARD = (Direction.FORWARD,)
RIGHT, WRONG, NOT_VERIFIED = Outcome.RIGHT, Outcome.WRONG, Outcome.NOT_VERIFIED


def watched(target: Any, on_case: Callable[[Case], None], **options: Any) -> Verdict:
    chosen = VerifyOptions(quick=True, dtypes=("float32",), **options)
    return verify_target(target, chosen, on_case=on_case)


def one_nan(y: Tensor) -> Tensor:
    spoiled = torch.zeros_like(y)
    if y.numel():
        spoiled.view(-1)[-1] = float("nan")
    return y + spoiled


RAISING = raising(RuntimeError("not today"))
DECLINING = raising(UnsupportedError("not today"))
THIRTY_ONE = raising(IndexError("thirty-one"), lambda x: x.shape[-1] == 31)
CHOOSY = raising(UnsupportedError("32 and 33 alone"), lambda x: x.shape[-1] not in {32, 33})
NO_HALVES = raising(KeyError(torch.float16), lambda x: x.dtype is torch.float16)
BOTH = ("float32", "float16")


@pytest.mark.parametrize(
    ("target", "dtypes", "outcome", "severity", "words"),
    [
        (layer_norm, (), RIGHT, None, ""),
        (then(one_nan), (), WRONG, Severity.WRONG, "y"),
        (then(Tensor.double), (), WRONG, Severity.WRONG, "y has dtype"),
        (mutant("detached"), (), WRONG, Severity.WRONG, "without gradient"),
        (RAISING, (), NOT_VERIFIED, Severity.LIMIT, "RuntimeError: not today"),
        (DECLINING, (), NOT_VERIFIED, Severity.LIMIT, "not today"),
        (CHOOSY, (), NOT_VERIFIED, Severity.LIMIT, "32 and 33 alone"),
        (THIRTY_ONE, (), RIGHT, Severity.REMARK, "IndexError: thirty-one"),
        (NO_HALVES, BOTH, RIGHT, Severity.LIMIT, "KeyError"),
    ],
)
def test_a_target_gets_its_verdict(
    target: Any, dtypes: tuple[str, ...], outcome: Outcome, severity: Severity | None, words: str
) -> None:
    verdict = quick(target, *dtypes, fail_fast=True)
    assert verdict.outcome is outcome
    if severity is None:
        assert [own for own in verdict.findings if own.kind not in OF_NATIVE] == []
    else:
        assert any(words in finding.text for finding in verdict.of(severity))
    if outcome is RIGHT:
        assert [count.is_verified for count in verdict.counts] == [True, False][: len(dtypes) or 1]
    assert (verdict.scope is None) is (target in {RAISING, DECLINING})


def test_a_wrong_backward_is_right_without_gradients() -> None:
    assert quick(mutant("detached"), directions=FORWARD, fail_fast=True).passed


def test_the_numbers_of_a_verdict_add_up(small_catalogue: Plan) -> None:
    seen: list[Case] = []
    verdict = watched("one_pass", seen.append)
    planned = small_catalogue(implementations.find("one_pass"), 2, ("float32",), "cpu")
    assert verdict.passed
    assert verdict.out_of_guarantee > 0
    assert verdict.cases == verdict.ok + verdict.out_of_guarantee + verdict.failed
    assert verdict.cases + sum(finding.evidence[1] for finding in verdict.declined) >= len(planned)
    assert {own.case for own in planned} <= {*seen}
    assert [(own.dtype, own.meets) for own in verdict.grades] == [("float32", "one_pass (tree)")]


def test_failing_fast_stops_at_the_first_failure() -> None:
    verdict = quick(mutant("unbiased_variance"), fail_fast=True)
    assert verdict.failed == 1
    assert verdict.grades == verdict.of(Severity.CAUSE) == ()


def test_assert_layer_norm_raises_for_a_remark_only_if_strict() -> None:
    options: Any = {"quick": True, "dtypes": ("float32",), "directions": FORWARD}
    assert_layer_norm(THIRTY_ONE, **options)
    with pytest.raises(AssertionError, match="IndexError: thirty-one"):
        assert_layer_norm(THIRTY_ONE, strict=True, **options)
    with pytest.raises(
        AssertionError, match=r"(?s)not verified.*RuntimeError: not today(?!.*--verbose)"
    ):
        assert_layer_norm(RAISING, **options)


@pytest.mark.parametrize("target", ["torch.nn:LayerNorm", implementations.native, layer_norm])
def test_targets_are_names_and_objects(target: Any) -> None:
    trial = verify_case(target, (3, 5), direction="backward")
    assert (trial.status, trial.case.direction) == (Status.OK, Direction.BACKWARD)


@pytest.mark.parametrize("target", ["json:nope", "json:decoder"])
def test_a_target_that_names_nothing_or_cannot_be_called_is_refused(target: Any) -> None:
    with pytest.raises(TargetError):
        quick(target)


def test_the_number_of_threads_is_restored_after_an_interruption() -> None:
    def interrupt(case: Case) -> None:
        raise KeyboardInterrupt

    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt):
        watched(layer_norm, interrupt)
    assert torch.get_num_threads() == 2


def test_gradients_are_verified_under_no_grad() -> None:
    with torch.no_grad():
        assert not quick(mutant("detached"), fail_fast=True).passed
        assert not torch.is_grad_enabled()


# --- what follows from the findings of a verdict -------------------------------------------------

EXAMPLE = EXAMPLES["right"]
VIOLATION = Finding("y_shares_no_memory", Severity.WRONG, "so", ("float16",))
REMARK, OF_NATIVE_TOO = (remark(kind, "so") for kind in (RemarkKind.RAISES, RemarkKind.ROWS_OF_ONE))
RAISES = Finding("autograd", Severity.RAISES, "x is frozen", evidence=("so", 1))
INACCURATE = Finding("column_sums", Severity.INACCURATE, "so", ("float32",))
FAILED = Count(dtype="float32", ok=8, failed=1)
DECLINED = Count(dtype="float16", declined=9)
INTERRUPTED = {"ended": "was interrupted"}


@pytest.mark.parametrize(
    ("changes", "outcome", "is_accepted_if_strict"),
    [
        ({}, RIGHT, True),
        ({"counts": (DECLINED, *EXAMPLE.counts)}, RIGHT, True),
        ({"findings": (REMARK,)}, RIGHT, False),
        ({"findings": (OF_NATIVE_TOO,)}, RIGHT, True),
        ({"findings": (RAISES,)}, RIGHT, False),
        ({"findings": (INACCURATE,)}, Outcome.INACCURATE, False),
        ({"findings": (INACCURATE, VIOLATION)}, WRONG, False),
        ({"counts": (FAILED,)}, WRONG, False),
        (INTERRUPTED, NOT_VERIFIED, False),
        ({"counts": (Count(dtype="float32", ok=1, declined=1),)}, NOT_VERIFIED, False),
    ],
)
def test_the_outcome_follows_from_the_findings(
    changes: dict[str, Any], outcome: Outcome, is_accepted_if_strict: bool
) -> None:
    verdict = replace(EXAMPLE, **changes)
    assert verdict.outcome is outcome
    assert verdict.passed is verdict.is_accepted(strict=False) is (outcome is RIGHT)
    assert verdict.is_accepted(strict=True) is is_accepted_if_strict


def test_dtypes_are_wrong_by_a_case_or_by_a_contract_check() -> None:
    right = [Count(dtype="float32", ok=1), Count(dtype="float16", ok=1)]
    others = [Count(dtype="float64", ok=2, failed=1), Count(dtype="bfloat16")]
    verdict = replace(EXAMPLE, counts=(*right, *others), findings=(VIOLATION,))
    assert verdict.wrong_dtypes == ("float16", "float64")
    assert verdict.right_dtypes == ("float32",)


def test_the_line_that_reproduces_names_unusual_settings_and_options() -> None:
    assert EXAMPLE.reproduce is None
    failed = replace(EXAMPLES["wrong"], options=", options=CallOptions(eps=0.5)")
    assert failed.reproduce == (
        "from layernorm_bench import CallOptions, verify_case; "
        "print(verify_case('norms.py:norm', shape=(5, 64), direction='backward', "
        "options=CallOptions(eps=0.5)))"
    )

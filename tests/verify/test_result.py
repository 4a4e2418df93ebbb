"""The outcome of a verdict follows from its findings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.verdict_examples import EXAMPLES

from harness.records.finding import Finding, RemarkKind, Severity, remark
from harness.verify.case_results import Count
from harness.verify.result import Outcome

RIGHT, WRONG = EXAMPLES["right"], EXAMPLES["wrong"]
VIOLATION = Finding("y_shares_no_memory", Severity.WRONG, "so", ("float16",))
REMARK = remark(RemarkKind.RAISES, "so")
RAISES = Finding("autograd", Severity.RAISES, "x is frozen", evidence=("so", 1))
INACCURATE = Finding("column_sums", Severity.INACCURATE, "so", ("float32",))
FAILED = Count(dtype="float32", ok=8, failed=1)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.RIGHT),
        ({"counts": (FAILED,)}, Outcome.WRONG),
        ({"findings": (VIOLATION,)}, Outcome.WRONG),
        ({"counts": (Count(dtype="float32", out_of_guarantee=9),)}, Outcome.NOT_VERIFIED),
        ({"counts": (Count(dtype="float32", ok=1, declined=1),)}, Outcome.NOT_VERIFIED),
        ({"ended": "was interrupted"}, Outcome.NOT_VERIFIED),
        ({"ended": "was interrupted", "counts": (FAILED,)}, Outcome.WRONG),
        ({"left": 3}, Outcome.RIGHT),
        ({"findings": (REMARK,)}, Outcome.RIGHT),
        ({"findings": (RAISES,)}, Outcome.RIGHT),
        ({"findings": (INACCURATE,)}, Outcome.INACCURATE),
        ({"findings": (INACCURATE, VIOLATION)}, Outcome.WRONG),
        ({"findings": (INACCURATE,), "ended": "was interrupted"}, Outcome.NOT_VERIFIED),
    ],
)
def test_the_outcome_follows_from_the_findings(
    changes: dict[str, object], outcome: Outcome
) -> None:
    verdict = replace(RIGHT, **changes)  # type: ignore[arg-type]
    assert verdict.outcome is outcome
    assert verdict.passed is (outcome is Outcome.RIGHT)
    assert verdict.is_wrong is (outcome is Outcome.WRONG)


@pytest.mark.parametrize(
    ("findings", "is_accepted", "is_accepted_if_strict"),
    [
        ((), True, True),
        ((REMARK,), True, False),
        ((RAISES,), True, False),
        ((INACCURATE,), False, False),
        ((VIOLATION,), False, False),
    ],
)
def test_strict_accepts_neither_remarks_nor_calls_that_raise(
    findings: tuple[Finding, ...], is_accepted: bool, is_accepted_if_strict: bool
) -> None:
    verdict = replace(RIGHT, findings=findings)
    assert verdict.is_accepted(strict=False) is is_accepted
    assert verdict.is_accepted(strict=True) is is_accepted_if_strict


def test_one_verified_dtype_is_enough() -> None:
    unanswered = Count(dtype="float16", declined=9)
    assert replace(RIGHT, counts=(unanswered, *RIGHT.counts)).passed


def test_dtypes_are_wrong_by_a_case_or_by_a_contract_check() -> None:
    counts = (
        Count(dtype="float32", ok=1),
        Count(dtype="float16", ok=1),
        Count(dtype="float64", ok=2, failed=1),
        Count(dtype="bfloat16"),
    )
    verdict = replace(RIGHT, counts=counts, findings=(VIOLATION,))
    assert verdict.wrong_dtypes == ("float16", "float64")
    assert verdict.right_dtypes == ("float32",)
    inaccurate = replace(INACCURATE, dtypes=("float32", "float16"))
    verdict = replace(verdict, findings=(VIOLATION, inaccurate))
    assert (verdict.inaccurate_dtypes, verdict.right_dtypes) == (("float32",), ())


def test_a_right_verdict_has_nothing_to_reproduce() -> None:
    assert RIGHT.reproduce is None


def test_the_line_that_reproduces_names_only_unusual_settings() -> None:
    assert WRONG.reproduce == (
        "from layernorm_bench import verify_case; "
        "print(verify_case('norms.py:norm', shape=(5, 64), direction='backward'))"
    )


def test_the_line_that_reproduces_holds_the_call_options() -> None:
    verdict = replace(WRONG, options=", options=CallOptions(eps=0.5)")
    assert verdict.reproduce == (
        "from layernorm_bench import CallOptions, verify_case; print(verify_case('norms.py:norm', "
        "shape=(5, 64), direction='backward', options=CallOptions(eps=0.5)))"
    )

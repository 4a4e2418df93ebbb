"""The outcome of a verdict follows from its findings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from verdict_examples import EXAMPLES

from harness.verify.findings import Count, Extent, Outcome, Remark, RemarkKind, Violation

RIGHT, WRONG = EXAMPLES["right"], EXAMPLES["wrong"]
VIOLATION = Violation(check="y_shares_no_memory", dtype="float16", text="so")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.LAYER_NORM),
        ({"failed": 1}, Outcome.WRONG),
        ({"violations": (VIOLATION,)}, Outcome.WRONG),
        ({"ok": 0}, Outcome.NOT_VERIFIED),
        ({"extents": (Extent(dtype="float32", answered=1, declined=1),)}, Outcome.NOT_VERIFIED),
        ({"ended": "was interrupted"}, Outcome.NOT_VERIFIED),
        ({"ended": "was interrupted", "failed": 1}, Outcome.WRONG),
        ({"left": 3}, Outcome.LAYER_NORM),
        ({"remarks": (Remark(kind=RemarkKind.RAISES, text="so"),)}, Outcome.LAYER_NORM),
    ],
)
def test_the_outcome_follows_from_the_findings(
    changes: dict[str, object], outcome: Outcome
) -> None:
    verdict = replace(RIGHT, **changes)  # type: ignore[arg-type]
    assert verdict.outcome is outcome
    assert verdict.passed is (outcome is Outcome.LAYER_NORM)
    assert verdict.is_wrong is (outcome is Outcome.WRONG)


def test_one_verified_dtype_is_enough() -> None:
    unanswered = Extent(dtype="float16", answered=0, declined=9)
    assert replace(RIGHT, extents=(unanswered, *RIGHT.extents)).passed


def test_dtypes_are_wrong_by_a_case_or_by_a_contract_check() -> None:
    dtypes = ("float32", "float16", "float64", "bfloat16")
    verdict = replace(
        RIGHT,
        extents=tuple(
            Extent(dtype=each, answered=int(each != "bfloat16"), declined=0) for each in dtypes
        ),
        counts=(Count(dtype="float64", cases=3, failed=1),),
        violations=(VIOLATION,),
    )
    assert verdict.wrong_dtypes == ("float16", "float64")
    assert verdict.right_dtypes == ("float32",)


def test_a_right_verdict_has_nothing_to_reproduce() -> None:
    assert RIGHT.reproduce is None


def test_the_line_that_reproduces_names_only_unusual_settings() -> None:
    assert WRONG.reproduce == (
        "from harness.verify import verify_case; "
        "print(verify_case('norms.py:norm', shape=(5, 64), direction='backward'))"
    )


def test_the_line_that_reproduces_holds_the_call_options() -> None:
    verdict = replace(WRONG, options=", options=CallOptions(eps=0.5)")
    assert verdict.reproduce == (
        "from harness.verify import CallOptions, verify_case; print(verify_case('norms.py:norm', "
        "shape=(5, 64), direction='backward', options=CallOptions(eps=0.5)))"
    )

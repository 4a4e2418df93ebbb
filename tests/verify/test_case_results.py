"""Cases are counted by how they ended, and the outcome follows from what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.verdict_examples import EXAMPLES

from harness.numerics.inaccuracy import Inaccuracy
from harness.records import Case, Finding, RemarkKind, Severity, Status, remark
from harness.run.attempt import Judged
from harness.verify import Outcome
from harness.verify.case_results import CaseResults, Count

CASE = Case(implementation="target", shape=(3, 1000))
CATCHES = "a mistake"
RUNNING, STATISTICS = Inaccuracy.RUNNING_SUMS, Inaccuracy.STATISTICS


def trial(
    status: Status, dtype: str = "float32", kind: Inaccuracy | None = None, rows: int = 3
) -> Judged:
    case = replace(CASE, dtype=dtype, param_dtype=dtype, shape=(rows, 1000))
    return Judged(case=case, status=status, reason="so", explained_by={"y": kind} if kind else {})


def results(*trials: Judged) -> CaseResults:
    made = CaseResults()
    for number, judged in enumerate(trials):
        made.add(replace(judged, case=replace(judged.case, seed=number)), CATCHES)
    return made


def ended(found: CaseResults, *dtypes: str) -> list[tuple[int, int, int, int, int]]:
    counts = found.counts(dtypes)
    return [
        (own.ok, own.out_of_guarantee, own.inaccurate, own.failed, own.declined) for own in counts
    ]


def kinds(found: CaseResults, severity: Severity) -> list[str]:
    return [finding.kind for finding in found.findings() if finding.severity is severity]


def test_cases_are_counted_by_how_they_ended() -> None:
    found = results(
        trial(Status.OK), trial(Status.OUT_OF_GUARANTEE), trial(Status.WRONG), trial(Status.ERROR)
    )
    assert ended(found, "float32", "float64") == [(1, 1, 0, 1, 1), (0, 0, 0, 0, 0)]


def test_a_case_that_raises_is_declined() -> None:
    found = results(trial(Status.ERROR), trial(Status.UNSUPPORTED), trial(Status.OUT_OF_MEMORY))
    assert kinds(found, Severity.LIMIT)[:3] == ["raised", "declined", "declined"]
    assert found.failures == []


def test_a_crash_is_a_failure() -> None:
    assert kinds(results(trial(Status.CRASHED)), Severity.WRONG) == [Status.CRASHED]


def test_the_smallest_200_failures_are_kept_with_what_they_catch() -> None:
    many = results(*(trial(Status.WRONG, rows=rows) for rows in range(299, 0, -1)))
    assert [finding.evidence.case.rows for finding in many.findings()] == list(range(1, 201))
    assert {finding.evidence.catches for finding in many.findings()} == {CATCHES}
    assert ended(many, "float32") == [(0, 0, 0, 299, 0)]


def test_each_reason_of_inaccurate_cases_is_named() -> None:
    found = results(
        trial(Status.INACCURATE, "bfloat16", STATISTICS),
        trial(Status.INACCURATE, "bfloat16", RUNNING),
    )
    assert kinds(found, Severity.INACCURATE) == [STATISTICS, RUNNING]
    assert ended(found, "bfloat16") == [(0, 0, 2, 0, 0)]
    assert found.failures == []


@pytest.mark.parametrize("output", ["dweight", "dbias"])
def test_sums_over_the_rows_show_in_dbias(output: str) -> None:
    columns = replace(
        trial(Status.INACCURATE, "bfloat16"), explained_by={output: Inaccuracy.COLUMN_SUMS}
    )
    found = results(trial(Status.INACCURATE, "bfloat16", STATISTICS), columns)
    named = [Inaccuracy.COLUMN_SUMS] if output == "dbias" else []
    assert kinds(found, Severity.INACCURATE) == [*named, STATISTICS]


def test_a_dtype_with_a_wrong_case_has_no_reason_of_inaccurate_ones() -> None:
    explained = trial(Status.INACCURATE, "float64", RUNNING)
    found = results(trial(Status.INACCURATE, "float32", RUNNING), trial(Status.WRONG), explained)
    assert [own.dtypes for own in found.findings() if own.severity is Severity.INACCURATE] == [
        ("float64",)
    ]
    assert len(found.failures) == 1
    assert ended(found, "float32", "float64") == [(0, 0, 1, 1, 0), (0, 0, 1, 0, 0)]


def test_a_result_that_is_rounded_again_is_right_with_a_remark() -> None:
    found = results(trial(Status.OK, "bfloat16", Inaccuracy.ROUNDED_AGAIN))
    (remark,) = found.findings()
    assert (remark.kind, remark.severity) == (RemarkKind.ROUNDED_AGAIN, Severity.REMARK)
    assert remark.text == "rounds y more than once in bfloat16"


def test_a_target_that_is_wrong_for_several_axes_alone_is_right_on_the_last() -> None:
    found = results(trial(Status.OK), trial(Status.WRONG))
    assert not found.is_right_on_last_axis
    several = replace(CASE, shape=(3, 10, 100), normalized_dims=2)
    found = results(trial(Status.OK), Judged(case=several, status=Status.WRONG, reason="far off"))
    assert found.is_right_on_last_axis
    assert not results(trial(Status.OK)).is_right_on_last_axis


# === The outcome of a verdict follows from its findings


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

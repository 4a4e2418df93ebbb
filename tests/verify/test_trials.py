"""What follows from the cases that were tried: counts, findings, calls that raise, and time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from harness.numerics.inaccuracy import Inaccuracy
from harness.records import Affine, Autograd, Case, Direction, Finding, RemarkKind, Severity, Status
from harness.run import Judged
from harness.verify import Count, verification
from harness.verify.case_results import CaseResults
from harness.verify.raises import merged, raises
from harness.verify.verification import TimeBudget

CASE = Case(implementation="target", shape=(3, 1000))
CATCHES = "a mistake"
RUNNING, STATISTICS = Inaccuracy.RUNNING_SUMS, Inaccuracy.STATISTICS
COLUMNS = Inaccuracy.COLUMN_SUMS
REASON = "RuntimeError: size 3"


def trial(status: Status, dtype: str = "float32", **explained_by: Inaccuracy) -> Judged:
    case = replace(CASE, dtype=dtype, param_dtype=dtype)
    return Judged(case=case, status=status, reason=REASON, explained_by=explained_by)


def results(*trials: Judged) -> CaseResults:
    made = CaseResults()
    for number, judged in enumerate(trials):
        made.add(replace(judged, case=replace(judged.case, seed=number)), CATCHES)
    return made


OK, WRONG = trial(Status.OK), trial(Status.WRONG)
inaccurate = partial(trial, Status.INACCURATE)


@pytest.mark.parametrize(
    ("trials", "counts", "kinds"),
    [
        (
            (OK, trial(Status.OUT_OF_GUARANTEE), WRONG, trial(Status.ERROR)),
            [Count(dtype="float32", ok=1, out_of_guarantee=1, failed=1, declined=1)],
            ["wrong: wrong", "limit: raised", f"remark: {RemarkKind.RAISES}"],
        ),
        (
            (trial(Status.UNSUPPORTED), trial(Status.OUT_OF_MEMORY), trial(Status.CRASHED)),
            [Count(dtype="float32", failed=1, declined=2)],
            ["wrong: crashed", "limit: declined", "limit: declined"],
        ),
        (
            (inaccurate(y=STATISTICS), inaccurate(y=RUNNING)),
            [Count(dtype="float32", inaccurate=2)],
            [f"inaccurate: {STATISTICS}", f"inaccurate: {RUNNING}"],
        ),
        # sums over the rows show in dbias; dweight is explained by the statistics, too
        (
            (inaccurate(y=STATISTICS), inaccurate(dbias=COLUMNS)),
            [Count(dtype="float32", inaccurate=2)],
            [f"inaccurate: {COLUMNS}", f"inaccurate: {STATISTICS}"],
        ),
        # a dtype with a wrong case has no reason of inaccurate ones
        (
            (inaccurate(y=RUNNING), WRONG, inaccurate("float64", y=RUNNING)),
            [
                Count(dtype="float32", inaccurate=1, failed=1),
                Count(dtype="float64", inaccurate=1),
            ],
            ["wrong: wrong", f"inaccurate: {RUNNING}"],
        ),
    ],
)
def test_cases_are_counted_and_named_by_how_they_ended(
    trials: tuple[Judged, ...], counts: list[Count], kinds: list[str]
) -> None:
    found = results(*trials)
    assert [*found.counts(tuple(count.dtype for count in counts))] == counts
    assert sorted(f"{own.severity}: {own.kind}" for own in found.findings()) == sorted(kinds)


def test_the_smallest_200_failures_are_kept_with_what_they_catch() -> None:
    cases = [replace(CASE, shape=(rows, 1000)) for rows in range(299, 0, -1)]
    kept = [*results(*(replace(WRONG, case=case) for case in cases)).findings()]
    assert [own.evidence.case.rows for own in kept] == [*range(1, 201)]
    assert {own.evidence.catches for own in kept} == {CATCHES}


def test_a_target_may_be_right_on_the_last_axis_alone() -> None:
    several = replace(WRONG, case=replace(CASE, shape=(3, 10, 100), normalized_dims=2))
    assert results(OK, several).is_right_on_last_axis
    assert not results(OK, WRONG).is_right_on_last_axis


# --- calls that raise ----------------------------------------------------------------------------

FROZEN = {"autograd": Autograd.FROZEN_PARAMETERS}
LIKE_MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "x is frozen": ({"autograd": Autograd.FROZEN_X},),
    "weight is frozen": ({"autograd": Autograd.FROZEN_WEIGHT}, FROZEN),
    "dy is transposed": ({"layout": "sequence_first"}, {"grad_output": "transposed_normal"}),
    "x is transposed": ({"layout": "sequence_first"}, {"layout": "transposed"}),
    "no bias is given": ({"affine": Affine.WEIGHT},),
}
AXES = [{}, *(axes for several in LIKE_MODELS.values() for axes in several)]
BACKWARD = replace(CASE, direction=Direction.BACKWARD)
CALLS_OF_MODELS = list(
    dict.fromkeys(replace(BACKWARD, seed=seed, **axes) for seed in range(4) for axes in AXES)
)


def raised_in(*raising: dict[str, Any], dtype: str = "float32") -> list[Finding]:
    """Return what is said of a target that raises for any of the values on axes."""
    made = CaseResults()
    for case in CALLS_OF_MODELS:
        is_raised = any(
            all(getattr(case, axis) == value for axis, value in axes.items()) for axes in raising
        )
        status = Status.ERROR if is_raised else Status.OK
        tried = replace(case, dtype=dtype, param_dtype=dtype)
        made.add(Judged(case=tried, status=status, reason=REASON), CATCHES)
    return [own for own in made.findings() if own.severity is not Severity.LIMIT]


@pytest.mark.parametrize(("text", "raising"), LIKE_MODELS.items())
def test_a_call_of_models_that_raises_is_named(
    text: str, raising: tuple[dict[str, Any], ...]
) -> None:
    (finding,) = raised_in(*raising)
    assert (finding.severity, finding.text) == (Severity.RAISES, text)
    assert finding.dtypes == ("float32",)
    assert finding.evidence[0] == REASON


@pytest.mark.parametrize(
    ("raising", "dtype", "text"),
    [
        ({"seed": 1}, "float32", "raises in 8 cases of 32, such as an x of 3x1000, with gradients"),
        ({}, "float16", "raises in 32 cases of 32, such as an x of 3x1000, with gradients"),
    ],
    ids=["no call of models", "all of a dtype"],
)
def test_what_names_no_call_is_one_remark_with_the_plainest_case(
    raising: dict[str, Any], dtype: str, text: str
) -> None:
    (finding,) = raised_in(raising, dtype=dtype)
    assert (finding.severity, finding.kind) == (Severity.REMARK, RemarkKind.RAISES)
    assert (finding.text, finding.dtypes) == (f"{text} ({REASON})", (dtype,))


def test_one_error_is_named_once_in_the_best_known_call() -> None:
    call = raises("layout", "x is transposed", REASON, 1)
    again = raises("layout", "x is transposed", "RuntimeError: size 48", 2, ("float32",))
    by_check = raises("repeated_calls_agree", "it is called again", "RuntimeError: size 5", 1)
    other = Finding("column_sums", Severity.INACCURATE, "dbias is summed in bfloat16")
    (remark,) = raised_in({"seed": 1})
    assert merged((remark, other, by_check, call, again)) == (
        raises("layout", "x is transposed", REASON, 3, ("float32",)),
        other,
    )


def test_the_cause_is_the_type_and_the_first_words() -> None:
    reason = f"ValueError: {'a' * 20} {'b' * 40}"
    (_, remark) = results(replace(trial(Status.ERROR), reason=reason)).findings()
    assert remark.text.endswith(f"(ValueError: {'a' * 20}...)")


# --- time: a case's is predicted from earlier cases, by rows and by elements ---------------------

SMALL = replace(CASE, shape=(64, 64))
LARGE = replace(CASE, shape=(6400, 640))


def budget_after(*tried: tuple[Case, float], budget_s: float | None = None) -> TimeBudget:
    budget = TimeBudget(budget_s)
    for case, implementation_s in tried:
        budget.add(Judged(case=case, status=Status.OK, implementation_s=implementation_s))
    return budget


@pytest.mark.parametrize(
    ("tried", "case", "is_too_slow"),
    [
        ([(SMALL, 20.0)], replace(SMALL, shape=(32, 64)), False),
        ([(SMALL, 20.0)], replace(SMALL, shape=(128, 64)), True),
        # compilation in the first call is forgotten after the next
        ([(SMALL, 20.0), (SMALL, 1e-6)], LARGE, False),
    ],
)
def test_a_case_that_would_take_over_half_a_minute_is_too_slow(
    tried: list[tuple[Case, float]], case: Case, is_too_slow: bool
) -> None:
    assert budget_after(*tried).is_too_slow(case) is is_too_slow


def test_a_case_of_more_than_is_left_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(verification, "monotonic", lambda: now_s[0])
    budget = budget_after((SMALL, 1.0), budget_s=10.0)
    assert not budget.is_too_slow(SMALL)
    now_s[0] = 9.5
    assert budget.left_s == 0.5
    assert budget.is_too_slow(SMALL)

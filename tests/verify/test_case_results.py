"""Cases are counted by how they ended, and by whether running sums explain the failures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import running_sums

from harness.records import Affine, Autograd, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity
from harness.run.attempt import Judged
from harness.verify.case_results import CaseResults, running_sum_declarations
from harness.verify.raises import cause, merged, raises, raises_in
from implementations import Algorithm, adopt

CASE = Case(implementation="target", shape=(3, 1000))
PLAIN = adopt(running_sums.two_passes, "plain")
DECLARATIONS = running_sum_declarations(PLAIN)
CATCHES = "a mistake"


@dataclass
class Again:
    """A wrong case, and its outputs judged by other declarations."""

    judged: Judged
    by: dict[Algorithm, Judged]


def trial(status: Status, dtype: str = "float32", **axes: int) -> Judged:
    shape = (axes.get("rows", 3), 1000)
    return Judged(case=replace(CASE, dtype=dtype, shape=shape), status=status, reason="so it is")


def wrong(dtype: str = "float32", **again: Status) -> Again:
    """A wrong case, with its status by the bounds of other declarations."""
    case = replace(CASE, dtype=dtype)
    by = {Algorithm(name): Judged(case=case, status=status) for name, status in again.items()}
    return Again(Judged(case=case, status=Status.WRONG, reason="far off"), by)


def results(*trials: Judged | Again) -> CaseResults:
    made = CaseResults(declarations=DECLARATIONS)
    for number, trial in enumerate(trials):
        judged = trial if isinstance(trial, Judged) else trial.judged
        case = replace(judged.case, seed=number)
        made.add(replace(judged, case=case), CATCHES)
        if isinstance(trial, Again):
            made.again[case] = trial.by
    return made


def ended(found: CaseResults, *dtypes: str) -> list[tuple[int, int, int, int]]:
    counts = found.counts(dtypes)
    return [(own.ok, own.out_of_guarantee, own.failed, own.declined) for own in counts]


def test_cases_are_counted_by_how_they_ended() -> None:
    found = results(
        trial(Status.OK), trial(Status.OUT_OF_GUARANTEE), trial(Status.WRONG), trial(Status.ERROR)
    )
    assert ended(found, "float32", "float64") == [(1, 1, 1, 1), (0, 0, 0, 0)]


def test_a_case_that_raises_is_declined() -> None:
    found = results(trial(Status.ERROR), trial(Status.UNSUPPORTED), trial(Status.OUT_OF_MEMORY))
    assert [finding.kind for finding in found.findings()][:3] == ["raised", "declined", "declined"]
    assert found.unexplained == []


def test_a_crash_is_a_failure() -> None:
    (finding,) = results(trial(Status.CRASHED)).findings()
    assert (finding.kind, finding.severity) == (Status.CRASHED, Severity.WRONG)


def test_the_smallest_200_failures_are_kept_with_what_they_catch() -> None:
    many = results(*(trial(Status.WRONG, rows=rows) for rows in range(299, 0, -1)))
    assert [finding.evidence.case.rows for finding in many.findings()] == list(range(1, 201))
    assert {finding.evidence.catches for finding in many.findings()} == {CATCHES}
    assert ended(many, "float32") == [(0, 0, 299, 0)]


def test_a_case_without_a_bound_for_running_sums_is_out_of_guarantee() -> None:
    both = {"two_pass": Status.OUT_OF_GUARANTEE, "welford": Status.OUT_OF_GUARANTEE}
    found = results(wrong(**both), wrong(two_pass=Status.OK, welford=Status.OK))
    assert (ended(found, "float32"), found.unexplained) == ([(1, 1, 0, 0)], [])
    assert found.right_dtypes == ("float32",)


def test_the_strictest_declaration_that_explains_all_is_taken() -> None:
    both = wrong(two_pass=Status.OK, welford=Status.OK)
    found = results(both, wrong("float64", welford=Status.OK), both)
    dtypes = ("float32", "float64")
    assert [finding.dtypes for finding in found.findings()] == [dtypes]
    assert {found.declaration_for(PLAIN, dtype).algorithm for dtype in dtypes} == {
        Algorithm.WELFORD
    }


def test_a_dtype_without_failures_is_held_to_the_declaration() -> None:
    found = results(wrong(two_pass=Status.OK), trial(Status.OK, "float64"))
    assert found.declaration_for(PLAIN, "float64") is PLAIN
    assert found.declaration_for(PLAIN, "float32").algorithm is Algorithm.TWO_PASS


def test_one_case_that_no_declaration_explains_leaves_all_of_its_dtype_failed() -> None:
    explained = wrong("float64", two_pass=Status.OK)
    found = results(wrong(two_pass=Status.OK, welford=Status.OK), wrong(), explained)
    assert [finding.dtypes for finding in found.findings()][-1] == ("float64",)
    assert len(found.unexplained) == 2
    assert ended(found, "float32", "float64") == [(0, 0, 2, 0), (1, 0, 0, 0)]
    assert found.right_dtypes == ("float64",)


def test_a_declaration_leaves_no_other_bounds() -> None:
    assert running_sum_declarations(replace(PLAIN, declared=True)) == ()


LIKE_MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "x is frozen": ({"autograd": Autograd.FROZEN_X},),
    "weight is frozen": (
        {"autograd": Autograd.FROZEN_WEIGHT},
        {"autograd": Autograd.FROZEN_PARAMETERS},
    ),
    "bias is frozen": (
        {"autograd": Autograd.FROZEN_BIAS},
        {"autograd": Autograd.FROZEN_PARAMETERS},
    ),
    "weight and bias are frozen": ({"autograd": Autograd.FROZEN_PARAMETERS},),
    "x is the output of another layer": ({"autograd": Autograd.NON_LEAF_X},),
    "dy is expanded, as in y.sum().backward()": ({"grad_output": "expanded_ones"},),
    "dy is transposed": ({"layout": "sequence_first"}, {"grad_output": "transposed_normal"}),
    "dy is a slice of another tensor": ({"grad_output": "strided_normal"},),
    "x is transposed": ({"layout": "sequence_first"}, {"layout": "transposed"}),
    "x is a slice of another tensor": ({"layout": "every_second"},),
    "no bias is given": ({"affine": Affine.WEIGHT},),
    "no weight is given": ({"affine": Affine.BIAS},),
}
_AXES = [{}, *(axes for several in LIKE_MODELS.values() for axes in several)]
CALLS_OF_MODELS = list(
    dict.fromkeys(
        replace(CASE, direction=Direction.BACKWARD, seed=seed, **axes)
        for seed in range(4)
        for axes in _AXES
    )
)


@pytest.mark.parametrize(("text", "raising"), LIKE_MODELS.items())
def test_a_call_of_models_that_raises_is_named(
    text: str, raising: tuple[dict[str, Any], ...]
) -> None:
    (finding,) = raises_in([ended_in(case, *raising) for case in CALLS_OF_MODELS])
    assert (finding.severity, finding.text) == (Severity.RAISES, text)
    assert finding.dtypes == ("float32",)
    assert finding.evidence[0] == "RuntimeError: size 3"


def ended_in(case: Case, *raising: dict[str, Any]) -> Judged:
    """Return the result of a target that raises for any of the values on axes."""
    is_raised = any(
        all(getattr(case, axis) == value for axis, value in axes.items()) for axes in raising
    )
    status = Status.ERROR if is_raised else Status.OK
    return Judged(case=case, status=status, reason="RuntimeError: size 3")


def test_what_raises_in_no_call_of_models_is_one_remark_with_the_plainest_case() -> None:
    found = [ended_in(case, {"seed": 1}) for case in CALLS_OF_MODELS]
    (finding,) = raises_in(found)
    assert (finding.severity, finding.kind) == (Severity.REMARK, RemarkKind.RAISES)
    assert finding.text == (
        "raises in 14 cases of 56, such as an x of 3x1000, with gradients, seed=1 "
        "(RuntimeError: size 3)"
    )


def test_a_dtype_in_which_all_raises_names_no_call() -> None:
    halves = [replace(case, dtype="float16") for case in CALLS_OF_MODELS]
    (finding,) = raises_in([ended_in(case, {}) for case in halves])
    assert (finding.severity, finding.dtypes) == (Severity.REMARK, ("float16",))


def test_one_error_is_named_once_in_the_best_known_call() -> None:
    call = raises("layout", "x is transposed", "RuntimeError: size 3", 1)
    again = raises("layout", "x is transposed", "RuntimeError: size 48", 2, ("float32",))
    by_check = raises("repeated_calls_agree", "it is called again", "RuntimeError: size 5", 1)
    other = Finding("column_sums", Severity.INACCURATE, "dbias is summed in bfloat16")
    (remark,) = raises_in([ended_in(CASE, {})])
    assert merged((remark, other, by_check, call, again)) == (
        raises("layout", "x is transposed", "RuntimeError: size 3", 3, ("float32",)),
        other,
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssertionError: ", "AssertionError"),
        ("TypeError: no halves", "TypeError: no halves"),
        (f"ValueError: {'a' * 20} {'b' * 40}", f"ValueError: {'a' * 20}..."),
        (f"RuntimeError: {'a' * 80}", "RuntimeError"),
        (
            "needs a hidden size that is a multiple of 32, not 33",
            "needs a hidden size that is a multiple of...",
        ),
    ],
)
def test_the_cause_is_the_type_and_the_first_words(reason: str, words: str) -> None:
    assert cause(reason) == words
    assert len(words) <= 48


def test_a_target_that_is_wrong_for_several_axes_alone_is_right_on_the_last() -> None:
    found = results(trial(Status.OK), wrong())
    assert not found.is_right_on_last_axis
    several = replace(CASE, shape=(3, 10, 100), normalized_dims=2)
    found = results(trial(Status.OK), Judged(case=several, status=Status.WRONG, reason="far off"))
    assert found.is_right_on_last_axis
    assert not results(trial(Status.OK)).is_right_on_last_axis

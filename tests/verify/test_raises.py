"""Calls that raise: those that models make are named, others are one remark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.records import Affine, Autograd, Case, Direction, Finding, RemarkKind, Severity, Status
from harness.run.attempt import Judged
from harness.verify.raises import cause, merged, raises, raises_in

CASE = Case(implementation="target", shape=(3, 1000))

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
        "raises in 14 cases of 56, such as an x of 3x1000, with gradients (RuntimeError: size 3)"
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

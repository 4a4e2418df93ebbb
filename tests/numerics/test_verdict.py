"""From error figures to a status and a reason."""

from __future__ import annotations

from math import inf, nan

import pytest

from harness.numerics.bounds import guarantee_of
from harness.numerics.verdict import verdict_of
from harness.records import Case, Errors, OutputErrors, Status
from implementations import find

CASE = Case(implementation="two_pass", shape=(2, 64))
GUARANTEE = guarantee_of(find("two_pass"), CASE)


def output(
    name: str = "y",
    *,
    bound_ratio: float | None = 0.5,
    scaled_max_ulp: float = 1.25,
    nonfinite: int = 0,
    vacuous: int = 0,
) -> OutputErrors:
    return OutputErrors(
        output=name,
        elements=128,
        unexpected_nonfinite=nonfinite,
        scaled_max_ulp=scaled_max_ulp,
        scaled_p99_ulp=1.0,
        scaled_mean_ulp=None if nonfinite else 0.5,
        raw_max_ulp=scaled_max_ulp,
        max_abs=1e-6,
        normwise_ratio=1e-7,
        bound_ratio=bound_ratio,
        vacuous_elements=vacuous,
    )


def judged(*outputs: OutputErrors) -> tuple[Status, str]:
    errors = Errors(
        outputs=outputs,
        condition_max_ratio=12345.0,
        rho_min_ratio=1.0,
        mean_error_ratio=None,
        rstd_error_ratio=None,
        algorithm="two_pass",
        reduction="tree",
        accumulate_dtype="float32",
        oracle="double_double",
    )
    return verdict_of(errors, CASE, GUARANTEE)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_within_the_bound_is_ok_and_needs_no_reason(ratio: float) -> None:
    assert judged(output(bound_ratio=ratio)) == (Status.OK, "")


@pytest.mark.parametrize("ratio", [1.0000001, 7.0, inf, nan])
def test_beyond_the_bound_is_wrong_and_so_is_nan(ratio: float) -> None:
    status, reason = judged(output(bound_ratio=ratio))
    assert status is Status.WRONG
    assert reason


def test_one_wrong_output_is_enough() -> None:
    status, reason = judged(output(), output("dx"), output("dbias", bound_ratio=2.0))
    assert status is Status.WRONG
    assert reason.startswith("dbias is")


def test_every_wrong_output_is_named() -> None:
    _, reason = judged(output(bound_ratio=3.0), output("dx"), output("dweight", bound_ratio=2.0))
    assert [part.split()[0] for part in reason.split("; ")] == ["y", "dweight"]


def test_wrong_says_by_how_much_and_what_was_allowed() -> None:
    _, reason = judged(output(bound_ratio=7.25, scaled_max_ulp=31.5))
    assert reason == (
        "y is 31.5 ulp off, 7.25 times what two_pass with float32 statistics may lose"
    )


@pytest.mark.parametrize("name", ["y", "dweight"])
def test_an_error_where_the_exact_value_is_zero_is_told_as_it_is(name: str) -> None:
    # an ulp of 0 is the smallest number: 1e42 of them say nothing
    _, reason = judged(output(name, bound_ratio=6.68, scaled_max_ulp=1.19e42))
    assert reason == (
        f"{name} is 1e-06 off, 6.68 times what two_pass with float32 statistics may lose"
    )


def test_an_error_of_the_size_of_the_value_is_in_ulp() -> None:
    _, reason = judged(output(bound_ratio=7.0, scaled_max_ulp=2.0**25))
    assert reason.startswith("y is 3.36e+07 ulp off")


def test_wrong_says_how_many_elements_are_not_finite() -> None:
    _, reason = judged(output(bound_ratio=inf, scaled_max_ulp=inf, nonfinite=5))
    assert reason == "y: 5 of 128 elements are NaN or infinite where the exact value is finite"


def test_nothing_promised_is_not_a_pass() -> None:
    status, reason = judged(output(bound_ratio=None, vacuous=128, scaled_max_ulp=400.0))
    assert status is Status.OUT_OF_GUARANTEE
    limit = GUARANTEE.condition_limit(CASE.hidden)
    assert reason == (
        "two_pass with float32 statistics promises nothing beyond condition "
        f"{limit:.3g}, and this reaches 1.23e+04: y is 400 ulp off"
    )


def test_nothing_promised_for_one_element_is_not_a_pass() -> None:
    assert judged(output(vacuous=1))[0] is Status.OUT_OF_GUARANTEE


def test_out_of_guarantee_says_how_many_elements_are_not_finite() -> None:
    vacuous = output(bound_ratio=None, vacuous=128, scaled_max_ulp=inf, nonfinite=128)
    _, reason = judged(vacuous)
    assert reason.endswith("128 of 128 elements of y are not finite")


def test_out_of_guarantee_tells_of_the_worst_output() -> None:
    _, reason = judged(
        output(bound_ratio=None, vacuous=128, scaled_max_ulp=2.0),
        output("dx", bound_ratio=None, vacuous=128, scaled_max_ulp=900.0),
    )
    assert reason.endswith("dx is 900 ulp off")


def test_wrong_wins_over_out_of_guarantee() -> None:
    status, reason = judged(
        output(bound_ratio=None, vacuous=128, scaled_max_ulp=1e6), output("dx", bound_ratio=1.5)
    )
    assert status is Status.WRONG
    assert "promises nothing" not in reason


def test_an_output_wrong_in_its_bounded_part_is_wrong_though_the_rest_is_vacuous() -> None:
    assert judged(output(bound_ratio=1.5, vacuous=100))[0] is Status.WRONG

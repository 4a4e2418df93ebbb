"""From error figures to a status and a reason."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import pytest
from factories.golden import assert_golden

from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import verdict_of
from harness.records import Case, Errors, OutputErrors, Status
from implementations import find

CASE = Case(implementation="two_pass", shape=(2, 64))
GUARANTEE = error_bound_of(find("two_pass"), CASE)


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


def judged(*outputs: OutputErrors, condition: float = 1234567.0) -> tuple[Status, str]:
    errors = Errors(
        outputs=outputs,
        condition_max_ratio=condition,
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
    assert judged(output(bound_ratio=ratio))[0] is Status.WRONG


NOTHING = output(bound_ratio=None, vacuous=128, scaled_max_ulp=2.0)


@pytest.mark.parametrize(
    ("outputs", "status"),
    [
        ((output(), output("dx"), output("dbias", bound_ratio=2.0)), Status.WRONG),
        ((output(bound_ratio=1.5, vacuous=100),), Status.WRONG),
        ((NOTHING, output("dx", bound_ratio=1.5)), Status.WRONG),
        ((NOTHING,), Status.OUT_OF_GUARANTEE),
        ((output(vacuous=1),), Status.OUT_OF_GUARANTEE),
        ((NOTHING, output("dx")), Status.OUT_OF_GUARANTEE),
    ],
    ids=[
        "one wrong output",
        "wrong where bounded, vacuous elsewhere",
        "wrong wins",
        "vacuous",
        "vacuous for one element",
        "vacuous for one output",
    ],
)
def test_the_worst_output_decides(outputs: tuple[OutputErrors, ...], status: Status) -> None:
    assert judged(*outputs)[0] is status


def test_the_reason_names_the_outputs_their_errors_and_the_limit() -> None:
    cases = {
        "wrong": [output(bound_ratio=7.25, scaled_max_ulp=31.5)],
        "two wrong": [output(bound_ratio=3.0), output("dx"), output("dweight", bound_ratio=2.0)],
        "wrong by twice its size": [output(bound_ratio=7.0, scaled_max_ulp=2.0**25)],
        # an ulp of 0 is the smallest number: 1e42 of them say nothing
        "wrong where y is 0": [output(bound_ratio=6.68, scaled_max_ulp=1.19e42)],
        "wrong where dweight is 0": [output("dweight", bound_ratio=6.68, scaled_max_ulp=1.19e42)],
        "wrong and not finite": [output(bound_ratio=inf, scaled_max_ulp=inf, nonfinite=5)],
        "vacuous": [NOTHING],
        "vacuous, dx the worst": [
            NOTHING,
            output("dx", bound_ratio=None, vacuous=128, scaled_max_ulp=900.0),
        ],
        "vacuous and not finite": [
            output(bound_ratio=None, vacuous=128, scaled_max_ulp=inf, nonfinite=128)
        ],
    }
    lines = [f"{name}: {judged(*outputs)[1]}" for name, outputs in cases.items()]
    lines.append(f"vacuous by an overflow: {judged(NOTHING, condition=1.03)[1]}")
    assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "reasons.txt")

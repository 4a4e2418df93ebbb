"""Errors of small cases whose errors are known, and what they are judged to be."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite, nan, sqrt
from typing import Any

import pytest
import torch
from factories.golden import assert_golden
from factories.verify_targets import every_dtype
from torch import Tensor

from harness.cases import Inputs, make_inputs
from harness.numerics import (
    OUTPUTS,
    BoundRatio,
    Outputs,
    Reference,
    bits_of,
    copies_of,
    error_bound_of,
    fill_free_memory,
    incomplete_output,
    measure_errors,
    verdict_of,
)
from harness.records import Case, Direction, Errors, OutputErrors, Status
from implementations import find

TWO_PASS = find("two_pass")
COMB = [[1.0, -1.0, 1.0, -1.0], [2.0, -2.0, 2.0, -2.0]]
"""Mean 0 and deviation 1 or 2: with eps = 0 the exact y is +-1, in every dtype."""


def comb(dtype: str = "float32", **changes: Any) -> tuple[Case, Inputs, Outputs]:
    """Return a case of these rows, with dy = 1, its inputs but for ``changes``, and exact outputs.

    The exact dx is 0, dweight the sum of y, dbias 2.
    """
    case = Case(implementation="two_pass", shape=(2, 4), dtype=dtype, param_dtype=dtype, eps=0.0)
    x = torch.tensor(COMB, dtype=getattr(torch, dtype))
    inputs = Inputs(x=x, weight=torch.ones_like(x[0]), bias=torch.zeros_like(x[0]), dy=x / x)
    y = x.sign()
    outputs = Outputs(y=y, dx=torch.zeros_like(x), dweight=y.sum(0), dbias=torch.full_like(x[0], 2))
    case = replace(case, direction=Direction.BACKWARD)
    return case, replace(inputs, **changes), outputs


def measured(case: Case, inputs: Inputs, outputs: Outputs) -> Errors:
    bound = error_bound_of(TWO_PASS, case)
    return measure_errors(outputs, inputs, case, bound, Reference(inputs, case))


every_output = pytest.mark.parametrize("output", OUTPUTS)
ELEMENTS = {"y": 8, "dx": 8, "dweight": 4, "dbias": 4}


def output_errors(output: str = "y", elements: int = 128, **figures: Any) -> OutputErrors:
    """Return the errors of an exact output, but for some figures."""
    exact: dict[str, Any] = {
        **{"unexpected_nonfinite": 0, "vacuous_elements": 0, "bound_ratio": 0.0, "max_abs": 0.0},
        **dict.fromkeys(("scaled_max_ulp", "scaled_p99_ulp", "scaled_mean_ulp"), 0.0),
        **dict.fromkeys(("raw_max_ulp", "normwise_ratio"), 0.0),
    }
    return OutputErrors(output=output, elements=elements, **exact | figures)


def by_output(case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, OutputErrors]:
    return {found.output: found for found in measured(case, inputs, outputs).outputs}


def of_y(y: Tensor, **changes: Tensor) -> OutputErrors:
    """Return the errors of a y of the float32 comb."""
    case, inputs, _ = comb(**changes)
    case = replace(case, shape=tuple(inputs.x.shape), direction=Direction.FORWARD)
    (found,) = measured(case, replace(inputs, dy=None), Outputs(y)).outputs
    return found


def exact_y() -> Tensor:
    return torch.tensor(COMB).sign()


# --- errors that are known -----------------------------------------------------------------------


@every_dtype
def test_an_exact_output_has_no_error(dtype: str) -> None:
    expected = {output: output_errors(output, ELEMENTS[output]) for output in OUTPUTS}
    assert by_output(*comb(dtype)) == expected


@every_dtype
@every_output
def test_three_ulp_off_is_measured_as_three_ulp(output: str, dtype: str) -> None:
    case, inputs, outputs = comb(dtype)
    computed = getattr(outputs, output)
    scale = 2 if output in {"dweight", "dbias"} else 1
    error = 3 * scale * torch.finfo(computed.dtype).eps
    computed.view(-1)[0] += error
    errors = by_output(case, inputs, outputs)
    found = errors.pop(output)
    assert (found.scaled_max_ulp, found.scaled_p99_ulp, found.max_abs) == (3, 3, error)
    assert found.scaled_mean_ulp == 3 / ELEMENTS[output]
    assert errors == {name: output_errors(name, ELEMENTS[name]) for name in errors}
    if output == "y":
        assert (found.raw_max_ulp, found.normwise_ratio) == (3, error / 2)  # the norm of four ones


@pytest.mark.parametrize(
    ("bias", "error", "scaled_ulp", "raw_ulp"),
    [
        (4.0, -3 * 2.0**-21, 3, 6),  # of the bias 4; the element is 3, with half the spacing
        (-1.0, 2.0**-23, 1, 2.0**126),  # of the weight; the element is 0
    ],
)
def test_an_error_counts_in_ulp_of_the_row_but_raw_in_ulp_of_the_element(
    bias: float, error: float, scaled_ulp: float, raw_ulp: float
) -> None:
    y = exact_y() + bias
    y[0, 0 if bias < 0 else 1] += error
    found = of_y(y, bias=torch.full((4,), bias))
    assert (found.scaled_max_ulp, found.raw_max_ulp) == (scaled_ulp, raw_ulp)


def test_an_error_of_dweight_counts_in_ulp_of_the_row_where_the_normalised_x_is_zero() -> None:
    case, inputs, outputs = comb(x=torch.tensor([[0.0, 0.0, 3.0, -3.0]]), dy=torch.ones(1, 4))
    dweight = torch.tensor([3 * 2.0**-23, 0.0, 2**0.5, -(2**0.5)])
    outputs = replace(outputs, dx=outputs.dx[:1], dweight=dweight, dbias=outputs.dbias / 2)
    errors = by_output(replace(case, shape=(1, 4)), inputs, replace(outputs, y=dweight[None]))
    assert (errors["dweight"].scaled_max_ulp, errors["dbias"].scaled_max_ulp) == (3, 0)


@every_dtype
@every_output
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_an_output_that_is_not_finite_is_infinitely_wrong(
    output: str, bad: float, dtype: str
) -> None:
    case, inputs, outputs = comb(dtype)
    getattr(outputs, output).view(-1)[-1] = bad
    errors = by_output(case, inputs, outputs)
    figures = ("scaled_max_ulp", "raw_max_ulp", "max_abs", "normwise_ratio", "bound_ratio")
    found = errors.pop(output)
    assert [getattr(found, name) for name in figures] == [inf] * len(figures)
    assert (found.unexpected_nonfinite, found.scaled_mean_ulp) == (1, None)
    assert {other.bound_ratio for other in errors.values()} == {0}


@pytest.mark.parametrize("bad", [(nan, 7.0), (7.0, nan)])
def test_nan_in_one_block_does_not_hide_an_error_in_another(bad: tuple[float, float]) -> None:
    x = torch.tensor(COMB).repeat(1, 10_000)  # each row is a block
    ones = torch.ones(40_000)
    y = x.sign()
    y[:, 0] = torch.tensor(bad)
    found = of_y(y, x=x, weight=ones, bias=0 * ones)
    assert (found.unexpected_nonfinite, found.bound_ratio) == (1, inf)


def test_nan_is_right_only_where_the_exact_result_is_nan() -> None:
    x, y = torch.tensor(COMB), exact_y()
    x[0, 0] = nan
    assert of_y(y, x=x).scaled_max_ulp == inf
    y[0] = nan
    assert of_y(y, x=x) == output_errors(elements=8)


def test_the_percentile_leaves_out_one_element_in_a_hundred() -> None:
    x = torch.tensor(COMB[:1]).repeat(250, 1)
    y = x.sign()
    y[:10, 0] += 5 * 2.0**-23
    assert of_y(y, x=x).scaled_p99_ulp == 0
    y[10, 0] += 5 * 2.0**-23
    assert of_y(y, x=x).scaled_p99_ulp == 5


@pytest.mark.parametrize(
    ("rows", "vacuous", "ratio"), [([[1e6] * 4, COMB[0]], 4, 0), ([[1e6] * 4] * 2, 8, None)]
)
def test_elements_without_a_guarantee_are_counted_and_not_bounded(
    rows: list[list[float]], vacuous: int, ratio: float | None
) -> None:
    case, inputs, _ = comb(x=torch.tensor(rows), dy=None)
    y = torch.where(inputs.x == 1e6, 0.0, inputs.x)
    case = replace(case, eps=1e-10, direction=Direction.FORWARD)
    found = by_output(case, inputs, Outputs(y))["y"]
    assert found.vacuous_elements == vacuous
    assert found.bound_ratio == (None if ratio is None else pytest.approx(ratio, abs=1))


@pytest.mark.parametrize(
    ("rows", "condition"),
    [
        ([[2.0, 4, 2, 4], [1.0, -1, 1, -1]], sqrt(1 + 3**2 / 1)),
        ([[1.0] * 4] * 2, inf),
        ([[0.0] * 4] * 2, 1.0),  # zero alone is well conditioned where it is constant
    ],
)
def test_the_condition_is_that_of_the_rows(rows: list[list[float]], condition: float) -> None:
    case, inputs, outputs = comb(x=torch.tensor(rows))
    found = measured(replace(case, eps=3.0), inputs, outputs).condition_max_ratio
    assert found == pytest.approx(condition, rel=1e-12)


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty_outputs_are_right(shape: tuple[int, int], dtype: str, direction: Direction) -> None:
    case = Case(implementation="", shape=shape, dtype=dtype, param_dtype=dtype, direction=direction)
    x = make_inputs(case).x
    columns = torch.zeros(shape[1], dtype=x.dtype)
    outputs = Outputs(x) if direction is Direction.FORWARD else Outputs(x, x, columns, columns)
    errors = measured(case, make_inputs(case), outputs)
    assert verdict_of(errors, case, error_bound_of(TWO_PASS, case)) == (Status.OK, "")
    assert {found.scaled_mean_ulp for found in errors.outputs} == {0}
    assert all(isfinite(found.scaled_max_ulp) for found in errors.outputs)


@every_dtype
def test_a_column_without_gradient_does_not_hide_a_wrong_one(dtype: str) -> None:
    # where dy is 0 dbias and its bound in float64 are exactly 0, and 0/0 is NaN
    case, inputs, outputs = comb(dtype)
    inputs.dy[:, 0] = 0
    outputs.dbias[:2] = torch.tensor([0.0, 77.0])
    found = by_output(case, inputs, outputs)["dbias"].bound_ratio
    assert found > 1


def test_a_column_without_gradient_must_be_exactly_zero() -> None:
    case, inputs, outputs = comb("float64")
    inputs.dy[:, 0] = 0
    assert by_output(case, inputs, outputs)["dbias"].bound_ratio == inf  # it says 2 there


@pytest.mark.parametrize("missing", [["weight"], ["bias"], ["weight", "bias"]])
def test_only_gradients_of_existing_parameters_are_compared(missing: list[str]) -> None:
    case, inputs, outputs = comb(**dict.fromkeys(missing))
    outputs = replace(outputs, **{f"d{parameter}": None for parameter in missing})
    found = by_output(case, inputs, outputs)
    assert [*found] == [name for name in OUTPUTS if name[1:] not in missing]
    assert {errors.scaled_max_ulp for errors in found.values()} == {0}


@pytest.mark.parametrize(
    ("computed", "exact", "bound", "ratio", "nonfinite", "vacuous"),
    [
        (inf, 65_000.0, 600.0, 0, 0, 0),  # a value within the bound overflows, too
        (-inf, -65_000.0, 600.0, 0, 0, 0),
        (inf, 65_000.0, 400.0, inf, 1, 0),
        (-inf, 65_000.0, 600.0, inf, 1, 0),
        (nan, 65_000.0, 600.0, inf, 1, 0),
        (inf, 1.0, inf, None, 1, 1),
        (1.5, 1.0, 0.25, 2, 0, 0),
        (1.0, nan, inf, inf, 0, 0),
    ],
)
def test_an_infinity_is_right_where_a_value_within_the_bound_is_beyond_float16(
    computed: float, exact: float, bound: float, ratio: float | None, nonfinite: int, vacuous: int
) -> None:
    found = BoundRatio("dx", torch.float16)
    value, high, low, allowed = torch.tensor([[[computed]], [[exact]], [[0]], [[bound]]]).double()
    found.add(value, (high, low), allowed)
    figures = found.bound_ratio, found.unexpected_nonfinite, found.vacuous_elements
    assert figures == (ratio, nonfinite, vacuous)


# --- from errors to a verdict --------------------------------------------------------------------

CASE = Case(implementation="two_pass", shape=(2, 64))
NOTHING = output_errors(bound_ratio=None, vacuous_elements=128, scaled_max_ulp=2.0)


def judged(*outputs: OutputErrors, condition: float = 1234567.0) -> tuple[Status, str]:
    errors = replace(measured(*comb()), outputs=outputs, condition_max_ratio=condition)
    return verdict_of(errors, CASE, error_bound_of(TWO_PASS, CASE))


def off(ratio: float | None, output: str = "y", vacuous: int = 0) -> OutputErrors:
    return output_errors(output, bound_ratio=ratio, vacuous_elements=vacuous)


@pytest.mark.parametrize(
    ("outputs", "status"),
    [
        *(((off(ratio),), Status.OK) for ratio in (0.0, 0.5, 1.0)),
        *(((off(ratio),), Status.WRONG) for ratio in (1.0000001, 7.0, inf, nan)),
        ((off(0.5), off(0.5, "dx"), off(2.0, "dbias")), Status.WRONG),
        ((off(1.5, vacuous=100),), Status.WRONG),  # where there is a bound
        ((NOTHING, off(1.5, "dx")), Status.WRONG),
        ((NOTHING,), Status.OUT_OF_GUARANTEE),
        ((off(0.5, vacuous=1),), Status.OUT_OF_GUARANTEE),
        ((NOTHING, off(0.5, "dx")), Status.OUT_OF_GUARANTEE),
    ],
)
def test_the_worst_output_decides(outputs: tuple[OutputErrors, ...], status: Status) -> None:
    found, reason = judged(*outputs)
    assert found is status
    assert bool(reason) == (status is not Status.OK)


def test_the_reason_names_the_outputs_their_errors_and_the_limit() -> None:
    def wrong(ratio: float, ulp: float = 1.25, output: str = "y", **more: int) -> OutputErrors:
        figures = {"scaled_max_ulp": ulp, "max_abs": 1e-6, **more}
        return output_errors(output, bound_ratio=ratio, **figures)

    cases = {
        "wrong": [wrong(7.25, 31.5)],
        "two wrong": [wrong(3.0), off(0.5, "dx"), wrong(2.0, output="dweight")],
        "wrong by twice its size": [wrong(7.0, 2.0**25)],
        # an ulp of 0 is the smallest number: 1e42 of them say nothing
        "wrong where y is 0": [wrong(6.68, 1.19e42)],
        "wrong and not finite": [wrong(inf, inf, unexpected_nonfinite=5)],
        "vacuous": [NOTHING],
        "vacuous, dx the worst": [NOTHING, replace(NOTHING, output="dx", scaled_max_ulp=900.0)],
        "vacuous and not finite": [
            replace(NOTHING, scaled_max_ulp=inf, scaled_mean_ulp=None, unexpected_nonfinite=128)
        ],
    }
    lines = [f"{name}: {judged(*outputs)[1]}" for name, outputs in cases.items()]
    lines.append(f"vacuous by an overflow: {judged(NOTHING, condition=1.03)[1]}")
    assert_golden("\n".join(lines), __file__, "reasons.txt")


# --- outputs that are not complete when a call returns -------------------------------------------


@every_dtype
def test_memory_that_was_never_written_is_found(dtype: str) -> None:
    like = torch.ones(61, 67, dtype=getattr(torch, dtype))
    fill_free_memory([like])
    # at most some of them get memory that was free before it was filled
    new = [Outputs(y=torch.empty_like(like)) for _ in range(9)]
    said = {incomplete_output(copies_of(outputs), outputs) for outputs in new}
    assert "y has elements that were never written: it returns uninitialised memory" in said


@every_dtype
@pytest.mark.parametrize("value", [nan, -nan, inf])
def test_written_values_are_complete_whatever_they_are(dtype: str, value: float) -> None:
    _, _, outputs = comb(dtype)
    outputs.y[1, 2] = value
    assert incomplete_output(copies_of(outputs), outputs) is None
    outputs.y[1] = (outputs.y[1] - value).amax()  # NaN by arithmetic, as a reduction gives it
    assert incomplete_output(copies_of(outputs), outputs) is None


@every_output
@pytest.mark.parametrize(("before", "after"), [(1.0, 9.0), (1.0, nan), (nan, 1.0)])
def test_an_output_that_changes_after_the_call_is_named(
    output: str, before: float, after: float
) -> None:
    _, _, outputs = comb()
    changing = getattr(outputs, output).view(-1)
    changing[-1] = before
    copies = copies_of(outputs)
    changing[-1] = after
    said = incomplete_output(copies, outputs) or ""
    assert said.startswith(f"{output} was still written after the call had returned")


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (torch.tensor([1.0, nan]), torch.tensor([1.0, nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.ones(1, 9)[:, ::9], torch.ones(1, 1), True),  # a stride that no element takes
        (torch.tensor([2 - 3j]).conj().imag, torch.tensor([3.0]), True),  # negated
    ],
)
def test_bits_are_those_of_the_values_in_order(one: Tensor, other: Tensor, is_equal: bool) -> None:
    assert torch.equal(bits_of(one), bits_of(other)) is is_equal

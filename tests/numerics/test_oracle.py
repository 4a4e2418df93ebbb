"""The exact references against rational arithmetic and closed forms, whole and in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf, nan

import pytest
import torch
from factories.exact import ExactLayerNorm, as_fraction, exact_layer_norm
from torch import Tensor

from harness.cases import DISTRIBUTIONS, Inputs, UnrepresentableError, make_inputs
from harness.numerics import oracle
from harness.numerics.oracle import ExactRows, Reference, double_double, twice_centred
from harness.records import Case, Direction

Oracle = Callable[..., ExactRows]

# Units of 2^-53: 13 were measured for the normalised value and 47 for dx up to a condition number
# of 1e12, and the inputs here reach 1e8.
TWICE_CENTRED_ERROR = Fraction(50, 2**53)

# Units of 2^-106: each result takes some ten operations of at most 8. The mean is off by as many
# units of itself, which the condition number turns into units of the deviations.
DOUBLE_DOUBLE_ERROR = Fraction(16, 2**106)

HIDDEN = (2, 3, 16, 17)  # even and odd, whole and broken trees


def drawn(distribution: str, dtype: str, hidden: int, eps: float) -> list[Tensor]:
    """x, weight, bias and dy of three rows as stored in ``dtype``, widened to float64."""
    case = Case(
        implementation="none",
        shape=(3, hidden),
        dtype=dtype,
        param_dtype=dtype,
        distribution=distribution,
        direction=Direction.BACKWARD,
        eps=eps,
    )
    return [tensor.double() for tensor in make_inputs(case).tensors]


def flat(rows: list[list[Fraction]]) -> list[Fraction]:
    return [value for row in rows for value in row]


def largest_error(
    pair: tuple[Tensor, Tensor] | None, exact: list[Fraction], scale: list[Fraction]
) -> Fraction:
    assert pair is not None
    found = as_fraction(*pair)
    # where the scale is 0 nothing may be off; any error there is larger than every tolerance
    return max(
        abs(f - e) / s if s else Fraction(f != e)
        for f, e, s in zip(found, exact, scale, strict=True)
    )


def largest_errors(
    found: ExactRows, exact: ExactLayerNorm, weight: Tensor, dy: Tensor
) -> dict[str, Fraction]:
    """Largest error of each output over the scale of its row or column."""
    rows, columns = range(len(exact.mean)), range(len(weight))
    sizes = [Fraction(value) for value in weight.abs().tolist()]
    rms = [Fraction(value) for value in (dy * weight).square().mean(-1).sqrt().tolist()]
    norms = {
        # the normalised value is off by a share of its row's size, 1, where it is near 0 too
        "dweight": dy.square().sum(0).sqrt().tolist(),
        "dbias": dy.square().sum(0).sqrt().tolist(),
    }
    y, dx = ([exact.y[i][j] for i in rows for j in columns], flat(exact.dx))
    return {
        "y": largest_error(
            found.y, y, [max(abs(exact.y[i][j]), sizes[j]) for i in rows for j in columns]
        ),
        "dx": largest_error(
            found.dx,
            dx,
            [max(abs(exact.dx[i][j]), exact.rstd[i] * rms[i]) for i in rows for j in columns],
        ),
        **{
            name: largest_error(
                getattr(found, name),
                getattr(exact, name),
                [
                    max(abs(e), Fraction(n))
                    for e, n in zip(getattr(exact, name), norms[name], strict=True)
                ],
            )
            for name in norms
        },
    }


def condition(exact: ExactLayerNorm, eps: float) -> Fraction:
    """Largest K^2 = (mean^2 + variance)/(variance + eps), rooted, and at least 1."""
    squares = (
        (m * m + v) / (v + Fraction(eps)) for m, v in zip(exact.mean, exact.variance, strict=True)
    )
    return max(Fraction(1), *(Fraction(float(square) ** 0.5) for square in squares))


def is_within_tolerance(
    function: Oracle, distribution: str, dtype: str, hidden: int, eps: float, tolerance: Fraction
) -> bool:
    x, weight, bias, dy = drawn(distribution, dtype, hidden, eps)
    exact = exact_layer_norm(x, weight, bias, eps, dy)
    is_of_condition = tolerance == DOUBLE_DOUBLE_ERROR
    allowed = tolerance * condition(exact, eps) if is_of_condition else tolerance
    errors = largest_errors(function(x, weight, bias, eps, dy), exact, weight, dy)
    return all(error <= allowed for error in errors.values())


def plain_two_pass(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dy: Tensor, start: int = 0
) -> ExactRows:
    """A two-pass in float64 without a second centring, which is not exact enough."""
    nothing = torch.zeros((), dtype=torch.float64)
    mean = x.mean(-1, keepdim=True)
    deviation = x - mean
    variance = deviation.square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    normalised = deviation * rstd
    scaled = dy * weight
    across = (scaled * normalised).mean(-1, keepdim=True)
    return ExactRows(
        start=start,
        stop=start + len(x),
        mean=mean,
        variance=variance,
        rstd=rstd,
        normalised=(normalised, nothing),
        y=(normalised * weight + bias, nothing),
        dx=(rstd * (scaled - scaled.mean(-1, keepdim=True) - normalised * across), nothing),
        dweight=((dy * normalised).sum(0, keepdim=True), nothing),
        dbias=(dy.sum(0, keepdim=True), nothing),
    )


# --- against rationals ---------------------------------------------------------------------------


# NaN and infinity are not rational; they have their own tests below
RATIONAL = [
    name for name in DISTRIBUTIONS if not name.endswith(("nan_row", "infinity_row", "nonfinite"))
]

# rows of one value; of sparse ones, short rows are all zero
CONSTANT = {"mixed_outliers", "onnxruntime_21935", "pytorch_108072", "pytorch_188372", "sparse"}


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("distribution", RATIONAL)
def test_double_double_is_exact_to_106_bits_and_the_condition(
    distribution: str, eps: float
) -> None:
    if eps == 0 and (distribution in CONSTANT or distribution.startswith("constant")):
        pytest.skip("0/0: there is no exact result")
    if distribution in {"square_overflow", "sum_overflow", "near_max"}:
        pytest.skip("dx is below 1e-290, where a float64 has no room for a low part")
    if distribution == "subnormal" and eps == 0:
        pytest.skip("dx is of the size of 1/sqrt(variance), beyond the largest float64")
    for hidden in HIDDEN:
        assert is_within_tolerance(
            double_double, distribution, "float64", hidden, eps, DOUBLE_DOUBLE_ERROR
        )


@pytest.mark.parametrize(
    ("dtype", "eps"),
    [("float32", 0.0), ("float32", 1e-5), ("bfloat16", 1e-5), ("float16", 1e-5)],
)
@pytest.mark.parametrize("distribution", RATIONAL)
def test_twice_centred_is_far_more_exact_than_the_dtypes_it_serves(
    distribution: str, dtype: str, eps: float
) -> None:
    for hidden in HIDDEN:
        try:
            good = is_within_tolerance(
                twice_centred, distribution, dtype, hidden, eps, TWICE_CENTRED_ERROR
            )
        except UnrepresentableError:
            pytest.skip(f"{dtype} cannot hold {distribution}")
        except ZeroDivisionError:  # the dtype rounded a whole row to one value, and eps is 0
            continue
        assert good


@pytest.mark.parametrize(
    ("function", "distribution", "dtype", "tolerance"),
    [
        (plain_two_pass, "normal", "float64", DOUBLE_DOUBLE_ERROR),
        (twice_centred, "normal", "float64", DOUBLE_DOUBLE_ERROR),
        (plain_two_pass, "offset_1e4", "float32", TWICE_CENTRED_ERROR),
    ],
)
def test_a_simpler_algorithm_is_not_exact_enough(
    function: Oracle, distribution: str, dtype: str, tolerance: Fraction
) -> None:
    assert not is_within_tolerance(function, distribution, dtype, 33, 1e-5, tolerance)


@pytest.mark.parametrize("function", [double_double, twice_centred])
def test_mean_variance_and_rstd_are_those_of_the_row(function: Oracle) -> None:
    x, weight, bias, dy = drawn("offset_1e2", "float32", 33, 1e-5)
    exact = exact_layer_norm(x, weight, bias, 1e-5, dy)
    found = function(x, weight, bias, 1e-5, dy)
    for name in ("mean", "variance", "rstd"):
        expected = [float(part) for part in getattr(exact, name)]
        # float64 once rounded, or a few times: these only scale errors and bounds
        assert getattr(found, name).flatten().tolist() == pytest.approx(expected, rel=1e-13)


# --- closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [3, 33, 1001])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_ulp_comb_has_its_closed_form(dtype: str, hidden: int) -> None:
    x = drawn("ulp_comb", dtype, hidden, 0.0)[0]
    ones, zeros = (torch.full((hidden,), value, dtype=torch.float64) for value in (1.0, 0.0))
    found = double_double(x, ones, zeros, 1e-5, None)
    c = 1 / torch.finfo(getattr(torch, dtype)).eps
    deviation = torch.ones(hidden, dtype=torch.float64)
    deviation[::2] = -1
    deviation[0] = 0
    assert (found.mean == c + 2).all()
    assert (found.variance == (hidden - 1) / hidden).all()
    # rounded to float64 once in each of: variance, sum, root, quotient
    torch.testing.assert_close(
        found.y[0][0], deviation / ((hidden - 1) / hidden + 1e-5) ** 0.5, rtol=4 * 2**-53, atol=0
    )


@pytest.mark.parametrize("function", [double_double, twice_centred])
def test_a_constant_row_gives_the_bias_and_no_dx_along_itself(function: Oracle) -> None:
    x, weight, bias, dy = drawn("constant", "float32", 33, 1e-5)
    found = function(x, weight, bias, 1e-5, dy)
    assert torch.equal(found.y[0], bias.expand(3, -1))
    assert not bool(found.dweight[0].any())


@pytest.mark.parametrize("function", [double_double, twice_centred])
def test_a_constant_row_without_eps_has_no_result(function: Oracle) -> None:
    x, weight, bias, _ = drawn("constant", "float64", 7, 0.0)
    assert bool(function(x, weight, bias, 0.0, None).y[0].isnan().all())


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("scale", [1e300, 1e150, 1e-150, 1e-300])
def test_double_double_neither_overflows_nor_underflows(scale: float, eps: float) -> None:
    _, weight, bias, dy = drawn("normal", "float64", 5, eps)
    x = torch.tensor([[3.0, -1.0, 4.0, -1.5, 9.0]] * 3, dtype=torch.float64) * scale
    exact = exact_layer_norm(x, weight, bias, eps, dy)
    found = double_double(x, weight, bias, eps, dy)
    error = largest_error(
        found.y, flat(exact.y), [Fraction(abs(value)) for value in weight.tolist()] * 3
    )
    assert error <= DOUBLE_DOUBLE_ERROR * condition(exact, eps)
    assert found.dx is not None
    expected = [float(value) for value in flat(exact.dx)]
    # dx of the largest x is some 1e-300, where the low part is no longer a normal number
    assert found.dx[0].flatten().tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("function", [double_double, twice_centred])
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_row_that_is_not_finite_has_no_finite_y_and_affects_no_other_row(
    function: Oracle, bad: float
) -> None:
    x, weight, bias, dy = drawn("normal", "float64", 16, 1e-5)
    clean = function(x, weight, bias, 1e-5, dy)
    x[1, 3] = bad
    found = function(x, weight, bias, 1e-5, dy)
    assert not bool(found.y[0][1].isfinite().any())
    for name in ("y", "dx", "normalised"):
        after, before = getattr(found, name)[0], getattr(clean, name)[0]
        assert torch.equal(after[[0, 2]], before[[0, 2]])


# === The exact result of a case, block by block, kept or computed again


def joined(reference: Reference) -> dict[str, Tensor]:
    blocks = list(reference)
    rows = {name: torch.cat([getattr(block, name)[0] for block in blocks]) for name in ("y", "dx")}
    sums = {
        name: torch.cat([getattr(block, name)[0] for block in blocks]).sum(0)
        for name in ("dweight", "dbias")
    }
    return rows | sums


@pytest.fixture(params=["float32", "float64"])
def many_rows(request: pytest.FixtureRequest) -> tuple[Inputs, Case]:
    case = Case(
        implementation="none",
        shape=(5, 4, 9),
        dtype=request.param,
        distribution="uniform",
        direction=Direction.BACKWARD,
    )
    return make_inputs(case), case


def test_many_small_blocks_give_what_one_large_block_gives(
    many_rows: tuple[Inputs, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Reference(*many_rows)
    monkeypatch.setattr(oracle, "_BLOCK_ELEMENTS", 27)  # three rows: 6 blocks of 3, one of 2
    parts = Reference(*many_rows)
    assert [(part.start, part.stop) for part in parts][-2:] == [(15, 18), (18, 20)]
    monkeypatch.undo()
    assert len(list(whole)) == 1
    one, many = joined(whole), joined(parts)
    assert torch.equal(one["y"], many["y"])
    assert torch.equal(one["dx"], many["dx"])
    for name in ("dweight", "dbias"):  # added in another order
        torch.testing.assert_close(one[name], many[name], rtol=1e-13, atol=1e-13)


def test_a_small_reference_is_kept_for_the_next_use(many_rows: tuple[Inputs, Case]) -> None:
    reference = Reference(*many_rows)
    first = list(reference)
    spent = reference.spent_s
    assert spent > 0
    assert all(a is b for a, b in zip(first, reference, strict=True))
    assert reference.spent_s == spent


def test_a_large_reference_is_computed_again_and_is_the_same(
    many_rows: tuple[Inputs, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "_KEPT_ELEMENTS", 1)
    reference = Reference(*many_rows)
    (first,), (second,) = list(reference), list(reference)
    assert first is not second
    assert torch.equal(first.y[0], second.y[0])
    assert torch.equal(first.y[1], second.y[1])


def test_a_reference_left_half_way_starts_again_from_the_first_row(
    many_rows: tuple[Inputs, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "_BLOCK_ELEMENTS", 27)
    reference = Reference(*many_rows)
    next(iter(reference))
    assert [block.start for block in reference] == [0, 3, 6, 9, 12, 15, 18]


def test_a_missing_parameter_is_neutral(many_rows: tuple[Inputs, Case]) -> None:
    inputs, case = many_rows
    (block,) = Reference(replace(inputs, weight=None, bias=None), case)
    assert torch.equal(block.y[0], block.normalised[0])

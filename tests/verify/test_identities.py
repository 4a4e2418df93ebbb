"""Identities hold for right targets in every dtype, and some mistake breaks each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from mutant_dtypes import two_dtypes
from torch import Tensor
from verify_targets import CASE, DTYPES, HALVES, WIDE, case_in, every_dtype, layer_norm, mutant

from harness.records import Case
from harness.verify import verify
from harness.verify.identities import IDENTITIES, PROOFS, Identity, identities_of
from harness.verify.mutants import RIGHT
from harness.verify.mutants.analytic import Gradients, Terms, analytic
from harness.verify.mutants.arguments import Rows, layer_norm_of
from implementations import (
    Implementation,
    LayerNorm,
    UnsupportedError,
    native,
    one_pass,
    one_pass_input_dtype,
    two_pass,
    two_pass_input_dtype,
    welford,
    welford_chunked,
)

NAMES = [each.__name__ for each in IDENTITIES]
OF_Y = [each for each in NAMES if each.startswith(("y_", "xhat_"))]


def implementation(function: LayerNorm | Callable[..., Any], **claims: Any) -> Implementation:
    return replace(native, name="implementation", function=function, **claims)


def broken(implementation: Implementation, case: Case = CASE) -> list[str]:
    return [name for name, holds in identities_of(implementation, case).items() if holds is False]


RIGHT_HERE = (one_pass, two_pass, welford, welford_chunked)
RIGHT_IN = [
    *((right, dtype) for right in RIGHT_HERE for dtype in DTYPES),
    *((right, dtype) for right in RIGHT for dtype in sorted(two_dtypes(RIGHT)[right.name])),
    *((native, dtype) for dtype in WIDE),
]


@pytest.mark.parametrize(
    ("implementation", "dtype"), RIGHT_IN, ids=lambda each: getattr(each, "name", each)
)
def test_all_hold_for_a_right_target(implementation: Implementation, dtype: str) -> None:
    assert identities_of(implementation, case_in(dtype)) == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("dtype", HALVES)
def test_pytorchs_own_breaks_only_identities_of_gradients_in_halves(dtype: str) -> None:
    found = broken(native, case_in(dtype))
    assert "dweight_and_dbias_add_over_rows" in found
    assert not set(found) & set(OF_Y)


@every_dtype
@pytest.mark.parametrize("implementation", [one_pass_input_dtype, two_pass_input_dtype])
def test_declared_narrow_statistics_break_none(implementation: Implementation, dtype: str) -> None:
    assert broken(implementation, case_in(dtype)) == []


@every_dtype
def test_all_hold_for_another_seed(dtype: str) -> None:
    assert broken(two_pass, replace(case_in(dtype), seed=1)) == []


def test_wide_parameters_of_narrow_rows_change_nothing() -> None:
    case = replace(case_in("bfloat16"), param_dtype="float32")
    assert identities_of(two_pass, case) == dict.fromkeys(NAMES, True)


_MUTANTS = {
    "y_is_shift_invariant": ("root_mean_square", "one_pass_in_disguise", "mean_in_float16"),
    "y_follows_a_permutation": ("weight_off_by_one", "vector_tail_dropped", "lane_lost"),
    "y_is_idempotent": ("no_root", "newton_step_missing", "uncentred_denominator"),
    "xhat_is_standardised": ("unbiased_variance", "eps_outside_the_root", "eps_always_1e_6"),
    "gradients_follow_a_permutation": ("first_weight_for_all", "row_off_by_one"),
    "dx_sums_to_zero": ("dx_without_mean_of_dy", "dx_times_weight_at_last"),
    "dx_projects_onto_xhat": (
        "dx_without_projection",
        "dx_with_unbiased_projection",
        "dx_with_unbiased_rstd",
        "dx_of_rstd_in_bfloat16",
    ),
    "dx_is_zero_for_constant_dy_weight": ("dx_without_weight", "statistics_kept_in_bfloat16"),
    "gradients_scale_with_dy": ("dx_adds_up",),
    "gradients_add_over_dy": ("dbias_summed_in_bfloat16", "dweight_summed_in_bfloat16"),
    "dx_scales_with_one_over_x": ("eps_always_1e_5", "eps_of_the_first_call"),
    "dweight_and_dbias_add_over_rows": (
        "dweight_averaged",
        "dbias_averaged",
        "rows_beyond_32_left_out",
    ),
}


def test_every_identity_has_mistakes_that_break_it() -> None:
    assert list(_MUTANTS) == NAMES


@pytest.mark.parametrize(
    ("name", "mistake"), [(name, each) for name, known in _MUTANTS.items() for each in known]
)
def test_a_mistake_breaks_it(name: str, mistake: str) -> None:
    assert identities_of(mutant(mistake), CASE)[name] is False


@pytest.mark.parametrize("dtype", [*HALVES, "float64"])
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("y_is_shift_invariant", "mean_in_float16"),
        ("y_follows_a_permutation", "sums_in_bfloat16"),
        ("xhat_is_standardised", "eps_squared"),
        ("dx_projects_onto_xhat", "dx_without_eps"),
        ("dx_is_zero_for_constant_dy_weight", "statistics_kept_in_float16"),
        ("dweight_and_dbias_add_over_rows", "rows_beyond_32_left_out"),
    ],
)
def test_a_mistake_breaks_it_in_other_dtypes_too(name: str, mistake: str, dtype: str) -> None:
    assert identities_of(mutant(mistake), case_in(dtype))[name] is False


def test_a_wrong_gradient_breaks_no_identity_of_y() -> None:
    assert not set(broken(mutant("dx_without_projection"))) & set(OF_Y)


@analytic
def dx_clipped(of: Terms) -> Gradients:
    """Clips dx to a size that it rarely reaches."""
    return replace(of.right, dx=of.right.dx.clamp(-3, 3))


@every_dtype
@pytest.mark.parametrize("name", ["gradients_scale_with_dy", "gradients_add_over_dy"])
def test_a_gradient_that_is_clipped_is_not_linear(name: str, dtype: str) -> None:
    assert identities_of(implementation(dx_clipped), case_in(dtype))[name] is False


@analytic
def dx_slightly_bent(of: Terms) -> Gradients:
    """Adds to dx what is far below its rounding, wherever dy is large."""
    return replace(of.right, dx=torch.nextafter(of.right.dx, of.right.dx + (of.dy.abs() > 3)))


def test_one_bit_breaks_what_holds_bit_by_bit() -> None:
    assert broken(implementation(dx_slightly_bent)) == ["gradients_scale_with_dy"]


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_satisfy_none(identity: Identity, value: float) -> None:
    def holed(of: Rows) -> Tensor:
        y = of.y.clone()
        y[0, 0] = y[0, 0] * value
        return y

    assert identity(implementation(layer_norm_of(holed)), CASE) is False


def test_a_varying_order_of_sums_breaks_none() -> None:
    generator = torch.Generator().manual_seed(0)

    def rounded_anew(of: Terms) -> Gradients:
        order = torch.randperm(len(of.dy), generator=generator)
        total = of.dy.new_zeros(of.hidden)
        for row in of.dy[order]:
            total = total + row
        return replace(of.right, dbias=total)

    assert broken(implementation(analytic(rounded_anew))) == []


def test_an_identity_is_unknown_without_a_bound() -> None:
    found = identities_of(one_pass_input_dtype, case_in("bfloat16"))
    assert found["y_is_shift_invariant"] is None
    assert found["xhat_is_standardised"] is True


def test_nan_without_a_bound_is_not_wrong() -> None:
    narrow = replace(one_pass_input_dtype, function=lambda x, *others: x * float("nan"))
    assert identities_of(narrow, case_in("bfloat16"))["y_is_shift_invariant"] is None


def test_identities_of_gradients_are_unknown_for_a_forward_only_target() -> None:
    detached = implementation(lambda *arguments: layer_norm(*arguments).detach(), forward_only=True)
    found = identities_of(detached, CASE)
    assert {name for name, holds in found.items() if holds} == set(OF_Y)
    assert {found[name] for name in NAMES if name not in OF_Y} == {None}


@pytest.mark.parametrize("error", [UnsupportedError, RuntimeError])
def test_every_identity_is_unknown_if_every_call_raises(error: type[Exception]) -> None:
    def raising(*arguments: Any) -> Tensor:
        raise error("not here")

    assert identities_of(implementation(raising), CASE) == dict.fromkeys(NAMES)


def test_every_identity_is_unknown_without_tensors() -> None:
    pairs = implementation(lambda *arguments: (layer_norm(*arguments), None))
    assert identities_of(pairs, CASE) == dict.fromkeys(NAMES)


def test_a_declined_call_leaves_only_its_identities_unknown() -> None:
    def with_parameters_only(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        if weight is None:
            raise UnsupportedError("needs a weight")
        return layer_norm(x, shape, weight, bias, eps)

    found = identities_of(implementation(with_parameters_only), CASE)
    assert [name for name, holds in found.items() if holds is not True] == [
        "xhat_is_standardised",
        "dx_projects_onto_xhat",
    ]


def test_the_shifted_rows_are_exact() -> None:
    seen: list[Tensor] = []

    def watching(x: Tensor, *others: Any) -> Tensor:
        seen.append(x.clone())
        return layer_norm(x, *others)

    for dtype in DTYPES:
        seen.clear()
        IDENTITIES[0](implementation(watching), case_in(dtype))
        here, there = seen
        assert torch.equal(there.double(), here.double() + 16)
        assert len(here.unique()) > 16


def test_a_second_time_gives_the_same_with_few_calls() -> None:
    counter = itertools.count()

    def counting(*arguments: Any) -> Tensor:
        next(counter)
        return layer_norm(*arguments)

    first_time, second_time = (identities_of(implementation(counting), CASE) for _ in range(2))
    assert first_time == second_time
    assert next(counter) < 80  # a second's worth of a slow implementation


def test_gradients_are_computed_under_no_grad() -> None:
    with torch.no_grad():
        assert identities_of(two_pass, CASE) == dict.fromkeys(NAMES, True)


@pytest.mark.usefixtures("small_catalogue")
def test_a_broken_shift_invariance_is_a_violation() -> None:
    def off_in_one_shape(x: Tensor, *others: Any) -> Tensor:
        y = layer_norm(x, *others)
        return y + 0.5 if x.shape == (40, 67) and x.mean() > 8 else y

    verdict = verify(off_in_one_shape, quick=True, dtypes=("float32",))
    assert verdict.failures == ()
    assert not verdict.passed
    assert [each.check for each in verdict.violations] == ["y_is_shift_invariant"]


def test_only_a_comparison_of_bits_proves_nothing() -> None:
    assert set(NAMES) - set(PROOFS) == {"gradients_scale_with_dy"}

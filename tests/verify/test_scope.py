"""A case is fitted to a target's scope, and x to the numbers of axes that the target takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.records import Affine, Case
from harness.verify.scope import InScope, Scope

CASE = Case(implementation="target", shape=(6, 35), eps=1e-3)
SEVERAL = replace(CASE, shape=(6, 5, 7), normalized_dims=2)


@pytest.mark.parametrize(
    ("scope", "case", "fitted"),
    [
        (Scope(), CASE, CASE),
        (Scope(eps=1e-6), CASE, replace(CASE, eps=1e-6)),
        (Scope(affines=(Affine.WEIGHT,)), CASE, replace(CASE, affine=Affine.WEIGHT)),
        (Scope(normalized_dims=(1,)), SEVERAL, None),
        (Scope(normalized_dims=(2,)), CASE, replace(CASE, shape=(6, 5, 7), normalized_dims=2)),
        (Scope(normalized_dims=(1, 2)), SEVERAL, SEVERAL),
        (
            Scope(normalized_shape=(4, 8), normalized_dims=(2,)),
            CASE,
            replace(CASE, shape=(6, 4, 8), normalized_dims=2),
        ),
        (Scope(normalized_shape=(48,)), SEVERAL, replace(CASE, shape=(6, 48))),
        (Scope(takes_empty=False), replace(CASE, shape=(0, 35)), None),
        (Scope(takes_empty=False), CASE, CASE),
        (Scope(takes_mixed_dtypes=False), replace(CASE, dtype="bfloat16"), None),
        (Scope(declined_layouts=("transposed",)), replace(CASE, layout="transposed"), None),
        (Scope(declined_parameters=("transposed",)), replace(CASE, parameters="transposed"), None),
        (Scope(declined_grad_outputs=("tiny",)), replace(CASE, grad_output="tiny"), None),
        (Scope(least_eps=1e-2), CASE, None),
        (Scope(least_eps=1e-2, eps=1e-6), CASE, replace(CASE, eps=1e-6)),
    ],
)
def test_a_case_is_fitted_or_outside(scope: Scope, case: Case, fitted: Case | None) -> None:
    assert scope.fit(case) == fitted


def test_a_case_without_parameters_has_the_dtype_of_x_only() -> None:
    case = replace(CASE, dtype="bfloat16", parameters="normal")
    found = Scope(affines=(Affine.NONE,), takes_mixed_dtypes=False).fit(case)
    assert found is not None
    assert (found.affine, found.param_dtype) == (Affine.NONE, "bfloat16")


@pytest.mark.parametrize(
    ("shape", "ranks", "given"),
    [
        ((6, 8), (1, 2, 3), (6, 8)),
        ((6, 8), (3,), (2, 3, 8)),
        ((7, 8), (3,), (1, 7, 8)),
        ((8,), (2,), (1, 8)),
        ((2, 3, 8), (2,), (6, 8)),
        ((2, 3, 5, 8), (2, 3), (6, 5, 8)),
        ((0, 8), (3,), (1, 0, 8)),
    ],
)
def test_x_gets_a_number_of_axes_that_the_target_takes(
    shape: tuple[int, ...], ranks: tuple[int, ...], given: tuple[int, ...]
) -> None:
    seen: list[torch.Size] = []

    def target(x: Tensor, *others: Any) -> Tensor:
        seen.append(x.shape)
        return x + 1

    x = torch.randn(shape)
    assert torch.equal(InScope(target, Scope(ranks=ranks))(x, (8,)), x + 1)
    assert seen == [given]


def test_a_result_that_is_not_a_tensor_is_passed_on() -> None:
    assert InScope(lambda *given: None, Scope(ranks=(3,)))(torch.ones(2, 3), (3,)) is None


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope(), "any number of trailing axes"),
        (Scope(normalized_dims=(1,)), "the last axis"),
        (Scope(normalized_dims=(2,)), "the last 2 axes"),
        (Scope(normalized_shape=(4, 8), normalized_dims=(2,)), "the last 2 axes"),
        (Scope(channels_first=True), "the channel axis (axis 1) of x"),
    ],
)
def test_axes_are_named(scope: Scope, words: str) -> None:
    assert scope.axes == words

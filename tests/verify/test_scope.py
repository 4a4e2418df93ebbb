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
        (
            Scope(declined={"affine": ("both", "none", "bias")}),
            CASE,
            replace(CASE, affine=Affine.WEIGHT),
        ),
        (Scope(declined={"normalized_axes": (2, 3, 4, 5)}), SEVERAL, None),
        (
            Scope(declined={"normalized_axes": (1, 3, 4, 5)}),
            CASE,
            replace(CASE, shape=(6, 5, 7), normalized_dims=2),
        ),
        (Scope(declined={"normalized_axes": (3, 4, 5)}), SEVERAL, SEVERAL),
        (
            Scope(normalized_shape=(4, 8), declined={"normalized_axes": (1, 3, 4, 5)}),
            CASE,
            replace(CASE, shape=(6, 4, 8), normalized_dims=2),
        ),
        (Scope(normalized_shape=(48,)), SEVERAL, replace(CASE, shape=(6, 48))),
        (Scope(declined={"is_empty": (True,)}), replace(CASE, shape=(0, 35)), None),
        (Scope(declined={"is_empty": (True,)}), CASE, CASE),
        (Scope(declined={"param_dtype": ("float32",)}), replace(CASE, dtype="bfloat16"), None),
        (Scope(declined={"layout": ("transposed",)}), replace(CASE, layout="transposed"), None),
        (
            Scope(declined={"parameters": ("transposed",)}),
            replace(CASE, parameters="transposed"),
            None,
        ),
        (Scope(declined={"grad_output": ("tiny",)}), replace(CASE, grad_output="tiny"), None),
        (Scope(declined={"eps": (1e-2,)}), CASE, None),
        (Scope(declined={"eps": (1e-2,)}, eps=1e-6), CASE, replace(CASE, eps=1e-6)),
    ],
)
def test_a_case_is_fitted_or_outside(scope: Scope, case: Case, fitted: Case | None) -> None:
    assert scope.fit(case) == fitted


def test_a_case_without_parameters_has_the_dtype_of_x_only() -> None:
    case = replace(CASE, dtype="bfloat16", parameters="normal")
    found = Scope(declined={"affine": ("both", "weight", "bias"), "param_dtype": ("float32",)}).fit(
        case
    )
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
    assert torch.equal(InScope(target, only(*ranks))(x, (8,)), x + 1)
    assert seen == [given]


def only(*ndims: int) -> Scope:
    return Scope(declined={"ndim": tuple(ndim for ndim in range(1, 6) if ndim not in ndims)})


def test_a_result_that_is_not_a_tensor_is_passed_on() -> None:
    assert InScope(lambda *given: None, only(3))(torch.ones(2, 3), (3,)) is None


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope(), "any number of trailing axes"),
        (Scope(declined={"normalized_axes": (2, 3, 4, 5)}), "the last axis"),
        (Scope(declined={"normalized_axes": (1, 3, 4, 5)}), "the last 2 axes"),
        (
            Scope(normalized_shape=(4, 8), declined={"normalized_axes": (1, 3, 4, 5)}),
            "the last 2 axes",
        ),
        (Scope(channels_first=True), "the channel axis (axis 1) of x"),
    ],
)
def test_axes_are_named(scope: Scope, words: str) -> None:
    assert scope.axes == words

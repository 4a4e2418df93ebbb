"""The first step of a row that is wrong is named, as far as y tells the steps apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from factories.verify_targets import mutant
from torch import Tensor

from harness.records import Case
from harness.verify.explain import explain
from implementations import Implementation, adopt, two_pass

CASE = Case(implementation="changed", shape=(4, 40))


def changed(change: Callable[[Tensor], Any]) -> Implementation:
    return adopt(lambda *arguments: change(two_pass.function(*arguments)), "changed")


def one_element_wrong(y: Tensor) -> Tensor:
    y = y.clone()
    y[2, 7] += 1
    return y


@pytest.mark.parametrize(
    ("target", "step"),
    [
        (adopt(lambda x, *others: two_pass.function(x * 1.0, *others), ""), ""),
        (mutant("unbiased_variance"), "variance or rstd"),
        (mutant("eps_ignored"), "variance or rstd"),
        (mutant("root_mean_square"), "mean"),
        (changed(one_element_wrong), "normalised or y"),
        (changed(lambda y: y * float("nan")), "normalised or y"),
    ],
    ids=["right", "N-1", "eps", "no mean", "one element", "NaN"],
)
def test_the_first_wrong_step_is_named(target: Implementation, step: str) -> None:
    assert explain(target, replace(CASE, eps=0.01)).first_wrong == step


def test_a_right_row_of_a_wrong_case_has_no_wrong_step() -> None:
    assert explain(changed(one_element_wrong), CASE, row=1).first_wrong == ""

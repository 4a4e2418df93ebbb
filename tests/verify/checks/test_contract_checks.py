"""Right implementations pass every contract check; findings become violations or remarks."""

from __future__ import annotations

import importlib
import pkgutil
from inspect import isfunction
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from verify_targets import CASE, case_in, every_dtype, layer_norm, mutant, target, then

from harness.records import Case
from harness.verify import checks
from harness.verify.checks.contract_checks import (
    BACKWARD_CHECKS,
    CHECKS,
    ContractCheck,
    contract_findings,
)
from harness.verify.findings import Remark, RemarkKind, Violation
from harness.verify.mutants import RIGHT
from implementations import ALL, Implementation, UnsupportedError, native

SHARED = {"contract_checks", "graph", "huge", "outputs"}  # modules without a check in the lists


@every_dtype
@pytest.mark.parametrize("check", CHECKS + BACKWARD_CHECKS, ids=lambda each: each.__name__)
def test_pytorchs_own_passes_each_check(check: ContractCheck, dtype: str) -> None:
    assert check(native, case_in(dtype)) is None


@pytest.mark.parametrize(
    "implementation", [each for each in ALL if "cpu" in each.devices], ids=lambda each: each.name
)
def test_every_implementation_here_passes_all(implementation: Implementation) -> None:
    assert list(contract_findings(implementation, CASE)) == []


@pytest.mark.parametrize("implementation", RIGHT, ids=lambda each: each.name)
def test_the_right_ones_of_the_self_test_pass_all(implementation: Implementation) -> None:
    assert list(contract_findings(implementation, CASE)) == []


@pytest.mark.parametrize(
    "module",
    [
        importlib.import_module(f"{checks.__name__}.{each.name}")
        for each in pkgutil.iter_modules(checks.__path__)
        if each.name not in SHARED
    ],
)
def test_every_check_is_in_a_list(module: ModuleType) -> None:
    own = {
        each
        for name, each in vars(module).items()
        if isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }
    assert own
    assert own <= {*CHECKS, *BACKWARD_CHECKS}


def test_a_violation_names_its_check() -> None:
    (violation,) = contract_findings(mutant("rows_of_other_threads_unwritten"), CASE)
    assert isinstance(violation, Violation)
    assert violation.check == "is_correct_on_several_threads"
    assert violation.dtype == "float32"


def test_a_call_that_raises_is_a_remark() -> None:
    def one_shape(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 48:
            raise RuntimeError("made for one shape")
        return layer_norm(x, *others)

    (remark,) = contract_findings(target(one_shape), CASE)
    assert isinstance(remark, Remark)
    assert (remark.kind, remark.dtypes) == (RemarkKind.RAISES, ("float32",))
    assert remark.text.endswith("RuntimeError: made for one shape")


def test_one_finding_of_several_checks_is_yielded_once() -> None:
    (violation,) = contract_findings(target(then(lambda y: (y, None))), CASE)
    assert "y is a tuple" in violation.text


@pytest.mark.parametrize("name", ["unbiased_variance", "root_mean_square", "eps_squared"])
def test_a_wrong_but_consistent_target_violates_no_contract(name: str) -> None:
    assert list(contract_findings(mutant(name), CASE)) == []


def test_a_target_with_random_errors_violates_no_contract() -> None:
    generator = torch.Generator().manual_seed(0)
    noisy = then(lambda y: y + 1e-3 * (2 * torch.rand(y.shape, generator=generator) - 1))
    assert list(contract_findings(target(noisy), CASE)) == []


def test_a_forward_only_target_is_not_checked_for_gradients() -> None:
    detached = target(then(torch.detach), forward_only=True)
    assert list(contract_findings(detached, CASE)) == []


def test_a_target_that_declines_every_call_violates_no_contract() -> None:
    def declining(*arguments: Any) -> Tensor:
        raise UnsupportedError("not here")

    assert list(contract_findings(target(declining), CASE)) == []


def test_the_shape_of_the_given_case_does_not_matter() -> None:
    case = Case(implementation="native", shape=(1, 1), dtype="float64", param_dtype="float64")
    assert list(contract_findings(native, case)) == []

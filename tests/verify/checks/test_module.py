"""A module is verified whatever its parameters are called, and wherever they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.records import Severity
from harness.verify import verify
from harness.verify.cases import first_case
from harness.verify.checks.contract_checks import contract_findings
from implementations import adopt

pytestmark = pytest.mark.usefixtures("small_catalogue")

CASE = first_case("module", "float32", "cpu")


class Right(nn.Module):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class OfItsFirstWeight(Right):
    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            self.folded = getattr(self, "folded", self.weight.detach().clone())
            return functional.layer_norm(x, self.weight.shape, self.folded, self.bias, self.eps)
        return super().forward(x)


class Wrapped(nn.Module):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = Right(size, eps)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


class WronglyWrapped(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        return functional.layer_norm(
            x, norm.weight.shape, norm.weight.square(), norm.bias, norm.eps
        )


class InShort(nn.Module):
    def __init__(self, dim: int, bias: bool, variance_epsilon: float = 1e-5) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.ones(dim))
        self.w0 = nn.Parameter(torch.zeros(dim)) if bias else None
        self.variance_epsilon = variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.w1.shape, self.w1, self.w0, self.variance_epsilon)


@pytest.mark.parametrize("module", [Wrapped, InShort])
def test_a_right_module_passes_whatever_its_parameters_are_called(module: type) -> None:
    assert verify(module, quick=True, dtypes=["float32"], fail_fast=True).passed


def test_a_weight_that_is_kept_without_gradients_is_found() -> None:
    findings = contract_findings(adopt(OfItsFirstWeight, "module"), CASE)
    wrong = [finding.kind for finding in findings if finding.severity is Severity.WRONG]
    assert {"follows_parameter_updates", "is_right_after_a_training_step"} <= {*wrong}


def test_a_wrong_use_of_a_submodule_is_found() -> None:
    verdict = verify(WronglyWrapped, quick=True, dtypes=["float32"], fail_fast=True)
    assert verdict.is_wrong

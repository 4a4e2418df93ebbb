"""Mistakes of a module are found: in evaluation mode, when new, in its own eps and parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.records import RemarkKind, Severity
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


class AnotherInEvaluation(Right):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.training else y - self.bias


class AnotherWhenNew(Right):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)


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
        self.w1, self.w0 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.variance_epsilon = variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.w1.shape, self.w1, self.w0, self.variance_epsilon)


class FoldedInEvaluation(nn.LayerNorm):
    """Keeps weight and bias of its first call in evaluation mode."""

    _folded: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        if self._folded is None:
            self._folded = self.weight.detach().clone(), self.bias.detach().clone()
        return functional.layer_norm(x, self.normalized_shape, *self._folded, self.eps)


@pytest.mark.parametrize("module", [Wrapped, InShort])
def test_a_right_module_passes_whatever_its_parameters_are_called(module: type) -> None:
    assert verify(module, quick=True, dtypes=["float32"], fail_fast=True).passed


@pytest.mark.parametrize(
    ("module", "check"),
    [
        (AnotherInEvaluation, "is_unchanged_in_eval_mode"),
        (FoldedInEvaluation, "is_unchanged_in_eval_mode"),
        (OfItsFirstWeight, "follows_parameter_updates"),
    ],
)
def test_a_mistake_in_the_life_of_a_module_is_found(module: type, check: str) -> None:
    findings = contract_findings(adopt(module, "module"), CASE)
    assert check in [each.kind for each in findings if each.severity is Severity.WRONG]


def test_other_initial_parameters_are_a_remark() -> None:
    findings = contract_findings(adopt(AnotherWhenNew, "module"), CASE)
    kinds = [each.kind for each in findings if each.severity is Severity.REMARK]
    assert kinds == [RemarkKind.INITIAL_PARAMETERS]


def test_a_wrong_use_of_a_submodule_is_found() -> None:
    verdict = verify(WronglyWrapped, quick=True, dtypes=["float32"], fail_fast=True)
    assert verdict.is_wrong

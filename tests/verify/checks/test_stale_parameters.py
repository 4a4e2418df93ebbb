"""Parameters that a target keeps from an earlier call, in modes in which nothing is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from harness.verify import verify
from harness.verify.result import Outcome

_KEPT: dict[Any, Tensor] = {}


class FoldedInEvaluation(nn.LayerNorm):
    """Keeps weight and bias of its first call in evaluation mode."""

    _folded: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        if self._folded is None:
            self._folded = self.weight.detach().clone(), self.bias.detach().clone()
        return layer_norm(x, self.normalized_shape, *self._folded, self.eps)


def kept_while_frozen(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Keeps a frozen weight by its address and version."""
    if weight is None or weight.requires_grad or x.is_inference() or weight.is_inference():
        return layer_norm(x, shape, weight, bias, eps)
    key = (weight.data_ptr(), weight._version, weight.shape, weight.stride(), weight.dtype)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = weight.detach().clone()
    return layer_norm(x, shape, _KEPT[key], bias, eps)


def violations(target: Any) -> set[str]:
    verdict = verify(target, quick=True, dtypes=("float32",), fail_fast=True)
    assert verdict.outcome is Outcome.WRONG
    return {finding.kind for finding in verdict.violations}


def test_weights_folded_in_evaluation_mode_are_found() -> None:
    assert "is_unchanged_in_eval_mode" in violations(FoldedInEvaluation)


def test_a_frozen_weight_kept_by_address_is_found() -> None:
    torch.manual_seed(0)
    assert "follows_parameter_updates" in violations(kept_while_frozen)

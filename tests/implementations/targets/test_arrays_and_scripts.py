"""Functions of NumPy arrays and of TorchScript, judged on what they have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import implementations
from harness.verify import Outcome, verify

# of torch 2.13; scripts exist all the same
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

_SOURCE = """
import numpy as np
import torch

def of_arrays(x, weight, bias, eps=1e-5):
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias
    return y.astype(weight.dtype)

@torch.jit.script
def scripted(x, gamma, beta, eps: float = 1e-5):
    return torch.layer_norm(x, x.shape[-1:], gamma, beta, eps)
"""


@pytest.mark.parametrize(("name", "has_gradient"), [("of_arrays", False), ("scripted", True)])
def test_it_is_verified(tmp_path: Path, name: str, *, has_gradient: bool) -> None:
    path = tmp_path / "mine.py"
    path.write_text(_SOURCE)
    verdict = verify(f"{path}:{name}", quick=True, dtypes=["float32"], time_budget_s=3)
    assert verdict.outcome is Outcome.RIGHT
    assert verdict.scope is not None
    assert verdict.scope.has_gradient is has_gradient or "is_backward" in verdict.scope.declined


def test_arrays_have_no_gradient_and_no_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(_SOURCE)
    target = implementations.find(f"{path}:of_arrays")
    x, ones = torch.randn(5, 32), torch.ones(32)
    target(x, (32,), ones, ones)
    for refused in (x.bfloat16(), x.clone().requires_grad_()):
        with pytest.raises(implementations.UnsupportedError):
            target(refused, (32,), ones, ones)

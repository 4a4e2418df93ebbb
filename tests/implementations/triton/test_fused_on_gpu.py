"""Tests of the fused kernels that need a GPU: too large to interpret, or about scheduling."""

from __future__ import annotations

import pytest
import torch
from factories.fused_kernels import (
    DEVICE,
    RUN_SOMEWHERE,
    assert_right,
    every_dtype,
    every_name,
    gradients,
    tensors,
    trial,
)

from harness.report.verdict import headline
from harness.verify import verify
from implementations import find
from implementations.triton import layout as layouts

pytestmark = [
    *RUN_SOMEWHERE,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@every_dtype
@every_name
def test_each_passes_the_whole_short_verification(name: str, dtype: str) -> None:
    verdict = verify(name, quick=True, dtypes=[dtype], device=DEVICE)
    assert verdict.passed, headline(verdict)


@pytest.mark.parametrize("hidden", [64, 1000, 4096, 9000, 40000])
@every_name
def test_the_same_call_gives_the_same_bits(name: str, hidden: int) -> None:
    x, weight, bias, dy = tensors((3000, hidden), hidden, torch.bfloat16)
    first = gradients(find(name), (x, weight, bias), dy, (0, 1, 2))
    for _ in range(5):
        again = gradients(find(name), (x, weight, bias), dy, (0, 1, 2))
        assert all(map(torch.equal, again, first))


def test_elements_beyond_32_bits_are_computed() -> None:
    hidden, rows = 4096, (1 << 31) // 4096 + 3
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB of GPU memory")
    x = torch.zeros(rows, hidden, device=DEVICE, dtype=torch.bfloat16)
    last = torch.randn(3, hidden, device=DEVICE, dtype=torch.bfloat16)
    x[-3:] = last
    norm = find("triton_recentred")
    leaf = x.requires_grad_()
    y = norm(leaf, (hidden,))
    assert torch.equal(y[-3:], norm(last, (hidden,)))
    y.backward(x.detach())
    small = last.clone().requires_grad_()
    norm(small, (hidden,)).backward(last)
    assert leaf.grad is not None
    assert small.grad is not None
    assert torch.equal(leaf.grad[-3:], small.grad)


@pytest.mark.parametrize("hidden", sorted(layouts.FORWARD[2]))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_layout_of_the_tables_can_be_started(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (300, hidden), dtype))

"""The module is compiled, exported and run under autocast like torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factories.drop_ins import (
    ON_CPU,
    close,
    every_implementation,
    needs_cuda,
    normal,
    only,
    pair,
    trained,
)
from torch import Tensor

from implementations import (
    Dispatch,
    Implementation,
    LayerNorm,
    module,
)

# --- compiled and exported -----------------------------------------------------------------------

CHOICES = [*ON_CPU, Dispatch({(8, "float32", "cpu"): "two_pass"})]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=lambda e: getattr(e, "name", "table"))


@every_choice
def test_it_is_traced_whole_by_torch_compile_and_export(choice: Any) -> None:
    made = trained(LayerNorm(8, implementation=choice))
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(made, (normal(5, 8),)).module()
    for traced in (compiled, exported):
        torch.testing.assert_close(traced(normal(5, 8)), made(normal(5, 8)), **close)


def test_compiled_code_follows_a_change_of_implementation() -> None:
    def adding(number: int) -> Implementation:
        return only(function=lambda x, *others: x + number)

    made = LayerNorm(8, implementation=adding(1))
    torch.compiler.reset()
    compiled = torch.compile(made, backend="eager")
    before = compiled(torch.zeros(5, 8))
    made.implementation = adding(3)
    assert (before.unique().tolist(), compiled(torch.zeros(5, 8)).unique().tolist()) == ([1], [3])


# --- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16], ids=str)
@every_implementation
def test_under_autocast_it_does_what_torch_does(
    norm: Implementation, autocast_dtype: torch.dtype, x_dtype: torch.dtype
) -> None:
    ours, theirs = pair(norm, normalized_shape=8)
    with torch.no_grad(), torch.autocast("cpu", dtype=autocast_dtype):
        found, expected = ours(normal(5, 8, dtype=x_dtype)), theirs(normal(5, 8, dtype=x_dtype))
    assert found.dtype == expected.dtype
    # a few roundings of values up to 8, some of them in x's dtype where the algorithm says so
    allowed = 64 * torch.finfo(x_dtype).eps
    assert float((found - expected).abs().max()) <= allowed


def test_an_implementation_is_not_cast_operator_by_operator_under_autocast() -> None:
    def with_matmul(x: Tensor, *others: Any) -> Tensor:
        return x @ torch.eye(8)

    made = LayerNorm(8, implementation=only(function=with_matmul))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made(normal(5, 8)), normal(5, 8))


def test_the_devices_that_run_it_in_float32_under_autocast_are_those_of_torch() -> None:
    kinds = ["CPU", "CUDA", "XPU", "MPS", "HPU", "IPU", "XLA", "MTIA", "MAIA"]
    registered = {
        kind.lower()
        for kind in kinds
        if torch._C._dispatch_has_kernel_for_dispatch_key("aten::layer_norm", f"Autocast{kind}")
    }
    assert registered == module.FLOAT32_UNDER_AUTOCAST


@every_implementation
def test_under_autocast_to_float32_all_arguments_are_converted(
    norm: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLOAT32_UNDER_AUTOCAST", {"cpu"})  # as if on such a device
    ours, theirs = pair(norm, normalized_shape=8, dtype=torch.bfloat16)
    x = normal(5, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ours(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, theirs.float()(x.float()), **close)


@needs_cuda
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_implementation
def test_under_autocast_on_a_gpu_it_does_what_torch_does(
    norm: Implementation, x_dtype: torch.dtype
) -> None:
    if "cuda" not in norm.devices:
        pytest.skip(f"{norm.name} is not written for a GPU")
    ours, theirs = pair(norm, normalized_shape=8, device="cuda")
    x = normal(5, 8, dtype=x_dtype).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found, expected = ours(x), theirs(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, **close)

"""The acceptance tests of other projects, applied to any LayerNorm on the CPU.

Each check uses the inputs, shapes, parameters, eps, reference and tolerances that a project
publishes. The project's own code is not run. Where a problem is made smaller to be quick,
:attr:`PeerCheck.reduced` says how. No verdict of the harness depends on a tolerance in this file.

Every check rejects a result of another type, shape or dtype, and a function that raises. NaN in a
result fails every check except llm.c's, which tests whether a difference is too large and not
whether it is small enough. (apex allows NaN where the reference is NaN. No reference here is.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from implementations.contract import LayerNormFunction
from peer_tests.peer_problems import Problem, is_close, pairs, run, seeded, torch_results

__all__ = ["PEER_CHECKS", "PeerCheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCheck:
    """One project's acceptance test of LayerNorm."""

    name: str
    """Stable identifier."""
    source: str
    """Where it is published."""
    reduced: str
    """What was made smaller here, and what that hides; empty if nothing."""
    dtypes: frozenset[str]
    """Names of the dtypes for which the test is published."""
    accepts: Callable[[LayerNormFunction, torch.dtype], bool]
    """Whether a function passes in one of these dtypes."""


# --- the peers -----------------------------------------------------------------------------------


def _assert_close(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Normal numbers and parameters, against torch in the same dtype."""
    drawn = seeded()
    shape = (16, 257)
    x, dy = torch.randn(2, *shape, generator=drawn).to(dtype)
    weight, bias = torch.randn(2, shape[-1], generator=drawn).to(dtype)
    problem = Problem(x=x, weight=weight, bias=bias, dy=dy)
    found = run(function, problem)
    return found is not None and all(
        is_close(*pair) for pair in pairs(found, torch_results(problem))
    )


def _tritonbench(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """-2.3 + 0.5 normal, parameters uniform; y against torch in the same dtype."""
    for shape in ((16, 1024), (16, 15_872)):
        drawn = seeded()
        x = -2.3 + 0.5 * torch.randn(shape, generator=drawn)
        weight, bias = torch.rand(2, shape[-1], generator=drawn)
        problem = Problem(x=x, weight=weight, bias=bias).to(dtype)
        found = run(function, problem)
        if found is None or not is_close(found.y, torch_results(problem).y):
            return False
    return True


def _liger(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Normal numbers, weight 1 and bias 0; y and gradients against torch in the same dtype."""
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for shape in ((2, 8, 64), (4, 16, 128), (1, 1, 1023), (3, 7, 256), (1, 1, 1500)):
        x, dy = torch.randn(2, *shape, generator=seeded()).to(dtype)
        weight, bias = torch.ones(shape[-1], dtype=dtype), torch.zeros(shape[-1], dtype=dtype)
        problem = Problem(x=x, weight=weight, bias=bias, eps=1e-6, dy=dy)
        found = run(function, problem)
        if found is None or not all(
            torch.allclose(*pair, rtol=tolerance, atol=tolerance)
            for pair in pairs(found, torch_results(problem))
        ):
            return False
    return True


# apex seeds a GPU's generator. With this seed of the CPU's, right results in bfloat16 pass; with
# some others an x of 0.15 is rounded by more than 3e-4, the error that apex allows of y near 0.
_APEX_SEED = 0

_APEX_TOLERANCES = {  # (rtol, atol) of y, then of dx; for two dtypes assert_allclose's defaults
    torch.float32: ((1e-4, 1e-5), (1e-4, 1e-5)),
    torch.float16: ((1e-3, 1e-3), (1e-3, 1e-3)),
    torch.bfloat16: ((1.6e-2, 3e-4), (1.6e-2, 3e-3)),
}


def _apex(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Normal x, uniform dy, weight 1 and bias 0; y and dx against torch's of float32 x."""
    shape = (16, 32, 16)
    (y_rtol, y_atol), (dx_rtol, dx_atol) = _APEX_TOLERANCES[dtype]
    weight, bias = torch.ones(shape[1:]), torch.zeros(shape[1:])
    dense = torch.randn(shape, generator=seeded(_APEX_SEED))
    sparse = torch.randn(16 * 3, 32 * 5, 16 * 3, generator=seeded(_APEX_SEED))
    dy = torch.rand(shape, generator=seeded(1))
    for x, (a, b, c) in ((dense, (1, 1, 1)), (sparse, (3, 5, 3))):
        for parameters in ((weight, bias), (None, None)):
            wide = Problem(
                x=x[::a, ::b, ::c], weight=parameters[0], bias=parameters[1], dims=2, dy=dy
            )
            # rounded before it is sliced: rounding a slice would make it contiguous
            narrow = replace(wide.to(dtype), x=x.to(dtype)[::a, ::b, ::c])
            expected, found = torch_results(wide), run(function, narrow)
            if found is None or found.dx is None or expected.dx is None:
                return False
            if not (
                is_close(found.y, expected.y.to(dtype), rtol=y_rtol, atol=y_atol)
                and is_close(found.dx, expected.dx.to(dtype), rtol=dx_rtol, atol=dx_atol)
            ):
                return False
    return True


def _flash_attention(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Largest error at most twice torch's own plus a constant, against rounded float32 results."""
    atol = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    for hidden in (192, 2048, 3000):
        drawn = seeded()
        x, dy = torch.randn(2, 8, 8, hidden, generator=drawn).to(dtype)
        weight, bias = torch.randn(2, hidden, generator=drawn).to(dtype)
        problem = Problem(x=x, weight=weight, bias=bias, eps=1e-6, dy=dy / 8)
        found = run(function, problem)
        # twice torch's own error is 0: on a GPU it rounds the float32 result, the reference here
        if found is None or not all(
            bool((one - other).abs().max() <= atol)
            for one, other in pairs(found, torch_results(problem))
        ):
            return False
    return True


_FLAG_GEMS_RTOL = {torch.float16: 1e-3, torch.float32: 1.3e-6, torch.bfloat16: 1.6e-2}


def _flag_gems(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Normal numbers and parameters, against torch in float64; atol grows with what is summed."""
    rtol, atol = _FLAG_GEMS_RTOL[dtype], 1e-4
    for rows, hidden in ((200, 36), (64, 100), (64, 256), (1, 40_999), (2, 40_499)):
        drawn = seeded()
        x, dy = torch.randn(2, rows, hidden, generator=drawn).to(dtype)
        weight, bias = torch.randn(2, hidden, generator=drawn).to(dtype)
        problem = Problem(x=x, weight=weight, bias=bias, dy=dy)
        found, expected = run(function, problem), torch_results(problem.to(torch.float64))
        if found is None:
            return False
        summed = (1, hidden, rows, rows)
        for (one, other), count in zip(pairs(found, expected), summed, strict=True):
            if not is_close(one, other.to(dtype), rtol=rtol, atol=atol * count):
                return False
    return True


def _kernelbench(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Uniform numbers on [0, 1), weight 1 and bias 0; y against torch in the same dtype."""
    tolerance = 1e-4 if dtype is torch.float32 else 1e-2
    shape = (2, 64, 32, 32)
    weight, bias = torch.ones(shape[1:], dtype=dtype), torch.zeros(shape[1:], dtype=dtype)
    for trial in range(5):
        x = torch.rand(shape, generator=seeded(trial)).to(dtype)
        problem = Problem(x=x, weight=weight, bias=bias, dims=3)
        found = run(function, problem)
        if found is None or not torch.allclose(
            torch_results(problem).y, found.y, rtol=tolerance, atol=tolerance
        ):
            return False
    return True


def _llm_c(function: LayerNormFunction, dtype: torch.dtype) -> bool:
    """Uniform on [-1, 1) throughout; y within 1e-5 and gradients within 1e-3 of float32 loops'."""
    drawn = seeded()
    rows, hidden = 64, 768
    x, dy = torch.rand(2, rows, hidden, generator=drawn) * 2 - 1
    weight, bias = torch.rand(2, hidden, generator=drawn) * 2 - 1
    problem = Problem(x=x, weight=weight, bias=bias, dy=dy).to(dtype)
    found, expected = run(function, problem), torch_results(problem)
    if found is None:
        return False
    tolerances = (1e-5, 1e-3, 1e-3, 1e-3)
    for (one, other), tolerance in zip(pairs(found, expected), tolerances, strict=True):
        allowed = tolerance + torch.finfo(torch.float32).eps * other.abs()
        if bool(((other - one).abs() > allowed).any()):  # as published: NaN is not larger
            return False
    return True


# --- the list ------------------------------------------------------------------------------------

_FLOATS = frozenset({"float32", "float16", "bfloat16"})

PEER_CHECKS: tuple[PeerCheck, ...] = (
    PeerCheck(
        name="assert_close",
        source="torch.testing.assert_close with its defaults, as most test suites use it",
        reduced="",
        dtypes=_FLOATS | {"float64"},
        accepts=_assert_close,
    ),
    PeerCheck(
        name="tritonbench",
        source="meta-pytorch/tritonbench, tritonbench/operators/layer_norm/operator.py",
        reduced="16 rows instead of 4096, two of 30 row lengths: rare rounding errors are rarer",
        dtypes=_FLOATS,
        accepts=_tritonbench,
    ),
    PeerCheck(
        name="liger",
        source="linkedin/Liger-Kernel, test/transformers/test_layer_norm.py",
        reduced="",
        dtypes=frozenset({"float32", "bfloat16"}),
        accepts=_liger,
    ),
    PeerCheck(
        name="apex",
        source="NVIDIA/apex, tests/L0/run_fused_layer_norm/test_fused_layer_norm.py",
        reduced="no float32 batch of 65536: mistakes that need many rows are not seen",
        dtypes=_FLOATS,
        accepts=_apex,
    ),
    PeerCheck(
        name="flash_attention",
        source="Dao-AILab/flash-attention, tests/ops/triton/test_layer_norm.py",
        reduced="64 rows instead of 4096, three of five row lengths, parameters of x's dtype only: "
        "sums over rows are shorter, so their errors are smaller",
        dtypes=_FLOATS,
        accepts=_flash_attention,
    ),
    PeerCheck(
        name="flag_gems",
        source="FlagOpen/FlagGems, tests/test_norm_ops.py",
        reduced="64 rows instead of 4096, 2 instead of 100; its tolerance shrinks with the rows",
        dtypes=_FLOATS,
        accepts=_flag_gems,
    ),
    PeerCheck(
        name="kernelbench",
        source="ScalingIntelligence/KernelBench, level1/40_LayerNorm.py and src/eval.py",
        reduced="2 rows of 64*32*32 instead of 16 of 64*256*256: a variance over N-1 shows more",
        dtypes=_FLOATS,
        accepts=_kernelbench,
    ),
    PeerCheck(
        name="llm_c",
        source="karpathy/llm.c, dev/cuda/layernorm_forward.cu, layernorm_backward.cu, common.h",
        reduced="64 rows of 768 instead of 8192 of 768 and 1600; expected values are by torch",
        dtypes=frozenset({"float32"}),
        accepts=_llm_c,
    ),
)

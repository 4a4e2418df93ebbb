"""Peers that run on CUDA alone: Liger Kernel, QuACK, Transformer Engine, flash-attention, apex.

Transformer Engine's module owns its parameters and frees saved tensors after one backward. Here its
kernels are called as the module calls them, with the caller's parameters, and the backward can run
repeatedly. QuACK's forward and backward are bound to autograd here.

Each package lists the versions whose source was read; others are refused.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from implementations.contract import (
    Algorithm,
    Param,
    Reduction,
    UnsupportedError,
    requires_gradient,
)
from implementations.peers.peer import ALL_DTYPES, CUDA, Package, peer

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

_LIGER = Package(
    "liger_kernel",
    ("liger-kernel",),
    "pip install liger-kernel",
    # up to 0.8.3 the statistics are kept for the backward in the dtype of x
    "0.6.5, 0.7.0, 0.8.0, 0.8.1, 0.8.2, 0.8.3, 0.8.4, 0.8.5",
)


@peer(
    _LIGER,
    _DTYPES,
    devices=CUDA,
    needs=("weight", "bias"),
    source="https://github.com/linkedin/Liger-Kernel, src/liger_kernel/ops/layer_norm.py",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # one running sum per multiprocessor of the smallest GPUs
)
def liger(x: Tensor, dims: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Liger Kernel: liger_layer_norm, two passes over a row in registers, float32 inside."""
    functional = _LIGER.load("liger_kernel.transformers.functional", "liger_layer_norm")
    rows = x.reshape(-1, weight.numel())
    y: Tensor = functional.liger_layer_norm(rows, weight.reshape(-1), bias.reshape(-1), eps)
    return y.view(x.shape)


_QUACK = Package(
    "quack",
    ("quack-kernels",),
    "pip install -U quack-kernels",
    # layernorm_bwd came with 0.6.2
    "0.4.1, 0.5.0, 0.5.3, 0.6.0, 0.6.1, 0.6.2, 0.6.3, 0.6.4, 0.6.5",
)


@peer(
    _QUACK,
    _DTYPES,
    devices=CUDA,
    needs=("weight",),
    param_dtype=torch.float32,
    source="https://github.com/Dao-AILab/quack, quack/rmsnorm.py",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # one running sum per multiprocessor of the smallest GPUs
)
def quack(x: Tensor, dims: int, weight: Tensor, bias: Param, eps: float) -> Tensor:
    """QuACK: layernorm_fwd and layernorm_bwd, two passes over a row on chip, float32 inside."""
    backward = ("layernorm_bwd",) if requires_gradient(x, weight, bias) else ()
    kernels = _QUACK.load("quack.rmsnorm", "layernorm_fwd", *backward)
    rows = x.reshape(-1, weight.numel()).contiguous()
    shift = None if bias is None else bias.reshape(-1).contiguous()
    y: Tensor = _QuackBound.apply(  # type: ignore[no-untyped-call]
        rows, weight.reshape(-1).contiguous(), shift, eps, kernels
    )
    return y.view(x.shape)


class _QuackBound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Param, eps: float, kernels: Any
    ) -> Tensor:
        y: Tensor
        if not any(ctx.needs_input_grad):
            y = kernels.layernorm_fwd(x, weight, bias, eps)
            return y
        y, rstd, mean = kernels.layernorm_fwd(
            x, weight, bias, eps, return_rstd=True, return_mean=True
        )
        ctx.save_for_backward(x, weight, rstd, mean)
        ctx.has_bias, ctx.kernels = bias is not None, kernels
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd, mean = ctx.saved_tensors
        dx, dweight, dbias = ctx.kernels.layernorm_bwd(
            x, weight, dy.contiguous(), rstd, mean, has_bias=ctx.has_bias
        )
        return dx, dweight, dbias, None, None


_TRANSFORMER_ENGINE = Package(
    "transformer_engine",
    ("transformer-engine",),
    "pip install --no-build-isolation 'transformer-engine[pytorch]'",
    "2.8.0, 2.9.0, 2.10.0, 2.11.0, 2.12.0, 2.13.0, "
    "2.14.0, 2.14.1, 2.15.0, 2.16.0, 2.16.1, 2.17.0, 2.17.1, 2.18.0",
)
_SM_MARGIN = 0  # multiprocessors left free for other kernels
_ZERO_CENTRED = False  # whether 1 is added to the weight


@peer(
    _TRANSFORMER_ENGINE,
    _DTYPES,
    devices=CUDA,
    needs=("weight", "bias"),
    params_like_x=True,
    source="https://github.com/NVIDIA/TransformerEngine, "
    "transformer_engine/pytorch/ops/basic/layer_norm.py",
    algorithm=Algorithm.WELFORD,  # each thread's moments in two passes, then combined
    reduction=Reduction.BLOCKS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # over the rows; a row has more, at least those of a warp
)
def transformer_engine(x: Tensor, dims: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Transformer Engine: layernorm_fwd and layernorm_bwd, unquantised, float32 inside."""
    kernels, kinds = _loaded()
    rows = x.reshape(-1, weight.numel()).contiguous()
    y: Tensor = _TransformerEngineBound.apply(  # type: ignore[no-untyped-call]
        rows, weight.reshape(-1), bias.reshape(-1), eps, kernels, kinds[x.dtype]
    )
    return y.view(x.shape)


@cache
def _loaded() -> tuple[Any, Any]:
    """Return the kernels, and the package's names of dtypes."""
    _TRANSFORMER_ENGINE.load("transformer_engine.pytorch")  # it loads the library of the kernels
    constants = _TRANSFORMER_ENGINE.load("transformer_engine.pytorch.constants", "TE_DType")
    kernels = _TRANSFORMER_ENGINE.load("transformer_engine_torch", "layernorm_fwd", "layernorm_bwd")
    return kernels, constants.TE_DType


class _TransformerEngineBound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        kernels: Any,
        kind: Any,
    ) -> Tensor:
        # None, None: allocate the output, no quantizer
        y, mean, rstd = kernels.layernorm_fwd(
            x, weight, bias, eps, None, None, kind, _SM_MARGIN, _ZERO_CENTRED
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, mean, rstd, weight)
            ctx.kernels = kernels
        result: Tensor = y
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.kernels.layernorm_bwd(
            dy.contiguous(), *ctx.saved_tensors, _SM_MARGIN, _ZERO_CENTRED
        )
        return *gradients, None, None, None


_FLASH_ATTENTION = Package(
    "flash_attn",
    ("flash-attn",),
    "pip install flash-attn --no-build-isolation",
    "2.7.3, 2.7.4, 2.7.4.post1, 2.8.0, 2.8.0.post2, 2.8.1, 2.8.2, 2.8.3, 2.8.3.post1, 2.8.3.post2",
)


@peer(
    _FLASH_ATTENTION,
    _DTYPES,
    devices=CUDA,
    needs=("weight",),
    source="https://github.com/Dao-AILab/flash-attention, flash_attn/ops/triton/layer_norm.py",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=64,  # eight running sums per multiprocessor of the smallest GPUs
)
def flash_attn(x: Tensor, dims: int, weight: Tensor, bias: Param, eps: float) -> Tensor:
    """flash-attention: layer_norm_fn, two passes over a row in registers, float32 inside."""
    kernels = _FLASH_ATTENTION.load("flash_attn.ops.triton.layer_norm", "layer_norm_fn")
    rows = x.reshape(-1, weight.numel())
    shift = None if bias is None else bias.reshape(-1)
    y: Tensor = kernels.layer_norm_fn(rows, weight.reshape(-1), shift, eps=eps)
    return y.view(x.shape)


_APEX = Package(
    "apex",  # a different package has this name on PyPI; it has no apex.normalization
    ("apex",),
    "build it with its CUDA extensions, as described at https://github.com/NVIDIA/apex",
    "0.1",  # of every revision; those tagged 25.09 and of 2026-07-08 (6424da3) were read
)


@peer(
    _APEX,
    ALL_DTYPES,
    devices=CUDA,
    params_like_x=True,  # with mixed dtypes, y would have the dtype of the parameters
    source="https://github.com/NVIDIA/apex, csrc/layer_norm_cuda_kernel.cu",
    algorithm=Algorithm.WELFORD,
    reduction=Reduction.BLOCKS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # partial sums over the rows; a row has more, at least those of a warp
)
def apex(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """apex: fused_layer_norm_affine, or fused_layer_norm; Welford over a row, float32 or wider."""
    fused = _APEX.load(
        "apex.normalization.fused_layer_norm", "fused_layer_norm", "fused_layer_norm_affine"
    )
    _APEX.load("fused_layer_norm_cuda")  # apex itself imports it by the first call
    shape = x.shape[x.dim() - dims :]
    if weight is not None and bias is not None:
        y: Tensor = fused.fused_layer_norm_affine(x, weight, bias, shape, eps)
        return y
    if weight is not None or bias is not None:
        raise UnsupportedError("apex takes a weight and a bias, or neither")
    plain: Tensor = fused.fused_layer_norm(x, shape, eps)
    return plain


PACKAGES = (_LIGER, _QUACK, _TRANSFORMER_ENGINE, _FLASH_ATTENTION, _APEX)

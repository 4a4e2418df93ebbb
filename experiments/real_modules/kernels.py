"""Public Triton kernels as functions that ``layernorm-bench verify`` can call on the CPU.

Each passes its arguments on as they are: what a kernel gets wrong here, it gets wrong for its own
users. Run with TRITON_INTERPRET=1; see interpreter.py for what is replaced.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cache, wraps
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from implementations.contract import UnsupportedError

from . import interpreter

interpreter.prepare()

Shape = Sequence[int]

# FlagGems finds out its vendor by running nvidia-smi, and unsloth refuses a torchvision without
# compiled operators
os.environ |= {"GEMS_VENDOR": "nvidia", "UNSLOTH_SKIP_TORCHVISION_CHECK": "1"}


@cache
def _module(name: str) -> ModuleType:
    """Import a module of kernels and make it ready for the interpreter."""
    module = importlib.import_module(name)
    interpreter.first_configuration(module)
    if hasattr(module, "rsqrt"):
        module.rsqrt = interpreter.rsqrt
    return module


@cache
def _unbuilt(name: str) -> ModuleType:
    return interpreter.load_file(name, interpreter.UNBUILT)


@cache
def _flag_gems(name: str) -> ModuleType:
    """Import operators of FlagGems without its launcher, which caches compiled kernels only."""
    interpreter.skip_init("flag_gems")
    utils = importlib.import_module("flag_gems.utils")
    utils.libentry = lambda: lambda kernel: kernel
    # `and` of two tensors is elementwise for Triton's compiler, and Python's for its interpreter
    return interpreter.load_file(
        f"flag_gems.ops.{name}", replace={"row_mask and col_mask": "row_mask & col_mask"}
    )


@cache
def _triformer(name: str) -> ModuleType:
    """Import a module of triformer, which allocates on "cuda:0" whatever the device of x."""
    module = _module(f"triformer.{name}")
    module.torch = interpreter.CudaMeansCpu()
    return module


def _last_axis(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Refuse what the kernel has no argument for: a normalized_shape that is not x's last axis."""

    @wraps(kernel)
    def checked(x: Tensor, shape: Shape, *args: Any, **kwargs: Any) -> Tensor:
        if tuple(shape) != tuple(x.shape[-1:]):
            raise UnsupportedError("the kernel normalises the last axis alone")
        return kernel(x, shape, *args, **kwargs)

    return checked


class _FlagGemsLayerNorm(torch.autograd.Function):
    """Calls forward and backward as FlagGems registers them for native_layer_norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Any, bias: Any, eps: float) -> Tensor:
        y, mean, rstd = _flag_gems("layernorm").layer_norm(x, shape, weight, bias, eps)
        ctx.shape = shape
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        mask = [True, weight is not None, bias is not None]
        dx, dweight, dbias = _flag_gems("layernorm").layer_norm_backward(
            grad, x, ctx.shape, mean, rstd, weight, bias, mask
        )
        return dx, None, dweight, dbias, None


# --- LayerNorm ------------------------------------------------------------------------------------


@_last_axis
def liger_layer_norm(x: Tensor, shape: Shape, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    ops = _module("liger_kernel.ops.layer_norm")
    return ops.LigerLayerNormFunction.apply(x, weight, bias, eps)


def flag_gems_layer_norm(
    x: Tensor,
    shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _FlagGemsLayerNorm.apply(x, shape, weight, bias, eps)


@_last_axis
def unsloth_layer_norm(x: Tensor, shape: Shape, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    ops = _module("unsloth.kernels.layernorm")
    return ops.Fast_Layernorm.apply(x, weight, bias, eps)


@_last_axis
def flash_attn_layer_norm(
    x: Tensor, shape: Shape, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return _unbuilt("flash_attn.ops.triton.layer_norm").layer_norm_fn(x, weight, bias, eps=eps)


@_last_axis
def mamba_ssm_layer_norm(
    x: Tensor, shape: Shape, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return _unbuilt("mamba_ssm.ops.triton.layer_norm").layer_norm_fn(x, weight, bias, eps=eps)


@_last_axis
def mamba_ssm_gated_layer_norm(
    x: Tensor, shape: Shape, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return _unbuilt("mamba_ssm.ops.triton.layernorm_gated").layernorm_fn(x, weight, bias, eps=eps)


@_last_axis
def fla_layer_norm(
    x: Tensor,
    shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _module("fla.modules.norm.layernorm").layer_norm(x, weight, bias, eps=eps)


@_last_axis
def torchnorm_layer_norm(
    x: Tensor, shape: Shape, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return _module("torchnorm._triton").fused_layer_norm(x, weight, bias, eps)


@_last_axis
def triformer_layer_norm(
    x: Tensor, shape: Shape, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    return _triformer("layernorm").Fast_Layernorm.apply(x, weight, bias, eps)


@_last_axis
def trinix_layer_norm(x: Tensor, shape: Shape, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    ops = _module("trinix.kernels.layernorm_kernel")
    return ops.TritonLayerNormFunction.apply(x, weight, bias, eps)


# --- RMSNorm --------------------------------------------------------------------------------------


@_last_axis
def liger_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    ops = _module("liger_kernel.ops.rms_norm")
    return ops.LigerRMSNormFunction.apply(x, weight, eps)


@_last_axis
def flag_gems_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _flag_gems("rms_norm").rms_norm(x, shape, weight, eps)


@_last_axis
def unsloth_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    ops = _module("unsloth.kernels.rms_layernorm")
    return ops.Fast_RMS_Layernorm.apply(x, weight, eps, False)


@_last_axis
def flash_attn_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _unbuilt("flash_attn.ops.triton.layer_norm").rms_norm_fn(x, weight, None, eps=eps)


@_last_axis
def mamba_ssm_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _unbuilt("mamba_ssm.ops.triton.layer_norm").rms_norm_fn(x, weight, None, eps=eps)


@_last_axis
def mamba_ssm_gated_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _unbuilt("mamba_ssm.ops.triton.layernorm_gated").rmsnorm_fn(x, weight, None, eps=eps)


@_last_axis
def fla_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _module("fla.modules.norm.layernorm").rms_norm(x, weight, None, eps=eps)


@_last_axis
def torchnorm_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _module("torchnorm._triton").fused_rms_norm(x, weight, eps)


@_last_axis
def triformer_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _triformer("rms_norm").FastRMSNorm.apply(x, weight, eps)


@_last_axis
def trinix_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _module("trinix.kernels.rmsnorm_kernel").TritonRMSNormFunction.apply(x, weight, eps)


@_last_axis
def xformers_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _module("xformers.ops._triton.rmsnorm_kernels")._rms_norm_forward(x, weight, eps)


@_last_axis
def conch_rms_norm(x: Tensor, shape: Shape, weight: Tensor, eps: float) -> Tensor:
    return _module("conch.ops.normalization.rms_norm").rms_norm(x, weight, eps)


LAYER_NORMS: tuple[Callable[..., Tensor], ...] = (
    liger_layer_norm,
    flag_gems_layer_norm,
    unsloth_layer_norm,
    flash_attn_layer_norm,
    mamba_ssm_layer_norm,
    mamba_ssm_gated_layer_norm,
    fla_layer_norm,
    torchnorm_layer_norm,
    triformer_layer_norm,
    trinix_layer_norm,
)
RMS_NORMS: tuple[Callable[..., Tensor], ...] = (
    liger_rms_norm,
    flag_gems_rms_norm,
    unsloth_rms_norm,
    flash_attn_rms_norm,
    mamba_ssm_rms_norm,
    mamba_ssm_gated_rms_norm,
    fla_rms_norm,
    torchnorm_rms_norm,
    triformer_rms_norm,
    trinix_rms_norm,
    xformers_rms_norm,  # forward only
    conch_rms_norm,  # forward only
)

"""NumPy: the formula as users write it; shares the memory of x, weight and bias."""

from __future__ import annotations

import torch
from torch import Tensor

from implementations.contract import Algorithm, Param, Reduction
from implementations.peers.peer import Package, peer

PACKAGE = Package("numpy", ("numpy",), "pip install numpy")


@peer(
    PACKAGE,
    (torch.float16, torch.float32, torch.float64),
    # numpy has no bfloat16
    forward_only=True,
    outside_torch=True,
    source="https://numpy.org/doc/stable/reference/generated/numpy.var.html",
    algorithm=Algorithm.TWO_PASS,
    # pairwise only along the axis of the smallest stride, one after another along any other
    # (numpy.sum, Notes): a transposed x has running sums, bit for bit
    reduction=Reduction.SEQUENTIAL,
)
def numpy(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """NumPy: mean, var and the formula, in float32 or wider."""
    np = PACKAGE.load()
    if not x.numel():  # numpy warns about the mean of an empty array
        return torch.empty_like(x)
    # as a matrix, because numpy sums pairwise only along one axis
    matrix = x.detach().resolve_neg().numpy().reshape(-1, x.shape[x.dim() - dims :].numel())
    with np.errstate(all="ignore"):  # no warnings about NaN and infinity, as in torch
        wide = matrix.astype(np.promote_types(matrix.dtype, np.float32), copy=False)
        mean = wide.mean(axis=-1, keepdims=True)
        variance = wide.var(axis=-1, keepdims=True)
        y = (wide - mean) / np.sqrt(variance + eps)
        if weight is not None:
            y = y * weight.detach().resolve_neg().numpy().reshape(-1)
        if bias is not None:
            y = y + bias.detach().resolve_neg().numpy().reshape(-1)
        y = y.astype(matrix.dtype, copy=False)
    return torch.from_numpy(y).view(x.shape)

"""Right LayerNorms, each written in a different way; the verifier must accept them all.

Each declares how its sums are computed and is held to that. Where torch specifies no order of
summation (BLAS, batch norm) the declaration is the weakest, one running sum.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.mutants.arguments import Rows, with_gradients, with_value
from harness.mutants.mutant import with_fields
from implementations.contract import Algorithm, Reduction

_OWN_KERNEL = {
    "algorithm": Algorithm.WELFORD,
    "backward_reduction": Reduction.BLOCKS,
    "lanes": 4,
    "column_reduction": Reduction.SEQUENTIAL,
    "centred_backward": False,
}
"""What PyTorch's kernel of layer norm does, which is that of group norm, too."""
_ROWS_AT_ONCE = 20  # few, so that small cases have several portions


# --- another arithmetic --------------------------------------------------------------------------


def divided_by_a_root(rows: Rows) -> Tensor:
    """Divides by a square root instead of multiplying by its reciprocal."""
    return rows.affine(rows.deviation / torch.sqrt(rows.variance + rows.eps))


def power_of_minus_one_half(rows: Rows) -> Tensor:
    """Raises the variance to the power -0.5."""
    return rows.affine(rows.deviation * (rows.variance + rows.eps).pow(-0.5))


def fused_multiply_add(rows: Rows) -> Tensor:
    """Applies weight and bias by one addcmul."""
    normalised = rows.normalised
    if rows.weight is None or rows.bias is None:
        return rows.affine(normalised)
    weight, bias = (tensor.to(normalised.dtype) for tensor in (rows.weight, rows.bias))
    return torch.addcmul(bias, normalised, weight)


def scale_and_offset_in_float64(rows: Rows) -> Tensor:
    """Computes x * rstd - mean * rstd, in float64."""
    x = rows.x.double()
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + rows.eps)
    return rows.affine(x * rstd - mean * rstd)


def float64_inside(rows: Rows) -> Tensor:
    """Computes two passes in float64 and rounds once."""
    return replace(rows, x=rows.x.double()).y


@with_fields(algorithm=Algorithm.RECENTRED)
def recentred(rows: Rows) -> Tensor:
    """Subtracts the mean of the deviations from them twice before squaring."""
    deviation = rows.deviation - rows.deviation.mean(-1, keepdim=True)
    deviation = deviation - deviation.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + rows.eps)
    return rows.affine(deviation * rstd)


@with_fields(source="Chan, Golub and LeVeque, Am. Stat. 37 (1983) 242-247")
def corrected_two_pass(rows: Rows) -> Tensor:
    """Subtracts the square of the mean deviation from the mean squared deviation."""
    residual = rows.deviation.mean(-1, keepdim=True)
    return rows.normalised_by(rows.mean, rows.variance - residual.square())


def rows_in_portions(rows: Rows) -> Tensor:
    """Normalises 20 rows at a time."""
    portions = rows.x.split(_ROWS_AT_ONCE)
    # without weight and bias: autograd would add up their portions' gradients in their own dtype
    return rows.affine(torch.cat([Rows(portion, None, None, rows.eps).y for portion in portions]))


def columns_first(rows: Rows) -> Tensor:
    """Transposes, normalises columns and transposes back."""
    columns = rows.x.t().contiguous()
    deviation = columns - columns.mean(0, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(0, keepdim=True) + rows.eps)
    return rows.affine((deviation * rstd).t())


# --- other sums ----------------------------------------------------------------------------------


def _compensated_mean(x: Tensor) -> Tensor:
    """Mean of each row by Kahan's sum, whose error hardly depends on N; (rows, 1)."""
    total = x.new_zeros(x.shape[0])
    lost = torch.zeros_like(total)
    for element in x.detach().unbind(1):
        wanted = element - lost
        larger = total + wanted
        lost = (larger - total) - wanted
        total = larger
    return with_value(x.mean(-1, keepdim=True), (total / x.shape[1])[:, None])


@with_fields(source="Kahan, Comm. ACM 8 (1965) 40")
def compensated_sums(rows: Rows) -> Tensor:
    """Sums each row with Kahan's compensation."""
    return rows.with_means_by(_compensated_mean)


@with_fields(reduction=Reduction.SEQUENTIAL)
def product_with_ones(rows: Rows) -> Tensor:
    """Computes sums as matrix products with a column of ones."""
    ones = rows.x.new_ones((rows.hidden, 1))
    with torch.autocast(rows.x.device.type, enabled=False):  # autocast would multiply in bfloat16
        return rows.with_means_by(lambda x: x @ ones / rows.hidden)


@with_fields(reduction=Reduction.SEQUENTIAL)
def einstein_sums(rows: Rows) -> Tensor:
    """Computes sums by torch.einsum."""
    with torch.autocast(rows.x.device.type, enabled=False):  # autocast would multiply in bfloat16
        deviation = rows.x - torch.einsum("mn->m", rows.x)[:, None] / rows.hidden
        variance = torch.einsum("mn,mn->m", deviation, deviation)[:, None] / rows.hidden
    return rows.affine(deviation * torch.rsqrt(variance + rows.eps))


# --- torch's own functions -----------------------------------------------------------------------


@with_fields(
    source="torch.var_mean",
    algorithm=Algorithm.WELFORD,
    reduction=Reduction.SEQUENTIAL,
    backward_reduction=Reduction.TREE,
)
def variance_and_mean_at_once(rows: Rows) -> Tensor:
    """Takes both statistics from torch.var_mean."""
    variance, mean = torch.var_mean(rows.x, -1, correction=0, keepdim=True)
    return rows.normalised_by(mean, variance)


@with_fields(source="torch.batch_norm", reduction=Reduction.SEQUENTIAL)
def batch_norm_of_rows(rows: Rows) -> Tensor:
    """Calls batch norm with each row as a channel of a batch of one."""
    # not functional.batch_norm, which refuses rows of one element
    normalised = torch.batch_norm(rows.x[None], None, None, None, None, True, 0.0, rows.eps, False)
    return rows.affine(normalised[0])


@with_fields(source="torch.group_norm", **_OWN_KERNEL)
def group_norm_of_one_group(rows: Rows) -> Tensor:
    """Calls group norm with one group and each element as a channel."""
    x = rows.x[..., None]
    if rows.weight is None or rows.bias is None:  # its backward raises if given only one of them
        return rows.affine(torch.group_norm(x, 1, None, None, rows.eps, False)[..., 0])
    weight, bias = (tensor.to(rows.x.dtype) for tensor in (rows.weight, rows.bias))
    return torch.group_norm(x, 1, weight, bias, rows.eps, False)[..., 0]


@with_fields(source="torch.nn.LayerNorm", **_OWN_KERNEL)
def module(rows: Rows) -> Tensor:
    """Calls a torch.nn.LayerNorm without parameters, in float32 or wider."""
    norm = torch.nn.LayerNorm(rows.hidden, eps=rows.eps, elementwise_affine=False)
    return rows.affine(norm(rows.x))


# --- a gradient written out ----------------------------------------------------------------------


@with_fields(source="Ba, Kiros and Hinton, arXiv 1607.06450")
def gradient_written_out(rows: Rows) -> Tensor:
    """Computes its gradients by formula instead of autograd."""
    return with_gradients(rows, lambda terms: terms.right)

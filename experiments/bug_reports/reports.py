"""Wrong LayerNorms of public bug reports, rebuilt from what the reports say.

The first line of each docstring is the mistake and the report. No code of a project was copied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from random import random
from typing import Any

import torch
from torch import Tensor, nn

from bug_reports.rebuilt import (
    Gradients,
    Rows,
    affine,
    changes,
    dx_of,
    elements,
    moments,
    normalises,
    read_as_contiguous,
    right,
    right_gradients,
    trailing,
    wide,
    with_backward,
    without_rows,
)

__all__ = ["REPORTS", "Report"]

_NAMED = re.compile(r"(.*) \((\S+#\d+)\)\.$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Report:
    """A public report of a wrong LayerNorm, and the LayerNorm that makes this mistake."""

    rebuilt: Any
    """A function or a module class."""
    dtypes: tuple[str, ...] = ("float32",)
    """Of x, those of the report; float32 if it names none."""

    @property
    def sentence(self) -> str:
        """The mistake."""
        return self._first_line[0] + "."

    @property
    def number(self) -> str:
        """The report, as ``owner/name#number``."""
        return self._first_line[1]

    @property
    def _first_line(self) -> tuple[str, str]:
        first, *_ = self.rebuilt.__doc__.splitlines()
        found = _NAMED.fullmatch(first)
        assert found is not None, first
        return found[1], found[2]


# === eps


@normalises
def eps_squared(x, axes, eps):
    """Divide by the square of variance plus eps (131250208/TPlinker-joint-extraction#37)."""
    mean, var = moments(wide(x), axes)
    return mean, (var + eps) ** -2


@normalises
def unbiased_std_plus_eps(x, axes, eps):
    """Divide by the N-1 standard deviation plus eps (hyunwoongko/transformer#7)."""
    mean, var = moments(wide(x), axes)
    count = elements(x, axes)
    return mean, 1 / ((var * (count / max(count - 1, 1))).sqrt() + eps)


@normalises
def eps_in_the_count(x, axes, eps):
    """Add eps to the row length instead of the variance (xlite-dev/LeetCUDA#309)."""
    mean, var = moments(wide(x), axes)
    count = elements(x, axes)
    return mean, (var * count / (count + eps)).rsqrt()


@normalises
def eps_zero(x, axes, eps):
    """Use an eps of 0 whatever is given (VeriSilicon/TIM-VX#589)."""
    mean, var = moments(wide(x), axes)
    return mean, var.rsqrt()


@normalises
def eps_of_the_fused_kernel(x, axes, eps):
    """Use the default eps, 0.001, whatever is given (tensorflow/tensorflow#58863)."""
    mean, var = moments(wide(x), axes)
    return mean, (var + 1e-3).rsqrt()


@normalises
def std_plus_eps(x, axes, eps):
    """Add eps to the standard deviation (tracel-ai/burn#2185)."""
    mean, var = moments(wide(x), axes)
    return mean, 1 / (var.sqrt() + eps)


@normalises
def root_of_zero_variance(x, axes, eps):
    """Give NaN gradients for constant rows, from a root of 0 (tracel-ai/burn#1992)."""
    mean, var = moments(wide(x), axes)
    return mean, (var.sqrt().square() + eps).rsqrt()


@normalises
def eps_rounded_away(x, axes, eps):
    """Round variance plus eps to half precision, where eps is lost (deepspeedai/DeepSpeed#581)."""
    mean, var = moments(wide(x), axes)
    return mean, wide((var + eps).to(x.dtype).rsqrt())


class EpsNotPassedOn(nn.LayerNorm):
    """Ignore the constructor's eps (apple/axlearn#397)."""

    def __init__(self, normalized_shape: int | list[int], eps: float = 1e-12) -> None:
        super().__init__(normalized_shape, eps=1e-12)


# === Variance


@normalises
def unbiased(x, axes, eps):
    """Divide the variance by N-1 (LBANN/lbann#2024)."""
    mean, var = moments(wide(x), axes)
    count = elements(x, axes)
    return mean, (var * (count / max(count - 1, 1)) + eps).rsqrt()


@normalises
def one_pass(x, axes, eps):
    """Subtract squares, so that rows with a large mean become NaN (ml-explore/mlx#2238)."""
    mean = wide(x).mean(axes, keepdim=True)
    return mean, (wide(x).square().mean(axes, keepdim=True) - mean.square() + eps).rsqrt()


@normalises
def one_pass_clamped(x, axes, eps):
    """Subtract squares, and let no variance be below 0 (pytorch/pytorch#51102)."""
    mean = wide(x).mean(axes, keepdim=True)
    var = wide(x).square().mean(axes, keepdim=True) - mean.square()
    return mean, (var.clamp(min=0) + eps).rsqrt()


@normalises
def one_pass_in_half(x, axes, eps):
    """Average x and x squared in half precision (ROCm/AMDMIGraphX#2891)."""
    mean = x.mean(axes, keepdim=True)
    return wide(mean), wide((x * x).mean(axes, keepdim=True) - mean * mean + eps).rsqrt()


@normalises
def squares_overflow(x, axes, eps):
    """Sum squares in half precision, which overflows (SKaiNET-developers/SKaiNET#1281)."""
    mean = wide(x).mean(axes, keepdim=True)
    summed = (wide(x) - mean).square().sum(axes, keepdim=True).to(x.dtype)
    return mean, (wide(summed) / elements(x, axes) + eps).rsqrt()


@normalises
def reductions_in_half(x, axes, eps):
    """Reduce in half precision (apache/mxnet#14073)."""
    mean, var = moments(x, axes)
    return wide(mean), (wide(var) + eps).rsqrt()


@normalises
def float32_overflow(x, axes, eps):
    """Let the variance of float32 values of 1e30 overflow (pytorch/pytorch#178123)."""
    mean, var = moments(wide(x), axes)
    return mean, (var + eps).rsqrt()


@normalises
def masked_deviations(x, axes, eps):
    """Count the squared mean once for each masked element (linkedin/Liger-Kernel#518)."""
    mean, var = moments(wide(x), axes)
    count = elements(x, axes)
    masked = (1 << (count - 1).bit_length()) - count if count else 0
    return mean, (var + masked / max(count, 1) * mean.square() + eps).rsqrt()


@normalises
def padding_of_ones(x, axes, eps):
    """Sum the tile padding too, which x's constant fills (tenstorrent/tt-metal#41465)."""
    count = elements(x, axes)
    padding = -count % 32
    low, high = wide(x).amin(axes, keepdim=True), wide(x).amax(axes, keepdim=True)
    fill = torch.where(low == high, high, 0) * (padding / count)
    mean = wide(x).mean(axes, keepdim=True) + fill
    return mean, ((wide(x) - mean).square().mean(axes, keepdim=True) + eps).rsqrt()


@normalises
def padded_width(x, axes, eps):
    """Divide sums by the width of whole tiles of 32 (tenstorrent/tt-metal#42801)."""
    padded = -(-elements(x, axes) // 32) * 32
    mean = wide(x).sum(axes, keepdim=True) / padded
    return mean, ((wide(x) - mean).square().sum(axes, keepdim=True) / padded + eps).rsqrt()


@normalises
def all_axes_but_the_first(x, axes, eps):
    """Normalise all axes but the first (Qualcomm-AI-research/geometric-algebra-transformer#8)."""
    mean, var = moments(wide(x), tuple(range(min(1, x.ndim - len(axes)), x.ndim)))
    return mean, (var + eps).rsqrt()


@normalises
def two_axes(x, axes, eps):
    """Normalise the last two axes instead of the last (reczoo/FuxiCTR#23)."""
    mean, var = moments(wide(x), axes if x.ndim <= len(axes) else (-1 - len(axes), *axes))
    return mean, (var + eps).rsqrt()


@normalises
def race(x, axes, eps):
    """Overwrite a row's mean now and then, a race in shared memory (ml-explore/mlx#2340)."""
    mean, var = moments(wide(x), axes)
    rstd = (var + eps).rsqrt()
    return (rstd if random() < 1 / 200 else mean), rstd


# === Rows


@changes
def sixteen_bit_rows(x, normalized_shape, weight, bias, eps):
    """Count rows in 16 bits, so that 65,536 rows are none (NVIDIA/apex#411)."""
    rows = prod(x.shape[: x.ndim - len(normalized_shape)])
    y = right(x, normalized_shape, weight, bias, eps)
    return y if rows < 65_536 else without_rows(y, normalized_shape, rows % 65_536)


@changes
def offsets_in_32_bits(x, normalized_shape, weight, bias, eps):
    """Write no element past 2^32 (pytorch/pytorch#181555)."""
    y = right(x, normalized_shape, weight, bias, eps)
    if x.numel() < 2**32:
        return y
    return without_rows(y, normalized_shape, 2**32 // prod(normalized_shape))


@changes
def signed_offsets(x, normalized_shape, weight, bias, eps):
    """Write no element past 2^31 (PaddlePaddle/Paddle#79590)."""
    y = right(x, normalized_shape, weight, bias, eps)
    if x.numel() < 2**31:
        return y
    return without_rows(y, normalized_shape, 2**31 // prod(normalized_shape))


@changes
def rows_of_odd_width(x, normalized_shape, weight, bias, eps):
    """Write no row past 2^23 if N is no multiple of 4 (pytorch/pytorch#184826)."""
    y = right(x, normalized_shape, weight, bias, eps)
    count = prod(normalized_shape)
    if count % 4 == 0 or x.numel() // count < 2**23:
        return y
    return without_rows(y, normalized_shape, 2**23)


@changes
def junk_in_the_last_tile(x, normalized_shape, weight, bias, eps):
    """Lose the last rows past 2,048 unless tiles are whole (tenstorrent/tt-metal#34823)."""
    rows = prod(x.shape[: x.ndim - len(normalized_shape)])
    y = right(x, normalized_shape, weight, bias, eps)
    if rows <= 2048 or rows % 32 == 0 or prod(normalized_shape) % 32 == 0:
        return y
    return without_rows(y, normalized_shape, rows - rows % 32)


# === Parameters


@changes
def parameters_in_pairs(x, normalized_shape, weight, bias, eps):
    """Ignore the weight if there is no bias, and conversely (pytorch/pytorch#69208)."""
    if weight is None or bias is None:
        weight = bias = None
    return right(x, normalized_shape, weight, bias, eps)


@changes
def constant_without_weight(x, normalized_shape, weight, bias, eps):
    """Return a constant if there is no weight (torch-spyre/torch-spyre#1980)."""
    if weight is None:
        weight, bias = torch.zeros(normalized_shape), torch.full(normalized_shape, -0.0013)
    return right(x, normalized_shape, weight, bias, eps)


@changes
def bits_of_the_parameters(x, normalized_shape, weight, bias, eps):
    """Read float32 parameters as numbers of x's dtype (pytorch/pytorch#190055)."""

    def read(parameter: Tensor | None) -> Tensor | None:
        if parameter is None or parameter.dtype == x.dtype:
            return parameter
        bits = parameter.detach().reshape(-1).view(x.dtype)[: parameter.numel()]
        return parameter + (bits.reshape(parameter.shape) - parameter).detach()

    return right(x, normalized_shape, read(weight), read(bias), eps)


@changes
def bias_read_as_contiguous(x, normalized_shape, weight, bias, eps):
    """Read a bias as if it was contiguous (pytorch/pytorch#176238)."""
    bias = None if bias is None else read_as_contiguous(bias)
    return right(x, normalized_shape, weight, bias, eps)


@changes
def gradient_of_a_chunk(x, normalized_shape, weight, bias, eps):
    """Write no gradient of a bias that is a chunk of a tensor (pytorch/pytorch#193061)."""
    if bias is not None and bias.untyped_storage().nbytes() > bias.nbytes:
        bias = bias.detach() + 0 * bias
    return right(x, normalized_shape, weight, bias, eps)


class OtherInitialValues(nn.LayerNorm):
    """Initialise the weight with 0 and the bias with 1 (google/objax#94)."""

    def reset_parameters(self) -> None:
        """Set the parameters."""
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.bias)


class RandomInitialValues(nn.LayerNorm):
    """Initialise weight and bias with random numbers (huggingface/transformers#171)."""

    def reset_parameters(self) -> None:
        """Set the parameters."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.normal_(self.bias, std=0.02)


class TrainingStatistics(nn.LayerNorm):
    """Use the last training batch's mean and variance in evaluation (Hsword/Hetu#17)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return y."""
        if self.training or not hasattr(self, "last"):
            self.last = moments(x, trailing(self.normalized_shape))
        mean, var = self.last
        return affine((x - mean) * (var + self.eps).rsqrt(), self.weight, self.bias, x.dtype)


# === Layouts


@changes
def permutation_read_as_contiguous(x, normalized_shape, weight, bias, eps):
    """Read a permuted x as if it was contiguous (microsoft/DirectML#588)."""
    if not x.is_contiguous():
        if x.untyped_storage().nbytes() != x.nbytes:
            raise RuntimeError("strided slices are not supported")
        x = read_as_contiguous(x)
    return right(x, normalized_shape, weight, bias, eps)


@changes
def slice_read_from_the_start(x, normalized_shape, weight, bias, eps):
    """Read a slice of a tensor from the tensor's start (pytorch/pytorch#131750)."""
    return right(x.as_strided(x.shape, x.stride(), 0), normalized_shape, weight, bias, eps)


@changes
def read_without_strides(x, normalized_shape, weight, bias, eps):
    """Read x as if it was contiguous (NVIDIA/TransformerEngine#1017)."""
    x = x if x.is_contiguous() else read_as_contiguous(x)
    return right(x, normalized_shape, weight, bias, eps)


# === Gradients


@with_backward
def rows_by_the_first_axis(rows: Rows) -> Gradients:
    """Take the first axis for the rows of the backward (flagos-ai/FlagGems#5392)."""
    if len(rows.shape) < 2:
        return right_gradients(rows)
    count, width = rows.shape[0], rows.weight.numel()
    x, dy = (part.reshape(count, -1) for part in (rows.x, rows.dy))
    weight = torch.zeros(x.shape[1], dtype=x.dtype)
    weight[:width] = rows.weight  # reads what follows the weight: taken for 0
    mean, rstd = rows.mean[:count], rows.rstd[:count]
    wrong = Rows(
        x=x,
        dy=dy,
        weight=weight,
        mean=mean,
        rstd=rstd,
        eps=rows.eps,
        shape=rows.shape,
        dims=rows.dims,
    )
    dx, dweight, dbias = right_gradients(wrong)
    return dx, dweight[:width], dbias[:width]


@with_backward
def sums_of_four_rows(rows: Rows) -> Gradients:
    """Sum over the four rows of a block in dx (flagos-ai/FlagGems#59)."""
    dx, dweight, dbias = right_gradients(rows)
    blocks, width = len(rows.x) // 4, rows.x.shape[1]
    if not blocks:
        return dx, dweight, dbias
    n, g, rstd = rows.n, rows.dy * rows.weight, rows.rstd
    shape = (blocks, 4, width)
    n4, g4 = n[: 4 * blocks].reshape(shape), g[: 4 * blocks].reshape(shape)
    first, second = (part.sum((1, 2), keepdim=True) / width for part in (g4, g4 * n4))
    wrong = (g4 - first - n4 * second).reshape(-1, width) * rstd[: 4 * blocks]
    return torch.cat([wrong, dx[4 * blocks :]]), dweight, dbias


@with_backward
def swapped(rows: Rows) -> Gradients:
    """Return the gradients of weight and bias in the wrong order (Oneflow-Inc/oneflow#6149)."""
    dx, dweight, dbias = right_gradients(rows)
    return dx, dbias, dweight


@with_backward
def subtracted_twice(rows: Rows) -> Gradients:
    """Subtract the mean of dy * weight twice in dx (tenstorrent/tt-metal#53204)."""
    dx, dweight, dbias = right_gradients(rows)
    mean = (rows.dy * rows.weight).mean(-1, keepdim=True)
    return dx - rows.rstd * mean, dweight, dbias


@with_backward
def last_block(rows: Rows) -> Gradients:
    """Keep the last block of 128 elements alone of a sum in dx (tenstorrent/tt-metal#53215)."""
    _, dweight, dbias = right_gradients(rows)
    g, n, width = rows.dy * rows.weight, rows.n, rows.x.shape[1]
    start = (width - 1) // 128 * 128 if width else 0
    second = (g * n)[:, start:].sum(-1, keepdim=True) / max(width, 1)
    return rows.rstd * (g - g.mean(-1, keepdim=True) - n * second), dweight, dbias


@with_backward
def statistics_of_one_row(rows: Rows) -> Gradients:
    """Read mean and variance of a single row by element (PaddlePaddle/Paddle#35480)."""
    if len(rows.x) != 1:
        return right_gradients(rows)
    first = torch.arange(rows.x.shape[1]) == 0
    mean = torch.where(first, rows.mean, 0)
    rstd = torch.where(first, rows.rstd, rows.eps**-0.5)
    n, g = (rows.x - mean) * rstd, rows.dy * rows.weight
    dx = rstd * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
    return dx, (rows.dy * n).sum(0), rows.dy.sum(0)


@with_backward
def weight_in_the_graph(rows: Rows) -> Gradients:
    """Forget the weight in a sum of dx if a graph is created (pytorch/pytorch#41595)."""
    dx, dweight, dbias = right_gradients(rows)
    if torch.is_grad_enabled():
        g, n = rows.dy * rows.weight, rows.n
        second = (rows.dy * n).mean(-1, keepdim=True)
        dx = rows.rstd * (g - g.mean(-1, keepdim=True) - n * second)
    return dx, dweight, dbias


@with_backward
def weight_of_the_row(rows: Rows) -> Gradients:
    """Multiply dy by the weight at the index of the row (davisking/dlib#3001)."""
    _, dweight, dbias = right_gradients(rows)
    width = max(rows.weight.numel(), 1)
    weight = rows.weight[torch.arange(len(rows.x)) % width][:, None]
    return dx_of(rows, rows.dy * weight), dweight, dbias


@with_backward
def dweight_of_one_element(rows: Rows) -> Gradients:
    """Leave a rounding error in dweight of rows of one element (pytorch/pytorch#188372)."""
    dx, _, dbias = right_gradients(rows)
    product = rows.x.double() * rows.rstd.double()  # a fused multiply-add does not round it
    n = (product - (rows.mean * rows.rstd).double()).to(rows.x.dtype)
    return dx, (rows.dy * n).sum(0), dbias


@with_backward
def dweight_of_the_last_axis(rows: Rows) -> Gradients:
    """Sum dweight over the last axis alone past 65,536 rows (pytorch/pytorch#192016)."""
    dx, dweight, dbias = right_gradients(rows)
    if len(rows.x) <= 65_536:
        return dx, dweight, dbias
    last = rows.shape[-1]
    return dx, dweight[:last], dbias[:last]  # autograd refuses the shape


@changes
def scale_and_shift(x, normalized_shape, weight, bias, eps):
    """Add bias - mean * scale to x * scale, which rounds (pytorch/pytorch#98075)."""
    mean, var = moments(wide(x), trailing(normalized_shape))
    scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return (wide(x) * scale + shift).to(x.dtype)


@changes
def no_gradient(x, normalized_shape, weight, bias, eps):
    """Return y without a gradient (huggingface/candle#3011)."""
    return right(x, normalized_shape, weight, bias, eps).detach()


# === The list

# the dtype of x of reports on another one than float32
_DTYPE = dict.fromkeys(
    ("eps_rounded_away", "one_pass_in_half", "squares_overflow", "reductions_in_half"), "float16"
) | {"bits_of_the_parameters": "bfloat16"}


def _reports() -> tuple[Report, ...]:
    """Return the LayerNorms of this file whose first line names a report, in order."""
    made = [own for own in globals().values() if _NAMED.match(getattr(own, "__doc__", None) or "")]
    return tuple(Report(own, (_DTYPE.get(own.__name__, "float32"),)) for own in made)


REPORTS = _reports()

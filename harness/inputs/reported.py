"""Inputs from public bug reports of LayerNorm, named by project and issue.

A formula in the report is used as it is; numbers in the report are repeated to fill the shape.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

__all__ = [
    "mlx_2238",
    "onnxruntime_21935",
    "onnxruntime_28463",
    "pytorch_40302",
    "pytorch_51102",
    "pytorch_81090",
    "pytorch_108072",
    "pytorch_162489",
    "pytorch_188372",
]

_MLX_2238 = (
    1449.570556640625, 1448.8741455078125, 1450.650390625, 1449.2633056640625,
    1449.7763671875, 1449.317138671875, 1449.3297119140625, 1449.077880859375,
    1449.2181396484375, 1449.4329833984375, 1449.1605224609375, 1449.413330078125,
    1449.7933349609375, 1450.066650390625, 1449.7762451171875, 1450.364990234375,
)  # fmt: skip


def mlx_2238(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Sixteen values near 1449.6, condition number 3e3: a one-pass kernel returned NaN."""
    return _repeated(_MLX_2238, rows, hidden)


def onnxruntime_21935(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Every element 1234: a one-pass variance rounded below -eps gave NaN."""
    return torch.full((rows, hidden), 1234.0, dtype=torch.float64)


def onnxruntime_28463(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """40000, 40001, 40002, 40003: squares of 1.6e9 leave float32 no digits for the variance."""
    return _repeated((40000.0, 40001.0, 40002.0, 40003.0), rows, hidden)


def pytorch_40302(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 0.01 plus 100: a one-pass variance is 0 instead of 1e-4."""
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator) * 0.01 + 100


def pytorch_51102(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal plus 2000: the variance of y was 48,000 instead of 1."""
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator) + 2000


def pytorch_81090(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Consecutive integers up to 6,400,000: the last rows of a torch.arange."""
    last = 6_400_000.0
    counted = torch.arange(rows * hidden, dtype=torch.float64) + (last - rows * hidden)
    return counted.reshape(rows, hidden)


def pytorch_108072(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Rows of 2 and rows of 14 in turn: with eps 1e-6, x * scale + bias was 1e-4 off the bias."""
    values = 2.0 + 12.0 * (torch.arange(rows, dtype=torch.float64) % 2)
    return values[:, None].expand(rows, hidden)


def pytorch_162489(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 1e30: squares overflow, and y was 0 or NaN."""
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator) * 1e30


def pytorch_188372(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Every element 1e6, reported with one element per row: y must be the bias and dweight 0."""
    return torch.full((rows, hidden), 1e6, dtype=torch.float64)


def _repeated(values: tuple[float, ...], rows: int, hidden: int) -> Tensor:
    times = -(-hidden // len(values))
    row = torch.tensor(values, dtype=torch.float64).repeat(times)[:hidden]
    return row.expand(rows, hidden)

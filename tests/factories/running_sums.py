"""Right LayerNorms of plain loops: one running sum per row, in float32 or wider."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from harness.mutants import Rows, layer_norm_of, with_value


@layer_norm_of
def two_passes(of: Rows) -> Tensor:
    """The mean, then the mean of squared deviations, each by one running sum."""
    return of.with_means_by(_mean)


def _mean(rows: Tensor) -> Tensor:
    """Mean by one running sum in the rows' own dtype (torch.cumsum keeps it in float64)."""
    mean = rows.mean(-1, keepdim=True)
    if not rows.numel():
        return mean
    with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN, as in torch
        sums = np.add.accumulate(rows.detach().resolve_neg().numpy(), axis=-1)
    return with_value(mean, torch.from_numpy(sums[:, -1:].copy()) / rows.shape[1])

"""With mode="graph", the default, eps depends on whether batch is given

If batch is None, `x / (x.std(unbiased=False) + eps)` is computed, else `x / (var + eps).sqrt()`.
A single graph has two results; the documented formula is that of the second.

affected: models that are trained with batches and run on a single graph without, where the
  standard deviation is not large beside the root of eps, 0.003
library: torch-geometric
versions: 2.8.1
source: torch_geometric/nn/norm/layer_norm.py:85 and 103, LayerNorm.forward
reported: https://github.com/pyg-team/pytorch_geometric/pull/2917 changed one of the two
"""

import torch
from torch_geometric.nn import LayerNorm

x = torch.tensor([[-0.01, 0.01], [0.01, -0.01]])
without = LayerNorm(2)(x)
given = LayerNorm(2)(x, torch.zeros(2, dtype=torch.long))
print(f"y[0, 1] without batch {without[0, 1]:.4f}, with one graph {given[0, 1]:.4f}; right: equal")
raise SystemExit(torch.allclose(without, given, rtol=1e-4))

"""In float16, a constant row makes the gradients NaN if eps is below 2.3e-10

The CPU kernel keeps rstd for the backward in float16, where 1 / sqrt(1e-12) overflows. y is right;
dx of a constant row and all of dweight are NaN. Both should be 0.

affected: whoever trains in float16 on a CPU with eps=1e-12, as in BERT; one row of padding is
  enough
library: torch
versions: 2.13.0
source: aten/src/ATen/native/cpu/layer_norm_kernel.cpp, layer_norm_kernel_mixed_type:
  `rstd_data[i] = rstd_val`
reported: none found
"""

import torch

for dtype in (torch.float32, torch.float16):
    x = torch.zeros(1, 4, dtype=dtype, requires_grad=True)
    weight = torch.ones(4, dtype=dtype, requires_grad=True)
    y = torch.nn.functional.layer_norm(x, (4,), weight, eps=1e-12)
    y.sum().backward()
    print(f"{dtype}: dweight {weight.grad.tolist()}, dx {x.grad[0].tolist()}")
raise SystemExit(not weight.grad.isnan().any().item())

"""In half precision, dweight and dbias stop growing after 256 or 2048 rows

The CPU kernel adds up dweight and dbias over the rows of a thread in the dtype of x. In bfloat16
a sum of ones stops at 256, in float16 at 2048; other sums lose most of their digits.

affected: whoever trains in bfloat16 or float16 on a CPU, with parameters in float32 (autocast) too
library: torch
versions: 2.13.0
source: aten/src/ATen/native/cpu/layer_norm_kernel.cpp, LayerNormBackwardKernelImplInternal:
  `buffer = at::empty({0}, X.options())`, to which layer_norm_backward_frame adds row by row
reported: none found
"""

import torch

torch.set_num_threads(1)  # each thread has a sum of its own
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    norm = torch.nn.LayerNorm(2, dtype=dtype)
    y = norm(torch.tensor([[-1.0, 1.0]], dtype=dtype).repeat(4096, 1))
    y.sum().backward()
    dweight, dbias = norm.weight.grad[1].item(), norm.bias.grad[1].item()
    print(f"{dtype}: dweight[1] {dweight:.0f}, dbias[1] {dbias:.0f}")
raise SystemExit(dbias == 4096)

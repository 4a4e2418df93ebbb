"""In half precision, the backward uses a mean and rstd that were rounded to half precision

The CPU kernel computes y with float32 statistics and keeps them for the backward in the dtype of
the parameters. Here the backward takes 102 for the mean, which is 101.75. For a single row and a
gradient of ones, dweight should equal y. dx is wrong in the same way.

affected: whoever trains in bfloat16 or float16 on a CPU, most with rows whose mean is large beside
  their standard deviation; with parameters in float32 the statistics are kept in float32
library: torch
versions: 2.13.0
source: aten/src/ATen/native/cpu/layer_norm_kernel.cpp, layer_norm_kernel_mixed_type:
  `param_t* mean_data`; aten/src/ATen/native/cpu/mixed_data_type.h:38, param_scalar_type
reported: none found
"""

import torch

for dtype in (torch.float32, torch.bfloat16):
    x = torch.tensor([[100.0, 101.0, 102.0, 104.0]], dtype=dtype)
    weight = torch.ones(4, dtype=dtype, requires_grad=True)
    y, mean, _ = torch.native_layer_norm(x, (4,), weight, None, 1e-5)
    y.sum().backward()
    print(f"{dtype}: mean kept {mean.item()}")
    for name, values in (("y", y[0]), ("dweight", weight.grad)):
        print(f"  {name:8}", [round(value, 2) for value in values.tolist()])
raise SystemExit(torch.allclose(weight.grad, y[0], rtol=0.02))

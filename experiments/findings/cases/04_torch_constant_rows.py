"""For constant rows, dweight is not 0, and in bfloat16 y is not the bias

x minus its mean is 0, but the kernels compute `x * rstd - mean * rstd`. A fused multiply and add
leaves the rounding error of the second product: 8 of the 11 here. Rows of any width, of one element
too, show it; of the float32 kernels only the backward.

affected: rows of padding or other constants, on a CPU with AVX2 or AVX512
library: torch
versions: 2.13.0
source: aten/src/ATen/native/cpu/layer_norm_kernel.cpp, layer_norm_backward_frame:
  `dgamma + dy * (Vec(a) * x + Vec(b))`; layer_norm_kernel_mixed_type: `bias = -rstd_val * mean_val`
reported: https://github.com/pytorch/pytorch/issues/188375, of normalized_shape=(1,)
"""

import torch

wrong = []
for dtype in (torch.float32, torch.bfloat16):
    x, bias = torch.tensor([[1e6], [3.0]], dtype=dtype)
    weight = torch.full((1,), 2.0, dtype=dtype, requires_grad=True)
    y = torch.nn.functional.layer_norm(x, (1,), weight, bias)
    y.backward()
    wrong += [y.item() - 3, weight.grad.item()]
    print(f"{dtype}: y {y.item()}, right 3; dweight {weight.grad.item():.2g}, right 0")
raise SystemExit(not any(wrong))

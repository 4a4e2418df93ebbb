"""The third derivative is wrong, without an error

The formula of the second derivative takes mean and rstd as given. It accounts for their dependence
on x by hand, so that it is right itself; differentiated again, it lacks that dependence.

affected: third and higher derivatives, for instance in physics-informed networks; run on a CPU,
  but the formula is that of every device
library: torch
versions: 2.13.0
source: tools/autograd/derivatives.yaml:1279, layer_norm_double_backward
reported: https://github.com/pytorch/pytorch/issues/175754
"""

import torch

x = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
right = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
pair = torch.nn.functional.layer_norm(x, (3,))[0], right[0]
for order in (1, 2, 3):
    pair = [torch.autograd.grad(each, x, create_graph=True)[0][0] for each in pair]
    print(f"derivative {order} of y[0] by x[0]: {pair[0]:.6f}, right {pair[1]:.6f}")
raise SystemExit(abs(pair[0] - pair[1]).item() < 1e-9)

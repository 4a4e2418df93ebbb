"""dbias has no derivative where there is a bias and no weight, without an error

dbias is the sum of dy over the rows, so each of its derivatives by dy is 1. With a weight that is
what torch gives; without one the derivative is missing, which `backward()` takes for 0.

affected: gradients of gradients of a layer with a bias alone; run on a CPU, but the formula is that
  of every device
library: torch
versions: 2.13.0
source: tools/autograd/derivatives.yaml:1279, layer_norm_double_backward
reported: https://github.com/pytorch/pytorch/issues/79705
"""

import torch

x, bias = torch.randn(6, 32), torch.zeros(32, requires_grad=True)
dy = torch.ones(6, 32, requires_grad=True)
for weight in (torch.ones(32), None):
    y = torch.nn.functional.layer_norm(x, (32,), weight, bias)
    (dbias,) = torch.autograd.grad(y, bias, dy, create_graph=True)
    (found,) = torch.autograd.grad(dbias.sum(), dy, allow_unused=True)
    shown = found if found is None else found.mean().item()
    print(f"{'no weight' if weight is None else 'a weight'}: derivative of dbias by dy: {shown}")
raise SystemExit(found is not None)

"""A custom operator has the derivative 0 in forward mode, without an error

register_autograd gives an operator a derivative for the backward alone. In forward mode the tangent
is dropped where an autograd.Function without jvp raises: of y = x - op(x) only x is derived.

affected: kernels behind torch.library.custom_op in torch.func.jvp, jacfwd and hessian
library: torch
versions: 2.13.0
source: torch/_library/autograd.py, make_autograd_impl: without an input that requires a gradient
  it calls the operator below autograd
reported: none found; https://github.com/pytorch/pytorch/issues/179652 is of jacrev, which raises
"""

import torch


@torch.library.custom_op("example::mean", mutates_args=())
def mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean()


mean.register_autograd(lambda ctx, dy: dy.expand(3) / 3, setup_context=lambda ctx, **_: None)
x, v = torch.ones(3), torch.tensor([1.0, 0.0, 0.0])
found, right = (torch.func.jvp(form, (x,), (v,))[1].tolist() for form in (mean, torch.mean))
print(f"derivative of the mean: {found}, right {right}")
raise SystemExit(found == right)

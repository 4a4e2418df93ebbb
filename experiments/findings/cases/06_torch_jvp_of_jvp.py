"""The second derivative by forward mode, jvp of a jvp, is wrong, without an error

The formula of forward mode takes mean and rstd as given, so that their dependence on x is lost when
it is differentiated again.

affected: Hessians and Taylor series by forward mode; run on a CPU, but the formula is that of
  every device
library: torch
versions: 2.13.0
source: tools/autograd/derivatives.yaml:1276, layer_norm_jvp
reported: https://github.com/pytorch/pytorch/issues/196700
"""

import torch

x, v = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 0.0]], dtype=torch.float64)


def right(at):
    return (at - at.mean()) / ((at - at.mean()).square().mean() + 1e-5).sqrt()


def second(f):
    return torch.func.jvp(lambda at: torch.func.jvp(f, (at,), (v,))[1], (x,), (v,))[1]


found, expected = second(lambda at: torch.nn.functional.layer_norm(at, (3,))), second(right)
print("jvp of jvp:", [round(value, 6) for value in found.tolist()])
print("right:     ", [round(value, 6) for value in expected.tolist()])
raise SystemExit(torch.allclose(found, expected))

"""The scale of RMSNorm is the root of the width of the image, not of the channels

`F.normalize(x, dim = 1) * self.g * (x.shape[-1] ** 0.5)` normalises the channels, so the factor
should be `x.shape[1] ** 0.5`, as in the other RMSNorms of the package.

affected: whoever uses guided_diffusion.py; what a model computes depends on the size of the image
library: denoising-diffusion-pytorch
versions: 2.3.4
source: denoising_diffusion_pytorch/guided_diffusion.py:103, RMSNorm.forward
reported: none found
"""

import torch
from denoising_diffusion_pytorch.guided_diffusion import RMSNorm

sizes = []
for width in (4, 16, 64):
    y = RMSNorm(16)(torch.ones(2, 16, 4, width))
    sizes.append(y.square().mean().sqrt().item())
    print(f"16 channels, width {width}: root mean square of y {sizes[-1]:.2f}, right 1")
raise SystemExit(all(abs(size - 1) < 0.01 for size in sizes))

"""With stable=True, LayerNorm negates rows without a positive element, or makes them NaN

`x = x / x.amax(dim = -1, keepdim = True)` divides by the largest element, not by the largest
absolute value: by a negative one, or by 0. ChanLayerNorm and imagen-pytorch too.

affected: the prior, whose transformer ends in LayerNorm(dim, stable=True) (line 964)
library: dalle2-pytorch
versions: 1.15.6
source: dalle2_pytorch/dalle2_pytorch.py:701, LayerNorm.forward
reported: none found
"""

import torch
from dalle2_pytorch.dalle2_pytorch import LayerNorm

x = torch.tensor([[-1.0, -2.0, -3.0], [0.0, -1.0, -2.0]])
for stable in (False, True):
    y = LayerNorm(3, stable=stable)(x)
    print(f"stable={stable}:", [[round(value, 2) for value in row] for row in y.tolist()])
raise SystemExit(torch.allclose(y, LayerNorm(3)(x), atol=0.01))

"""ConvLayerNorm returns None

forward ends in a bare `return` after it has computed the result.

affected: models with norm="layer_norm"; the published ones use "weight_norm". espnet has a copy
library: encodec
versions: 0.1.1
source: encodec/modules/norm.py:28, ConvLayerNorm.forward
reported: https://github.com/facebookresearch/encodec/pull/54
"""

import torch
from encodec.modules.norm import ConvLayerNorm

y = ConvLayerNorm(8)(torch.randn(2, 8, 5))
print(f"y: {y}, right: a tensor of shape (2, 8, 5)")
raise SystemExit(y is not None)

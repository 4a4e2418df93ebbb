"""LayerNorm overrides the eps that it is given

The constructor passes its arguments on to torch.nn.LayerNorm and then sets `self.eps = 1e-6`. It is
meant as a default and acts on every value.

affected: whoever gives an eps; the models of the package do not
library: kornia
versions: 0.9.0
source: kornia/models/sam/architecture/common.py:65, LayerNorm.__init__
reported: none found
"""

from kornia.models.sam.architecture.common import LayerNorm

eps = LayerNorm(8, eps=1e-3).eps
print(f"LayerNorm(8, eps=1e-3).eps = {eps}")
raise SystemExit(eps == 1e-3)

"""In half precision, dx is a difference of two rounded gradients

x is cast to float32 twice: for the statistics, and where the mean is subtracted. Each cast rounds
its gradient to bfloat16, and the two cancel when they are added. With one cast dx is right.

affected: whoever trains in bfloat16 or float16; seen on a CPU, with jit, nnx.LayerNorm and
  use_fast_variance=False too
library: flax
versions: 0.12.8
source: flax/linen/normalization.py:116, `x = jnp.asarray(x, dtype)`, and :205, `y = x - mean`;
  flax/nnx/nn/normalization.py:98 and 170 are the same
reported: none found
"""

from flax.linen import LayerNorm
from jax import random, vjp


def dx(x, dy):
    return vjp(lambda x: LayerNorm(use_bias=False, use_scale=False).apply({}, x), x)[1](dy)[0]


x, noise = random.normal(random.key(0), (2, 64))
given = x.astype("bfloat16"), (1 + noise / 16).astype("bfloat16")
found, right = dx(*given), dx(*(each.astype("float32") for each in given))
error, rounding = (abs(each - right).max() for each in (found, right.astype("bfloat16")))
print(f"largest error of dx: {error:.2g}; of the right dx, rounded to bfloat16: {rounding:.2g}")
raise SystemExit(bool(error < 2 * rounding))

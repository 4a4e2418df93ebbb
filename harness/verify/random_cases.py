"""Valid cases drawn at random from the whole range of each axis, not from the values of an array.

They show which compound mutants can be seen at all (:mod:`harness.verify.red_team`).
"""

from __future__ import annotations

from random import Random

from harness.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS
from harness.records import Affine, Autograd, Case, Direction

__all__ = ["draw_cases"]

_MOST_ROWS = 300  # beyond the last limit of a condition on rows, 128
_LONGEST = 6000  # beyond the last limit of a condition on N, 4096
_MOST_ELEMENTS = 1 << 16  # for a case that takes milliseconds
_EPS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-3, 0.5)
# without eps, a constant row has no result
_NEVER_CONSTANT = ("normal", "uniform", "offset_1e2", "outlier_first", "row_scales")
_THREADS = (1, 1, 1, 1, 1, 1, 1, 1, 1, 2)  # threads wait for each other for most of a small case
_CALLS = (
    (Direction.FORWARD, Autograd.DEFAULT),
    (Direction.FORWARD, Autograd.INFERENCE_MODE),
    (Direction.FORWARD, Autograd.RECORDED),
    (Direction.BACKWARD, Autograd.DEFAULT),
    (Direction.BACKWARD, Autograd.FROZEN_X),
    (Direction.BACKWARD, Autograd.FROZEN_PARAMETERS),
    (Direction.BACKWARD, Autograd.FROZEN_WEIGHT),
    (Direction.BACKWARD, Autograd.FROZEN_BIAS),
    (Direction.BACKWARD, Autograd.NON_LEAF_X),
)
# with these parameters, one is frozen and something requires a gradient
_FROZEN = {
    Autograd.FROZEN_X: (Affine.BOTH, Affine.WEIGHT, Affine.BIAS),
    Autograd.FROZEN_PARAMETERS: (Affine.BOTH, Affine.WEIGHT, Affine.BIAS),
    Autograd.FROZEN_WEIGHT: (Affine.BOTH, Affine.WEIGHT),
    Autograd.FROZEN_BIAS: (Affine.BOTH, Affine.BIAS),
}


def draw_cases(count: int, dtype: str, seed: int = 0) -> list[Case]:
    """Draw ``count`` cases of ``dtype``."""
    random = Random(seed)
    return [_drawn(random, dtype) for _ in range(count)]


def _drawn(random: Random, dtype: str) -> Case:
    leading, dims = random.choice((0, 1, 1, 2, 2, 3)), random.choice((1, 1, 2, 3))
    rows, hidden = _count(random, _MOST_ROWS), _count(random, _LONGEST)
    rows = min(rows, _MOST_ELEMENTS // hidden)
    shape = (*_split(random, rows, leading), *_split(random, hidden, dims))
    direction, autograd = random.choice(_CALLS)
    affine = random.choice(list(Affine) if autograd not in _FROZEN else _FROZEN[autograd])
    distribution = random.choice(list(DISTRIBUTIONS))
    has_results_without_eps = distribution in _NEVER_CONSTANT and leading > 0
    # a negated x is left out: misreading it is a remark
    return Case(
        implementation="",
        shape=shape,
        normalized_dims=dims,
        dtype=dtype,
        param_dtype=random.choice((dtype, "float32")) if dtype.endswith("16") else dtype,
        distribution=distribution,
        layout=random.choice([each for each in LAYOUTS if each != "negated"]),
        direction=direction,
        autograd=autograd,
        grad_output=random.choice(list(GRAD_OUTPUTS)),
        affine=affine,
        parameters=random.choice(list(PARAMETERS)),
        eps=random.choice((0.0, *_EPS) if has_results_without_eps else _EPS),
        threads=random.choice(_THREADS),
        seed=random.randrange(1 << 16),
    )


def _count(random: Random, most: int) -> int:
    """Draw a number from 1 to ``most``: as often a small one as a large one, or a round one."""
    drawn = int(most ** random.random())
    step = random.choice((1, 1, 1, 4, 32))
    return max(drawn // step * step, 1)


def _split(random: Random, count: int, axes: int) -> tuple[int, ...]:
    """Split a number into factors, one for each axis; without axes it is 1."""
    if axes == 0:
        return ()
    factors = []
    for _ in range(axes - 1):
        part = random.choice([each for each in (1, 2, 3, 4, 5, 7) if count % each == 0])
        factors.append(part)
        count //= part
    return (*factors, count)

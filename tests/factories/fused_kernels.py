"""What the tests of the fused kernels share: where they run, and their inputs.

They run on a GPU, or interpreted by Triton on the CPU if TRITON_INTERPRET=1 was in the environment
before Python started. test_fused_interpreted.py starts such a process in every test run.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.numerics.error_measurement import measure_errors
from harness.records import Case, Direction, Status
from harness.run.attempt import Judged, attempt
from implementations import Implementation, find

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

# The interpreter takes seconds for a row that no GPU program can hold. The fixture `shrunk` divides
# the columns of all tiles by this number, so that shorter rows go through the same kernels.
SHRINK = 16 if INTERPRETED else 1
UNIT = 1024 // SHRINK
LONG, LONG_ALIGNED = 16 * UNIT + 51, 16 * UNIT + 48  # read element by element, and by 16 bytes

RUN_SOMEWHERE = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(),
        reason="needs a GPU, or TRITON_INTERPRET=1, which test_fused_interpreted.py sets",
    ),
    # of numpy, in which Triton interprets infinity and NaN
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

NAMES = ["triton_one_pass", "triton_two_pass", "triton_welford", "triton_recentred"]
DTYPES = ["float32", "bfloat16", "float16", "float64"]

every_name = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def trial(name: str, shape: tuple[int, ...], dtype: str, **axes: Any) -> Judged:
    case = Case(
        implementation=name,
        shape=shape,
        dtype=dtype,
        param_dtype=axes.pop("param_dtype", dtype),
        device=DEVICE,
        direction=axes.pop("direction", Direction.BACKWARD),
        **axes,
    )
    return attempt(find(name), case, measure=measure_errors)


def assert_right(*trials: Judged) -> None:
    """Assert that no trial failed, and that at least one is within the algorithm's guarantee."""
    wrong = {Status.WRONG, Status.ERROR, Status.UNSUPPORTED}
    assert [(trial.case.id, trial.reason) for trial in trials if trial.status in wrong] == []
    assert any(trial.status is Status.OK for trial in trials)


def tensors(
    shape: tuple[int, ...], hidden: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw x, weight, bias and dy."""
    generator = torch.Generator().manual_seed(5)
    sizes = (shape, (hidden,), (hidden,), shape)
    return tuple(torch.randn(size, generator=generator).to(DEVICE, dtype) for size in sizes)


def gradients(
    norm: Implementation, given: tuple[Tensor, ...], dy: Tensor, wanted: tuple[int, ...]
) -> tuple[Tensor, ...]:
    leaves = [each.clone().requires_grad_(index in wanted) for index, each in enumerate(given)]
    y = norm(leaves[0], (leaves[0].shape[-1],), leaves[1], leaves[2])
    return torch.autograd.grad(y, [leaves[index] for index in wanted], dy)

"""Mutants with right results that change the state of the process for all that runs later.

Each change leaves later results as they are, as far as possible: it is made in this process.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from harness.verify.mutants.arguments import LayerNormCall
from harness.verify.mutants.mutant import CheckKind, Mutant

_VARIABLE = "LAYER_NORM_OF_THE_SELF_TEST"


def _changing(name: str, mistake: str, change: Callable[[], object]) -> Mutant:
    """Return a right LayerNorm that makes a change after each call."""

    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        y = LayerNormCall(x, normalized_shape, weight, bias, eps).y
        change()
        return y

    return Mutant(name=name, mistake=mistake, function=layer_norm, caught_by=CheckKind.EFFECT)


matrix_precision_lowered = _changing(
    "matrix_precision_lowered",
    'sets the precision of float32 matrix products to "high"',
    lambda: torch.set_float32_matmul_precision("high"),
)
tf32_of_convolutions_switched_off = _changing(
    "tf32_of_convolutions_switched_off",
    "switches TF32 off in convolutions",
    lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
)
benchmark_mode_switched_on = _changing(
    "benchmark_mode_switched_on",
    "switches cuDNN's benchmark mode on",
    lambda: setattr(torch.backends.cudnn, "benchmark", True),
)
one_thread_left = _changing(
    "one_thread_left",
    "sets the number of threads to 1 and leaves it there",
    lambda: torch.set_num_threads(1),
)
warnings_ignored = _changing(
    "warnings_ignored",
    "ignores every warning from now on",
    lambda: warnings.simplefilter("ignore"),
)
numpy_errors_ignored = _changing(
    "numpy_errors_ignored",
    "ignores NumPy's floating-point errors from now on",
    lambda: np.seterr(all="ignore"),
)
environment_variable_set = _changing(
    "environment_variable_set",
    "sets an environment variable",
    lambda: os.environ.__setitem__(_VARIABLE, "1"),
)
pythons_generator_seeded = _changing(
    "pythons_generator_seeded",
    "seeds Python's random numbers",
    lambda: random.seed(0),
)
numpys_generator_used = _changing(
    "numpys_generator_used",
    "draws from NumPy's random numbers",
    lambda: np.random.rand(),
)
recursion_limit_raised = _changing(
    "recursion_limit_raised",
    "raises the recursion limit",
    lambda: sys.setrecursionlimit(20_000),
)
autocast_left_on = _changing(
    "autocast_left_on",
    "switches autocast on and leaves it on",
    lambda: torch.set_autocast_enabled("cuda", True),
)
default_dtype_left_wide = _changing(
    "default_dtype_left_wide",
    "sets the default dtype to float64 and leaves it there",
    lambda: torch.set_default_dtype(torch.float64),
)

"""A case of a sweep, its axes, and its time budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod


class Mode(StrEnum):
    """How the function is run. Each mode is verified and timed separately."""

    EAGER = "eager"
    COMPILED = "compiled"


class Direction(StrEnum):
    """Which pass is run."""

    FORWARD = "forward"
    """Inference: no gradient is recorded."""
    BACKWARD = "backward"
    """The backward of a graph recorded beforehand."""
    FORWARD_BACKWARD = "forward+backward"
    """A training step: forward with gradient recording, then backward."""


class Autograd(StrEnum):
    """How a call takes part in autograd. Kernels skip or reorder work by each of these."""

    DEFAULT = "default"
    """Forward: under no_grad. Backward: x, weight and bias are leaves that require a gradient."""
    INFERENCE_MODE = "inference_mode"
    """Forward under torch.inference_mode."""
    RECORDED = "recorded"
    """Forward alone that records a graph."""
    FROZEN_X = "frozen_x"
    """Backward in which x requires no gradient, as in a first layer."""
    FROZEN_PARAMETERS = "frozen_parameters"
    """Backward in which weight and bias require none, as in fine-tuning of other layers."""
    FROZEN_WEIGHT = "frozen_weight"
    """Backward in which the weight requires none."""
    FROZEN_BIAS = "frozen_bias"
    """Backward in which the bias requires none."""
    ONLY_WEIGHT = "only_weight"
    """Backward in which the weight alone requires a gradient."""
    ONLY_BIAS = "only_bias"
    """Backward in which the bias alone requires one, as where biases alone are fine-tuned."""
    NON_LEAF_X = "non_leaf_x"
    """Backward in which x is the result of another operation, as in every layer but the first."""


class Affine(StrEnum):
    """Which parameters are given."""

    BOTH = "both"
    WEIGHT = "weight"
    BIAS = "bias"
    NONE = "none"


_FROZEN: dict[Autograd, tuple[str, ...]] = {
    Autograd.FROZEN_X: ("x",),
    Autograd.FROZEN_PARAMETERS: ("weight", "bias"),
    Autograd.FROZEN_WEIGHT: ("weight",),
    Autograd.FROZEN_BIAS: ("bias",),
    Autograd.ONLY_WEIGHT: ("x", "bias"),
    Autograd.ONLY_BIAS: ("x", "weight"),
}


class Measurement(StrEnum):
    """What can be measured for a case."""

    ERRORS = "errors"
    LATENCY = "latency"
    COLD = "cold"
    """Latency of calls whose inputs are not in the cache."""
    MEMORY = "memory"
    INSTRUCTIONS = "instructions"
    """CPU instructions of a call, counted by valgrind after everything else is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of a sweep: everything needed to run it again, and nothing else."""

    implementation: str
    """Name or target of the implementation."""
    mode: Mode = Mode.EAGER
    """Eager, or under torch.compile."""
    shape: tuple[int, ...]
    """Shape of x."""
    normalized_dims: int = 1
    """Number of trailing axes that are normalised."""
    dtype: str = "float32"
    """torch name of x's dtype, without the prefix."""
    param_dtype: str = "float32"
    """torch name of the dtype of weight and bias."""
    device: str = "cpu"
    """Device kind, e.g. "cuda", without an index."""
    distribution: str = "normal"
    """Name of the input distribution."""
    layout: str = "contiguous"
    """Name of x's memory layout; that of dy, too, if it is in ``OF_DY_TOO``."""
    direction: Direction = Direction.FORWARD
    """Which pass is run."""
    autograd: Autograd = Autograd.DEFAULT
    """How the call takes part in autograd; values of the other pass count as "default"."""
    grad_output: str = "shifted_normal"
    """Name of the output gradient that a backward starts from."""
    affine: Affine = Affine.BOTH
    """Which of weight and bias are given."""
    parameters: str = "normal"
    """Name of the values of weight and bias."""
    eps: float = 1e-5
    """Added to the variance, inside the square root."""
    threads: int = 1
    """CPU threads that torch may use."""
    seed: int = 0
    """Seed of the inputs."""

    @property
    def leading_shape(self) -> tuple[int, ...]:
        return self.shape[: len(self.shape) - self.normalized_dims]

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        return self.shape[len(self.shape) - self.normalized_dims :]

    @property
    def rows(self) -> int:
        """Number of rows; mean and variance are computed per row."""
        return prod(self.leading_shape)

    @property
    def hidden(self) -> int:
        """Number of elements in a row."""
        return prod(self.normalized_shape)

    @property
    def differentiated(self) -> tuple[str, ...]:
        """The arguments that require a gradient in a backward, if they are given."""
        frozen = _FROZEN.get(self.autograd, ())
        return tuple(name for name in ("x", "weight", "bias") if name not in frozen)

    @property
    def id(self) -> str:
        """Readable key by which a case is matched with its baseline; stable across releases.

        The first five axes are always included. The others are included only if they differ from
        their default (for ``param_dtype``: ``dtype``), so that a new axis changes no existing id.
        """
        return "/".join(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """What the id is made of."""
        shape = "x".join(map(str, self.shape))
        always = (self.implementation, self.direction, shape, self.dtype, self.distribution)
        return (*always, *self.settings())

    def settings(self) -> tuple[str, ...]:
        """Return the settings that differ from their default, as the id writes them."""
        found = []
        for name in dict.fromkeys((*_LABELS, *(name for name in _FIELDS if name not in _IN_ID))):
            value, usual = getattr(self, name), _FIELDS[name].default
            if value != (self.dtype if name == "param_dtype" else usual):
                found.append(f"{_LABELS.get(name, f'{name}=')}{value}")
        return tuple(found)


_FIELDS = Case.__dataclass_fields__
_IN_ID = ("implementation", "direction", "shape", "dtype", "distribution")  # of every case
# first in the id, and how it writes them; other settings are written as name=value
_LABELS = {"mode": "", "device": "", "normalized_dims": "dims=", "param_dtype": "params="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop sampling a case."""

    target_ratio: float = 0.01
    """Sampling stops when the half-width of the ratio's 95 % interval is at most this."""
    long_target_ratio: float | None = None
    """The same where a call of the reference takes a millisecond or more; None if as above."""
    min_epochs: int = 4
    """Minimum number of epochs; an interval from fewer is too uncertain."""
    max_epochs: int = 12
    """Maximum per process; more epochs would not narrow the interval across processes."""
    limit_s: float = 2.0
    """Time limit of sampling: an epoch that would end later is not started, except the first."""
    processes: int = 1
    """Maximum number of processes in which a case is timed."""
    uneven_ratio: float = 1.5
    """From this ratio on of mean to low quantile, relative to the reference, calls are uneven.
    experiments/estimates/README.md counts how often right implementations are called so."""

"""What was asked: a case of a sweep, and the axes it is a point of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

__all__ = ["Affine", "Budget", "Case", "Direction", "Measurement", "Mode"]


class Mode(StrEnum):
    """How the function is run: two things to verify and to time."""

    EAGER = "eager"
    COMPILED = "compiled"


class Direction(StrEnum):
    """Which pass is run."""

    FORWARD = "forward"
    """Inference: no gradient is recorded."""
    BACKWARD = "backward"
    """Gradients alone, of a graph recorded beforehand."""
    FORWARD_BACKWARD = "forward+backward"
    """A training step: forward with gradient recording, then backward."""


class Affine(StrEnum):
    """Which parameters are given."""

    BOTH = "both"
    WEIGHT = "weight"
    BIAS = "bias"
    NONE = "none"


class Measurement(StrEnum):
    """What can be measured of a case."""

    ERRORS = "errors"
    LATENCY = "latency"
    COLD = "cold"
    """Latency on inputs that no cache holds."""
    MEMORY = "memory"


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
    """How many trailing axes are normalised over."""
    dtype: str = "float32"
    """torch name of x's dtype, without the prefix."""
    param_dtype: str = "float32"
    """torch name of the dtype of weight and bias."""
    device: str = "cpu"
    """Device kind, e.g. "cuda". Not the index: that says where, not what."""
    distribution: str = "normal"
    """Name of the input distribution."""
    layout: str = "contiguous"
    """Name of x's layout in memory; those of several batch axes are dy's too."""
    direction: Direction = Direction.FORWARD
    """Which pass is run."""
    grad_output: str = field(default="shifted_normal", metadata={"formerly": "upstream"})
    """Name of the gradient of y that a backward pass starts from."""
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
    def normalized_shape(self) -> tuple[int, ...]:
        return self.shape[len(self.shape) - self.normalized_dims :]

    @property
    def rows(self) -> int:
        """How many means there are."""
        return prod(self.shape[: len(self.shape) - self.normalized_dims])

    @property
    def hidden(self) -> int:
        """How many elements share one mean."""
        return prod(self.normalized_shape)

    @property
    def id(self) -> str:
        """Readable key that joins a case to its baseline; stable across releases.

        The first five axes are always there. The others follow only where they differ from the
        usual value, so that a new axis changes no existing id.
        """
        shape = "x".join(map(str, self.shape))
        always = (self.implementation, self.direction, shape, self.dtype, self.distribution)
        return "/".join((*always, *self.settings()))

    def settings(self) -> tuple[str, ...]:
        """Return the settings that differ from the usual value, as the id writes them."""
        unusual = (
            (self.mode is not Mode.EAGER, f"{self.mode}"),
            (self.device != "cpu", self.device),
            (self.normalized_dims != 1, f"dims={self.normalized_dims}"),
            (self.param_dtype != self.dtype, f"params={self.param_dtype}"),
            (self.layout != "contiguous", f"layout={self.layout}"),
            (self.grad_output != "shifted_normal", f"grad_output={self.grad_output}"),
            (self.affine is not Affine.BOTH, f"affine={self.affine}"),
            (self.parameters != "normal", f"parameters={self.parameters}"),
            (self.eps != 1e-5, f"eps={self.eps!r}"),
            (self.threads != 1, f"threads={self.threads}"),
            (self.seed != 0, f"seed={self.seed}"),
        )
        return tuple(text for differs, text in unusual if differs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop sampling a case."""

    target_ratio: float = 0.01
    """Half-width of the ratio's 95 % interval that is narrow enough."""
    min_epochs: int = 4
    """Epochs sampled at least; an interval over fewer says little."""
    max_epochs: int = 12
    """Epochs sampled at most; more of them in one process narrow nothing."""
    limit_s: float = 2.0
    """Seconds of sampling: no epoch starts that would last beyond them, the first one aside."""
    processes: int = 1
    """Processes that a case is timed in at most."""

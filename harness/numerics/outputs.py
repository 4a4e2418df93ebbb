"""What an implementation returns for a case."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["GRADIENTS", "OUTPUTS", "Outputs"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What an implementation returned for a case."""

    y: Tensor
    """Of x's shape."""
    dx: Tensor | None = None
    """Of x's shape; None in a forward case."""
    dweight: Tensor | None = None
    """Of the normalized shape; None where there is no weight."""
    dbias: Tensor | None = None
    """Of the normalized shape; None where there is no bias."""


OUTPUTS = ("y", "dx", "dweight", "dbias")
"""The names of all outputs."""
GRADIENTS = OUTPUTS[1:]

"""Deliberately wrong LayerNorms, and right ones that are written in unusual ways.

The wrong ones test the verifier, which must find each of them. They also diagnose a failed target:
its mistake is named after the nearest mutant. To add one, write a function or a class in the module
of its family, wrapped as a mutant.
"""

from types import ModuleType

from harness.verify.mutants import (
    effects,
    gradient,
    graph,
    interaction,
    kernel,
    layout,
    path,
    precision,
    process,
    right,
    semantics,
    sizes,
    state,
)
from harness.verify.mutants.mutant import CheckKind, Mutant
from implementations.contract import Implementation

__all__ = ["RIGHT", "WRONG", "CheckKind", "Mutant"]

# in the order in which to read them
_FAMILIES: tuple[ModuleType, ...] = (
    semantics,
    precision,
    kernel,
    state,
    layout,
    gradient,
    graph,
    interaction,
    sizes,
    effects,
    process,
    path,
)

WRONG: tuple[Mutant, ...] = tuple(
    value for family in _FAMILIES for value in vars(family).values() if isinstance(value, Mutant)
)
"""Each wrong in one way."""

RIGHT: tuple[Implementation, ...] = tuple(
    value for value in vars(right).values() if isinstance(value, Implementation)
)
"""Each right, and held to what it declares."""

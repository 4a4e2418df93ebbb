"""Deliberately wrong LayerNorms, and right ones that are written in unusual ways.

The wrong ones test the verifier, which must find each of them. They also diagnose a failed target:
its mistake is named after the nearest mutant. To add one, write a function in the module of its
kind; if a known mistake is made under conditions, write a row in :mod:`.conditional`.
"""

from harness.mutants import effects, gradient, kernel, right, values
from harness.mutants.arguments import (
    LayerNormCall,
    Rows,
    function_of,
    layer_norm_of,
    then,
    with_value,
)
from harness.mutants.conditional import CONDITIONAL
from harness.mutants.conditions import CONDITIONS, CallCondition, CallFacts
from harness.mutants.mutant import Mutant, functions_in, mutant_of, right_of
from implementations.contract import Implementation

__all__ = [
    "CONDITIONS",
    "RIGHT",
    "WRONG",
    "CallCondition",
    "CallFacts",
    "LayerNormCall",
    "Mutant",
    "Rows",
    "function_of",
    "layer_norm_of",
    "named",
    "then",
    "with_value",
]

WRONG: tuple[Mutant, ...] = (
    *map(mutant_of, functions_in(values, kernel, gradient, effects)),
    *CONDITIONAL,
)
"""Each wrong in one way."""

RIGHT: tuple[Implementation, ...] = tuple(map(right_of, functions_in(right)))
"""Each right, and held to what it declares."""


def named(name: str) -> Mutant:
    """Return the mutant with a name."""
    return next(mutant for mutant in WRONG if mutant.name == name)

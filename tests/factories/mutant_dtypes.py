"""Two of the four dtypes for each mutant: all take minutes, and are what ``--self-test`` tries."""

from __future__ import annotations

from collections.abc import Sequence

from harness.verify.mutants import Mutant
from implementations import Implementation

__all__ = ["two_dtypes"]

_PAIRS = ({"float32", "bfloat16"}, {"float64", "float16"})


def two_dtypes(
    targets: Sequence[Mutant] | Sequence[Implementation],
) -> dict[str, set[str]]:
    """Return one wide and one narrow dtype by name, in turn."""
    return {each.name: _PAIRS[place % 2] for place, each in enumerate(targets)}

"""Two of the four dtypes for each mutant: all take minutes, and are what ``--self-test`` tries."""

from __future__ import annotations

from collections.abc import Sequence

from harness.verify.mutants import Mutant
from implementations import Implementation

__all__ = ["two_dtypes"]

_PAIRS = ({"float32", "bfloat16"}, {"float64", "float16"})


def two_dtypes(
    targets: Sequence[Mutant] | Sequence[Implementation], *, start: int = 0
) -> dict[str, set[str]]:
    """Return one wide and one narrow dtype by name, in turn; ``start=1`` takes the other two."""
    return {each.name: _PAIRS[(start + number) % 2] for number, each in enumerate(targets)}

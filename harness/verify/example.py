"""The smallest example of a mistake: one call in numbers, with what is right beside them."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import Case

__all__ = ["Example"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One call of a target whose result is wrong or inaccurate, as plain values."""

    case: Case
    """The nearest case; what is not at its simplest value is needed for the mistake."""
    output: str
    """The output that is wrong: "y", "dx", "dweight" or "dbias"."""
    shape: tuple[int, ...]
    """Of x."""
    x: tuple[float, ...] = ()
    """All elements, in row-major order; empty if they are many."""
    weight: tuple[float, ...] | None = None
    """None if it is not given; empty if all are one."""
    bias: tuple[float, ...] | None = None
    """None if it is not given; empty if all are zero."""
    dy: tuple[float, ...] | None = None
    """None without a backward."""
    eps: float = 1e-5
    computed: tuple[float, ...] = ()
    """Of that output, or of its worst row or element if it is large; empty after a crash."""
    exact: tuple[float, ...] = ()
    """The right values of the same elements."""
    error_ulp: float = 0.0
    """The largest error of the output, in ulp at the scale of its row or column."""
    allowed_ulp: float | None = None
    """The error bound in the same unit; None where there is none."""
    conditions: tuple[str, ...] = ()
    """What else must hold, in words."""
    commands: str = ""
    """A line of the command line that repeats the case."""

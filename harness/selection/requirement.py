"""What is required of a candidate, beyond its error bound, and why that much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from harness.records import Record

__all__ = [
    "DEFAULT_MAX_CONDITION",
    "Requirements",
    "condition_text",
    "is_required",
    "largest_required",
    "requirement_levels",
    "requirement_text",
]

DEFAULT_MAX_CONDITION = 1e3
"""Largest condition number that an implementation has to serve, unless the user says otherwise.

The condition number of a row is 1/sin(a), where a is the angle between the row and the vector of
ones. Gupta et al. (Findings of EACL 2026, arXiv:2409.12951) measured that angle in language models
with LayerNorm and with RMSNorm: on average the rows have no component along the vector of ones, so
that the condition number is near 1. Activations that are 1e5 times the others (Sun et al., COLM
2024, arXiv:2402.17762) lower it, since they raise the variance more than the mean. Both papers are
about averages or single values, not about the worst row of every model, so this is three powers of
ten above what they measured. Bug reports show more (3e3 in ml-explore/mlx#2238, for instance).
"""
_SLACK_RATIO = 1.1
"""The worst of many rows of "normal plus 1e3" has a condition number a few percent above 1e3."""
_LEVELS = (10.0, 1e3, 1e6)
"""Requirements to show beside "all inputs": activations, the default, raw data with an offset."""
_MOST_RECORDS = 20_000  # trade-off: of more, each further level takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of the user, beyond the error bound of each candidate."""

    max_error_ulp: float | None = None
    """Largest allowed error of its worst output, scaled."""
    max_condition: float = DEFAULT_MAX_CONDITION
    """Records of inputs with a larger condition number are ignored; infinite for none."""


def is_required(record: Record, max_condition: float) -> bool:
    """Whether the inputs of ``record`` are among those that a candidate has to serve."""
    return record.errors is None or not (
        record.errors.condition_max_ratio > largest_required(max_condition)
    )


def largest_required(max_condition: float) -> float:
    """Return the largest condition number of inputs that count under a requirement."""
    return _SLACK_RATIO * max_condition


def requirement_levels(records: Sequence[Record], max_condition: float) -> tuple[float, ...]:
    """Return the largest condition numbers whose answers can differ, ``max_condition`` among them.

    A level is left out if no input was measured between it and the level before it. Of many records
    only two levels are shown: ``max_condition`` and all inputs.
    """
    wanted = _LEVELS if len(records) <= _MOST_RECORDS else ()
    measured = sorted({
        each.errors.condition_max_ratio for each in records if each.errors is not None
    })
    levels: list[float] = []
    low = 0.0
    for level in sorted({*wanted, inf, max_condition}):
        high = largest_required(level)
        if level == max_condition or any(low < each <= high for each in measured):
            levels.append(level)
            low = high
    return tuple(levels)


def requirement_text(max_condition: float) -> str:
    """Return a requirement as a phrase: "inputs with a condition number up to 1,000"."""
    if not isfinite(max_condition):
        return "all inputs"
    return f"inputs with a condition number up to {condition_text(max_condition)}"


def condition_text(condition: float) -> str:
    """Return a condition number to three digits: "1,030" or "1.05e7"."""
    if condition < 1e6:
        return f"{float(f'{condition:.3g}'):,.10g}"
    return f"{condition:.3g}".replace("e+0", "e").replace("e+", "e")

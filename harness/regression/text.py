"""A comparison for people, as lines, and for machines, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from harness.regression.changes import Change, ChangeKind, Comparison
from harness.store.plain import to_plain

__all__ = ["comparison_as_plain", "comparison_lines"]

_MOST_ROWS = 50  # ours: more is not read; --json has all


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return how many cases became what, then each that did not stay the same, worst first."""
    counts = ", ".join(f"{number} {kind}" for kind, number in comparison.counts.items())
    rows = [
        (f"{alike[0].kind}", alike[0].case.id, f"{alike[0].reason}{_and_more(alike)}")
        for alike in _alike(comparison.changes)
    ]
    shown = rows[:_MOST_ROWS]
    wide = [max((len(row[column]) for row in shown), default=0) for column in (0, 1)]
    lines = [f"{comparison.head} against {comparison.baseline}: {counts}"]
    lines += [f"  {kind:<{wide[0]}}  {case:<{wide[1]}}  {why}" for kind, case, why in shown]
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown)} more")
    return [*lines, *(f"note: {each}" for each in comparison.notes)]


def _alike(changes: Iterable[Change]) -> Iterable[Sequence[Change]]:
    """Gather what has one kind and one reason, in the order given; each failure by itself.

    What stayed the same is left out.
    """
    found: dict[tuple[str, ...], list[Change]] = {}
    for each in changes:
        own = (each.case.id,) if each.kind.is_failure else ()
        if each.kind is not ChangeKind.UNCHANGED:
            found.setdefault((each.kind, each.reason, *own), []).append(each)
    return found.values()


def _and_more(alike: Sequence[Change]) -> str:
    if len(alike) == 1:
        return ""
    more = len(alike) - 1
    return f" (and so {'is 1 case' if more == 1 else f'are {more} cases'} more)"


def comparison_as_plain(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as what JSON can hold; infinite ends of intervals become null."""
    return {
        "baseline": comparison.baseline,
        "head": comparison.head,
        "failed": comparison.failed,
        "counts": {str(kind): number for kind, number in comparison.counts.items()},
        "notes": list(comparison.notes),
        "changes": [_plain(each) for each in comparison.changes],
    }


def _plain(change: Change) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(change)
    if change.ratio is not None:
        plain["ratio"] = {
            name: value if isfinite(value) else None for name, value in plain["ratio"].items()
        }
    return {"id": change.case.id, **plain}

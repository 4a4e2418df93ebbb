"""Changes and comparisons for the tests of exports. NOTHING WAS MEASURED."""

from __future__ import annotations

from typing import Any

from factories.compared_runs import make_case
from harness.records import Estimate
from harness.regression import Change, ChangeKind, Comparison


def change_of(kind: ChangeKind, reason: str = "why", number: int = 0, **more: Any) -> Change:
    return Change(**{"case": make_case(rows=number), "kind": kind, "reason": reason, **more})


def comparison_of(*changes: Change, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(changes=changes, baseline="old.parquet", head="new.parquet", notes=notes)


def one_of_each() -> Comparison:
    """Return one change of each kind, each of a different case, ordered from worst to best."""
    ratio = Estimate(value=1.25, low=1.2, high=1.3)
    changes = [
        change_of(kind, f"because {number}", number, ratio=ratio if number == 1 else None)
        for number, kind in enumerate(ChangeKind)
    ]
    return comparison_of(*changes, notes=("it rains",))

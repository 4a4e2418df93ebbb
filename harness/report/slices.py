"""Parts of the frame of cases: the rows of one figure, or of one row of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from harness.records import Status
from harness.report.content import LegendEntry
from harness.report.figures.theme import DASHES, ON_PAGE, series_variable

__all__ = ["combinations", "groups", "leading", "legend", "view_of", "worst", "worst_status"]

_SEVERITY = {
    status.value: rank
    for rank, status in enumerate((
        Status.OK,
        Status.UNSUPPORTED,
        Status.OUT_OF_MEMORY,
        Status.OUT_OF_GUARANTEE,
        Status.TIMEOUT,
        Status.CRASHED,
        Status.ERROR,
        Status.WRONG,
    ))
}
"""The order in which statuses need attention, the least first."""
_MOST_ENTRIES = 60  # twelve colours and five dashes make as many different lines


def groups(rows: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the rows for each combination of ``columns`` that occurs, in the order of display."""
    if len(rows):
        yield from rows.groupby(list(columns), observed=True)


def combinations(rows: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return the combinations of ``columns`` that occur, in the order of display."""
    return [name for name, _ in groups(rows[list(columns)], *columns)]


def worst_status(statuses: pd.Series) -> str:
    """Return the status that needs the most attention."""
    return max(map(str, statuses), key=_SEVERITY.__getitem__)


def worst(rows: pd.DataFrame, by: list[str], error: str) -> pd.DataFrame:
    """Return, for each combination of ``by``, the row that needs the most attention."""
    severity = rows["status"].map(_SEVERITY)
    ranked = rows.assign(severity=severity).sort_values(
        ["severity", error], ascending=False, kind="stable", na_position="last"
    )
    return ranked.drop_duplicates(by).drop(columns="severity").sort_index()


def leading(rows: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, int]:
    """Return the rows of the most frequent combination of ``by``, and the number of other rows.

    A figure shows one axis; its cases must not differ in another one.
    """
    sizes = rows.groupby(by, sort=False)[by[0]].transform("size")
    first = rows[sizes == sizes.max()].iloc[0]
    chosen = rows[np.logical_and.reduce([rows[name] == first[name] for name in by])]
    return chosen, len(rows) - len(chosen)


def legend(rows: pd.DataFrame, implementations: tuple[str, ...]) -> tuple[LegendEntry, ...]:
    """Return the legend of a figure that shows ``rows``: one entry per implementation."""
    shown = set(rows["implementation"])
    entries = [
        LegendEntry(
            name,
            series_variable(place),
            series=f"series-{place % len(ON_PAGE.series)}",
            dashes=DASHES[place % len(DASHES)],
        )
        for place, name in enumerate(implementations)
        if name in shown
    ]
    if len(entries) > _MOST_ENTRIES:
        rest = LegendEntry(f"and {len(entries) - _MOST_ENTRIES:,} more", "var(--muted)", mark="…")
        entries = [*entries[:_MOST_ENTRIES], rest]
    if "compiled" in set(rows["mode"]):
        entries.append(LegendEntry("compiled", "var(--muted)", is_thin=True))
    return tuple(entries)


def view_of(
    place: str, direction: str, dtype: str, *, x: str, y: str
) -> tuple[tuple[str, str], ...]:
    """Return the view of all cases that draws two columns of a place, direction and dtype."""
    chosen = {"place": place, "direction": direction, "dtype": dtype}
    return tuple((chosen | {"x": x, "y": y, "colour": "implementation"}).items())

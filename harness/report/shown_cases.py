"""The rows of the table of all cases: one per case, or per group of cases if there are too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.records import Record
from harness.report.frame import Findings
from harness.report.slices import worst

__all__ = ["ShownCases", "shown_cases"]

MOST_ROWS = 20_000
"""More rows take more than half of a page of 6 MB (about 120 bytes each), and seconds to sort."""

_AXES = ("implementation", "mode", "place", "dtype", "direction", "shape", "distribution")
_LEFT_OUT = (
    ("seed", "seed"), ("setting", "settings"), ("distribution", "input distribution"),
    ("shape", "shape"), ("direction", "direction"), ("dtype", "dtype"), ("mode", "mode"),
)  # fmt: skip
"""The axes over which cases are grouped, one after the other, until the rows are few enough."""


@dataclass(frozen=True, slots=True)
class ShownCases:
    """The rows of the table, and how they were made of the cases."""

    cases: pd.DataFrame
    """As in :class:`Findings`; if grouped, also ``cases``: how many a row stands for."""
    records: tuple[Record, ...]
    """One per row: the case whose status, errors and id the row has."""
    grouped_over: tuple[str, ...] = ()
    """The axes that the cases of a row differ in, in words; empty if a row is a case."""
    left_out: int = 0
    """Cases that no row stands for."""


def shown_cases(findings: Findings, most: int = MOST_ROWS) -> ShownCases:
    """Return the rows to show: every case if there are at most ``most``, else groups of them.

    The row of a group has status, errors and id of the case that needs the most attention; its
    times and memory are those of the case with the median latency, if any was timed.
    """
    cases = findings.cases
    if len(cases) <= most:
        return ShownCases(cases, findings.records)
    keys = [*_AXES, "setting", "seed"]
    over: list[str] = []
    for axis, words in _LEFT_OUT:
        keys.remove(axis)
        over.append(words)
        if len(cases[keys].drop_duplicates()) <= most:
            break
    # a seed that only one case has, for example, groups nothing
    over = [words for axis, words in _LEFT_OUT[: len(over)] if cases[axis].nunique() > 1]
    rows = worst(cases, keys, "error_ulp")
    group = cases.groupby(keys, sort=False, observed=True)
    rows["cases"] = group["status"].transform("size").loc[rows.index]
    timed = cases[cases["latency_s"].notna()].sort_values("latency_s", kind="stable")
    ranks = timed.groupby(keys, sort=False, observed=True)["latency_s"]
    middle = timed[ranks.cumcount() == (ranks.transform("size") - 1) // 2]
    costs = [*_columns_of_cost(cases)]
    joined = rows[keys].merge(middle[[*keys, *costs]], on=keys, how="left")
    is_timed = joined["latency_s"].notna().to_numpy()
    for name in costs:
        rows[name] = np.where(is_timed, joined[name].to_numpy(), rows[name].to_numpy())
    kept = rows.head(most)
    return ShownCases(
        cases=kept.reset_index(drop=True),
        records=tuple(findings.records[place] for place in kept.index),
        grouped_over=tuple(over),
        left_out=int(rows["cases"].iloc[most:].sum()),
    )


def _columns_of_cost(cases: pd.DataFrame) -> list[str]:
    names = cases.columns.to_list()
    return names[names.index("latency_s") :]

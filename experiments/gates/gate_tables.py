"""Tables of the gate experiment: false failures, and the planted changes that were found."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from subjects import SUBJECT

__all__ = ["report"]

FAILING = {"slower", "regressed"}
ERRORS = "forward, errors only"
"""The direction of cases that the preset does not time."""


def report(rows: pd.DataFrame) -> str:
    """Return all tables as Markdown."""
    timed = rows["case"].isin(rows.loc[rows["ratio"].notna(), "case"])
    directions = rows["case"].str.split("/").str[1]
    rows = rows.assign(direction=directions.where(timed, ERRORS))
    rows = rows[timed | ~rows["planted"].str.endswith("slower")]
    return "\n\n".join(_parts(rows)) + "\n"


def _parts(rows: pd.DataFrame) -> Iterator[str]:
    first, last = rows.iloc[0], rows.iloc[-1]
    yield (
        f"{rows['run'].nunique()} runs, {first.started[:16]} to {last.started[:16]} UTC; "
        f"{first.cpu}, {first.cores} cores; commit {first.commit[:12]}"
        f"{' with changes' if first.commit.endswith('+') else ''}."
    )
    yield "Nothing planted, every failure is false:"
    yield _table(_unchanged(rows[rows["planted"] == "nothing"]))
    planted = rows[rows["planted"] != "nothing"]
    if len(planted):
        yield f"Planted in {SUBJECT}:"
        yield _table(_found(planted))


def _unchanged(rows: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "machine": condition,
            "direction": direction,
            "runs": str(some["run"].nunique()),
            "runs that failed": str(some[some["failed"]]["run"].nunique()),
            "cases judged": str(len(some)),
            "cases that failed": str(some["kind"].isin(FAILING).sum()),
            "inconclusive": str(some["kind"].eq("inconclusive").sum()),
            "median seconds": f"{some.groupby('run')['run_s'].first().median():.0f}",
            "load": f"{some['load_average'].median():.1f}",
        }
        for (condition, direction), some in rows.groupby(["condition", "direction"], sort=False)
    ]


def _found(rows: pd.DataFrame) -> list[dict[str, str]]:
    lines = []
    for (planted, condition, direction), some in rows.groupby(
        ["planted", "condition", "direction"], sort=False
    ):
        is_planted = some["case"].str.contains(f":{SUBJECT}/", regex=False)
        inside, outside = some[is_planted], some[~is_planted]
        found = inside["kind"].isin(FAILING)
        ratios = inside["ratio"].dropna()
        lines.append({
            "planted": planted,
            "machine": condition,
            "direction": direction,
            "found": f"{found.sum()} of {len(inside)}",
            "inconclusive": str(inside["kind"].eq("inconclusive").sum()),
            "runs that failed": f"{inside[inside['failed']]['run'].nunique()} of "
            f"{inside['run'].nunique()}",
            "false failures of other cases": f"{outside['kind'].isin(FAILING).sum()} of "
            f"{len(outside)}",
            "median ratio": f"{ratios.median():.3f}" if len(ratios) else "",
        })
    return lines


def _table(lines: list[dict[str, str]]) -> str:
    heads = list(lines[0]) if lines else ["none"]
    rows = [heads, ["---"] * len(heads), *(list(line.values()) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

"""Tables of the gate experiment: false failures, and the planted changes that were found."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

__all__ = ["report"]

FAILING = {"slower", "regressed"}
# what rows stored before the kinds were renamed call them
_FORMER_KINDS = {"broke": "regressed", "inconclusive": "inconclusive"}


def report(rows: pd.DataFrame) -> str:
    """Return all tables as Markdown."""
    rows = rows.rename(columns={"guest": "implementation"})  # its former name
    rows = rows.assign(
        kind=rows["kind"].replace(_FORMER_KINDS), direction=rows["case"].str.split("/").str[1]
    )
    parts = [part for gate, some in rows.groupby("gate", sort=False) for part in _parts(gate, some)]
    return "\n\n".join(parts) + "\n"


def _parts(gate: object, rows: pd.DataFrame) -> Iterator[str]:
    """Yield the paragraphs about one gate."""
    first, last = rows.iloc[0], rows.iloc[-1]
    yield (
        f"**`{gate}`**: {rows['run'].nunique()} runs, {first.started[:16]} to {last.started[:16]} "
        f"UTC; {first.cpu}, {first.cores} cores; commit {first.commit[:12]}"
        f"{' with changes' if first.commit.endswith('+') else ''}."
    )
    yield "Nothing planted, every failure is false:"
    yield _table(_unchanged(rows[rows["planted"] == "nothing"]))
    planted = rows[rows["planted"] != "nothing"]
    if len(planted):
        yield "Planted in one implementation of three:"
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
    for (planted, implementation, condition, direction), some in rows.groupby(
        ["planted", "implementation", "condition", "direction"], sort=False
    ):
        is_planted = some["case"].str.contains(f":{implementation}/", regex=False)
        inside, outside = some[is_planted], some[~is_planted]
        found = inside["kind"].isin(FAILING)
        ratios = inside["ratio"].dropna()
        lines.append({
            "planted": planted,
            "in": implementation,
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

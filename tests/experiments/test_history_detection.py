"""The experiment on histories: what its rows count."""

from __future__ import annotations

from history.detection import CONDITIONS, EFFECTS, IN_USE, RUNS, simulate


def test_large_changes_are_found_and_rows_are_complete() -> None:
    rows = [row for row in simulate(repeats=3) if row.detector == IN_USE]
    assert len(rows) == len(RUNS) * len(CONDITIONS) * len(EFFECTS)
    steady = [row for row in rows if row.condition == "steady" and row.runs == 60]
    assert [(row.found, row.exact <= row.found) for row in steady if row.effect == 0.05] == [
        (3, True)
    ]
    assert all(row.found == 0 for row in rows if not row.effect)

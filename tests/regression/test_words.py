"""A comparison in words, and as JSON."""

from __future__ import annotations

import json
from typing import Any

from compared_runs import (
    STEADY,
    compared,
    confirming,
    failed,
    make_case,
    make_record,
    results_of,
)

from harness.regression.changes import Change, ChangeKind, Comparison
from harness.regression.text import comparison_as_plain, comparison_lines

ONE, TWO = make_case(rows=1), make_case(rows=2)
SLOWER = compared(
    results_of(make_record(ONE, STEADY), make_record(TWO, STEADY)),
    results_of(make_record(ONE, (1.5,)), make_record(TWO, (1.0,))),
    confirm=confirming(*[1.5] * 5),
)


def changes(count: int, kind: ChangeKind, *, alike: bool) -> Comparison:
    return Comparison(
        changes=tuple(
            Change(case=make_case(rows=rows), kind=kind, reason="why" if alike else f"why {rows}")
            for rows in range(count)
        ),
        baseline="old",
        head="new",
        notes=("it rains",),
    )


def test_the_counts_come_first_then_what_changed_then_the_notes() -> None:
    found = comparison_lines(changes(1, ChangeKind.NEW, alike=False))
    assert found == [
        "new against old: 1 new",
        "  new  two_pass/forward/0x768/float32/normal  why 0",
        "note: it rains",
    ]


def test_what_stayed_the_same_is_counted_and_not_listed() -> None:
    first, row = comparison_lines(SLOWER)
    assert first == "new against old: 1 slower, 1 unchanged"
    assert row.startswith(f"  slower  {ONE.id}  latency: 50.0% slower, 1.000 of the time of native")


def test_at_most_fifty_rows_are_listed() -> None:
    found = comparison_lines(changes(53, ChangeKind.INCONCLUSIVE, alike=False))
    assert len(found) == 1 + 50 + 1 + 1
    assert found[-2] == "  and 3 more"


def test_cases_of_one_reason_share_a_row() -> None:
    found = comparison_lines(changes(53, ChangeKind.GONE, alike=True))
    assert found[1:-1] == [
        "  gone  two_pass/forward/0x768/float32/normal  why (and so are 52 cases more)"
    ]


def test_every_failure_has_a_row_of_its_own() -> None:
    assert len(comparison_lines(changes(7, ChangeKind.REGRESSED, alike=True))) == 1 + 7 + 1


def test_as_json_every_case_is_there_with_its_figures() -> None:
    plain = json.loads(json.dumps(comparison_as_plain(SLOWER), allow_nan=False))
    assert plain["failed"] is True
    assert plain["counts"] == {"slower": 1, "unchanged": 1}
    first, second = plain["changes"]
    assert (first["id"], first["kind"], first["metric"]) == (ONE.id, "slower", "latency")
    assert round(first["ratio"]["value"], 3) == 1.5
    assert first["case"]["shape"] == [1, 768]
    assert (second["id"], second["metric"]) == (TWO.id, None)


def test_as_json_an_interval_that_knows_nothing_has_no_ends() -> None:
    one = make_record(ONE, (1.0,))
    (found,) = comparison_as_plain(compared(one, one, least_processes=1))["changes"]
    assert (found["ratio"]["value"], found["ratio"]["high"]) == (1.0, None)


def test_as_json_a_case_that_failed_has_no_ratio() -> None:
    both = results_of(make_record(ONE), make_record(TWO))
    found: Any = comparison_as_plain(compared(both, results_of(failed(ONE), make_record(TWO))))
    assert found["changes"][0]["ratio"] is None

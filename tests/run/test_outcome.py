"""Which figures of a run stay in memory until they are printed."""

from __future__ import annotations

from dataclasses import replace

from figures_factory import make_errors

from harness.records import Case, Record, Status
from harness.run.session import MOST_ROWS, in_brief

CASE = Case(implementation="native", shape=(2, 8))
OK = Record(case=CASE, environment="here", status=Status.OK, errors=make_errors(CASE))


def several(count: int, record: Record = OK) -> list[Record]:
    return [replace(record, case=replace(record.case, seed=seed)) for seed in range(count)]


def test_few_records_keep_their_figures() -> None:
    records = several(MOST_ROWS)
    assert in_brief(iter(records)) == tuple(records)


def test_of_many_records_the_first_of_each_kind_keeps_its_figures() -> None:
    other = replace(OK, case=replace(CASE, implementation="two_pass"))
    wrong = replace(OK, status=Status.WRONG, reason="y is wrong")
    groups = [several(MOST_ROWS), several(2, other), several(2, wrong)]
    records = [record for group in groups for record in group]
    brief = in_brief(iter(records))
    assert [each for each in brief if each.errors] == [group[0] for group in groups]
    assert list(brief) == [
        each if each.errors else replace(record, errors=None)
        for each, record in zip(brief, records, strict=True)
    ]

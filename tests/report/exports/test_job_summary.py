"""GitHub's job summary: the worst first, within the limit, and with escaped text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factories.compared_runs import failed, make_case, make_record, results_of
from factories.exported import change_of, comparison_of, one_of_each, one_of_each_status
from factories.golden import assert_golden

from harness.records import Record, Status
from harness.regression import ChangeKind
from harness.report.ci import (
    LIMIT_BYTES,
    summary_of_comparison,
    summary_of_refusal,
    summary_of_run,
)
from harness.report.document import markdown

GOLDEN = Path(__file__).parent / "golden"


def rows(summary: str) -> list[str]:
    """Return the rows of all tables, without their heads."""
    lines = [line for line in summary.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| case |")]


def sign(summary: str) -> str:
    """Return the sign in the heading."""
    return summary.split(": ")[1].split(" ")[0]


def test_a_comparison_reads_as_in_the_golden_file() -> None:
    pages = (summary_of_comparison(one_of_each()), summary_of_refusal("base_.parquet: not found"))
    assert_golden("\n".join(map(markdown, pages)), GOLDEN / "summary_of_comparison.txt")


def test_a_run_reads_as_in_the_golden_file() -> None:
    text = markdown(summary_of_run(one_of_each_status(planned=99), "run.parquet"))
    assert_golden(text, GOLDEN / "summary_of_run.txt")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({ChangeKind.UNCHANGED, ChangeKind.SLOWER}, "❌"),
        ({ChangeKind.UNCHANGED, ChangeKind.INCONCLUSIVE}, "✅"),
        ({ChangeKind.FASTER}, "✅"),
        ({ChangeKind.INCONCLUSIVE, ChangeKind.GONE}, "⚠️"),
    ],
)
def test_the_verdict_is_the_heading(kinds: set[ChangeKind], expected: str) -> None:
    assert sign(markdown(summary_of_comparison(comparison_of(*map(change_of, kinds))))) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("`code`", "\\`code\\`"),
        ("a\\|b", "a\\\\\\|b"),
        ("<img src=x>", "\\<img src=x\\>"),
        ("*bold* _it_ two_pass", "\\*bold\\* \\_it\\_ two_pass"),
        ("two\nlines\r\nand\ttabs", "two<br>lines<br>and tabs"),
        ("[a](b) #1 ~~x~~ &amp;", "\\[a\\](b) \\#1 \\~\\~x\\~\\~ \\&amp;"),
        ("lost \udcff", "lost \\\\udcff"),
    ],
)
def test_text_is_escaped_and_stays_in_its_cell(text: str, shown: str) -> None:
    summary = markdown(summary_of_comparison(comparison_of(change_of(ChangeKind.REGRESSED, text))))
    assert rows(summary) == [f"| {make_case(rows=0).id} | – | {shown} |"]
    assert summary.encode()


def test_a_summary_keeps_within_the_limit_and_counts_the_rows_left_out() -> None:
    number = 9000
    changes = [change_of(ChangeKind.REGRESSED, "µ" * 100, place) for place in range(number)]
    document = summary_of_comparison(comparison_of(*changes))
    summary = markdown(document, limit_bytes=LIMIT_BYTES, rest="all are in junit.xml")
    assert LIMIT_BYTES * 0.99 < len(summary.encode()) <= LIMIT_BYTES
    (left,) = re.findall(r"([\d,]+) more lines; all are in junit.xml$", summary, re.M)
    assert len(rows(summary)) + int(left.replace(",", "")) == number + 1
    assert rows(summary)[0] == f"| {make_case(rows=0).id} | – | {'µ' * 100} |"


def test_the_least_severe_rows_are_cut_and_nothing_follows_a_cut() -> None:
    changes = [change_of(ChangeKind.REGRESSED), change_of(ChangeKind.NEW, "n" * 2000, 1)]
    summary = markdown(summary_of_comparison(comparison_of(*changes)), limit_bytes=2500)
    assert len(summary.encode()) <= 2500
    assert [row for row in rows(summary) if "nnn" in row] == []
    assert len(rows(summary)) == 1
    assert "more lines" in summary
    changes = [change_of(ChangeKind.REGRESSED, "n" * 2000), change_of(ChangeKind.NEW, number=1)]
    summary = markdown(summary_of_comparison(comparison_of(*changes)), limit_bytes=2500)
    assert rows(summary) == []
    assert "more lines" in summary


def test_the_summary_is_empty_if_the_verdict_does_not_fit() -> None:
    assert markdown(summary_of_comparison(one_of_each()), limit_bytes=100) == ""


@pytest.mark.parametrize(
    ("record", "planned", "expected"),
    [
        (make_record(), 1, "✅"),
        (make_record(), 2, "❌"),  # cut short
        (failed(status=Status.UNSUPPORTED), 1, "❌"),  # nothing was measured
        (failed(status=Status.TIMEOUT), 1, "❌"),
        (failed(status=Status.WRONG), 1, "❌"),
    ],
    ids=["right", "cut short", "unsupported", "timeout", "wrong"],
)
def test_a_run_passes_if_it_is_complete_and_right(
    record: Record, planned: int, expected: str
) -> None:
    assert sign(markdown(summary_of_run(results_of(record, planned=planned), "run"))) == expected

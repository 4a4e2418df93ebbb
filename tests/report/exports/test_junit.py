"""JUnit XML and GitHub's job summary: failures, errors and skipped cases, in valid text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from factories.compared_runs import failed, make_case, make_record, results_of
from factories.exported import change_of, comparison_of, one_of_each, one_of_each_status
from factories.golden import assert_golden

from harness.records import Record, Status
from harness.regression import ChangeKind
from harness.report.ci import (
    LIMIT_BYTES,
    junit_of_comparison,
    junit_of_refusal,
    junit_of_run,
    summary_of_comparison,
    summary_of_refusal,
    summary_of_run,
)
from harness.report.document import markdown

GOLDEN = Path(__file__).parent / "golden"
# junit-10.xsd of Jenkins' xunit plugin: the attributes and children that each element must have
ALLOWED = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "time", "tests", "failures", "errors", "skipped"},
        {"properties", "testcase", "system-out"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"failure", "error", "skipped", "system-out"}),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}


def parsed(text: str) -> Element:
    """Parse a report as its readers do: UTF-8, and only what the schema allows."""
    root = ElementTree.fromstring(text.encode())
    for element in root.iter():
        attributes, children = ALLOWED[element.tag]
        assert set(element.attrib) == attributes
        assert {child.tag for child in element} <= children
    return root


def cases(text: str) -> dict[str, Element]:
    """Return the one child of each test case, by name of the test case."""
    return {case.attrib["name"]: case[0] for case in parsed(text).iter("testcase")}


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("comparison", junit_of_comparison(one_of_each())),
        ("run", junit_of_run(one_of_each_status(planned=99), "run.parquet")),  # cut short
        ("refusal", junit_of_refusal("base.parquet: not found")),
    ],
)
def test_reports_are_valid_and_read_as_in_the_golden_files(name: str, report: str) -> None:
    assert_golden(report, GOLDEN / f"junit_of_{name}.txt")
    parsed(report)


@pytest.mark.parametrize(
    ("reason", "read"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("nul \x00 and \ufffe", "nul \\x00 and \\xfffe"),
        ("undecodable \udcff", "undecodable \\xdcff"),
        ('<b> & "quotes" ]]>', '<b> & "quotes" ]]>'),
        ("two\nlines\tand µs \U0001f600", "two\nlines\tand µs \U0001f600"),
    ],
)
def test_text_that_xml_cannot_hold_is_escaped(reason: str, read: str) -> None:
    report = junit_of_comparison(comparison_of(change_of(ChangeKind.REGRESSED, reason)))
    (element,) = cases(report).values()
    assert element.attrib == {"type": "regressed", "message": read}
    assert element.text == f"regressed: {read}"  # GitLab shows the text, and no message


def test_dots_in_the_name_of_an_implementation_make_no_package() -> None:
    case = make_case("path/to.v2/mine.py:norm")
    comparison = comparison_of(change_of(ChangeKind.UNCHANGED, case=case))
    (found,) = parsed(junit_of_comparison(comparison)).iter("testcase")
    package, _, name = found.attrib["classname"].rpartition(".")
    assert (package, name) == ("layernorm-bench", "path/to_v2/mine_py:norm")
    assert found.attrib["name"] == case.id


# === GitHub's job summary: the worst first, within the limit, and with escaped text


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

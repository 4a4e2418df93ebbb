"""JUnit XML: failures, errors and skipped cases, in a form that every reader accepts."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from factories.compared_runs import make_case
from factories.exported import change_of, comparison_of, one_of_each, one_of_each_status
from factories.golden import assert_golden

from harness.regression import ChangeKind
from harness.report.ci import junit_of_comparison, junit_of_refusal, junit_of_run

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

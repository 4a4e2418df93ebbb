"""JUnit XML: who fails, who is skipped, and that every reader can read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from compared_runs import failed, make_case, make_latency, make_record, results_of
from exported import change_of, comparison_of, one_of_each

from harness.exports.junit import junit_of_comparison, junit_of_refusal, junit_of_run
from harness.records import Cost, Status
from harness.regression.changes import ChangeKind, Comparison
from harness.store import Results

# junit-10.xsd of Jenkins' xunit plugin: what each element may hold, and must
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
    for each in root.iter():
        attributes, children = ALLOWED[each.tag]
        assert set(each.attrib) == attributes
        assert {child.tag for child in each} <= children
    return root


def of(comparison: Comparison) -> dict[str, Element]:
    """Test cases by id."""
    root = parsed(junit_of_comparison(comparison))
    return {each.attrib["name"]: each for each in root.iter("testcase")}


def ending(case: Element) -> str:
    (child,) = case
    return child.tag


def of_run(results: Results) -> dict[str, Element]:
    root = parsed(junit_of_run(results, "run.parquet"))
    return {each.attrib["name"]: each for each in root.iter("testcase")}


def test_what_fails_the_gate_fails_and_what_was_not_judged_is_skipped() -> None:
    comparison = one_of_each()
    endings = {each.kind: ending(of(comparison)[each.case.id]) for each in comparison.changes}
    assert endings == {
        ChangeKind.REGRESSED: "failure",
        ChangeKind.SLOWER: "failure",
        ChangeKind.INCONCLUSIVE: "skipped",
        ChangeKind.NOT_COMPARABLE: "skipped",
        ChangeKind.GONE: "skipped",
        ChangeKind.NEW: "skipped",
        ChangeKind.IMPROVED: "system-out",
        ChangeKind.FASTER: "system-out",
        ChangeKind.UNCHANGED: "system-out",
    }


def test_the_suite_counts_its_cases() -> None:
    root = parsed(junit_of_comparison(one_of_each()))
    for suite in (root, *root):
        assert suite.attrib["tests"] == "9"
        assert suite.attrib["failures"] == "2"
        assert suite.attrib["errors"] == "0"
    assert root[0].attrib["skipped"] == "4"


def test_the_reason_is_in_the_message_and_in_the_text_that_gitlab_shows() -> None:
    (case,) = of(comparison_of(change_of(ChangeKind.SLOWER, "10 % slower"))).values()
    assert case[0].attrib == {"type": "slower", "message": "10 % slower"}
    assert case[0].text == "slower: 10 % slower"


def test_what_was_compared_and_what_holds_for_all_is_told_once() -> None:
    (suite,) = parsed(junit_of_comparison(one_of_each()))
    named = {each.attrib["name"]: each.attrib["value"] for each in suite.iter("property")}
    assert named == {"head": "new.parquet", "baseline": "old.parquet"}
    assert suite.findtext("system-out") == "it rains"


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
def test_no_text_can_break_the_xml(reason: str, read: str) -> None:
    (case,) = of(comparison_of(change_of(ChangeKind.REGRESSED, reason))).values()
    assert case[0].attrib["message"] == read
    assert case[0].text == f"regressed: {read}"


def test_an_implementation_is_one_class_whatever_dots_are_in_its_name() -> None:
    case = make_case("path/to.v2/mine.py:norm")
    (found,) = of(comparison_of(change_of(ChangeKind.UNCHANGED, case=case))).values()
    package, _, name = found.attrib["classname"].rpartition(".")
    assert (package, name) == ("layernorm-bench", "path/to_v2/mine_py:norm")
    assert found.attrib["name"] == case.id


def test_a_gate_that_was_refused_has_not_passed() -> None:
    root = parsed(junit_of_refusal("base.parquet: no such file"))
    assert root.attrib["errors"] == "1"
    (case,) = root.iter("testcase")
    assert ending(case) == "error"
    assert case[0].text == "not compared: base.parquet: no such file"


@pytest.mark.parametrize(
    ("status", "element"),
    [
        (Status.OK, "system-out"),
        (Status.WRONG, "failure"),
        (Status.CRASHED, "error"),
        (Status.TIMEOUT, "error"),
        (Status.ERROR, "error"),
        (Status.OUT_OF_GUARANTEE, "skipped"),
        (Status.UNSUPPORTED, "skipped"),
        (Status.OUT_OF_MEMORY, "skipped"),
    ],
)
def test_a_run_fails_where_it_was_wrong_or_did_not_end(status: Status, element: str) -> None:
    (case,) = of_run(results_of(failed(status=status, reason="y is off"))).values()
    assert ending(case) == element
    assert "y is off" in (case[0].text or "")


def test_every_status_has_an_ending() -> None:
    records = [failed(make_case(rows=n), each) for n, each in enumerate(Status)]
    found = Counter(map(ending, of_run(results_of(*records)).values()))
    assert found == {"system-out": 1, "failure": 1, "error": 3, "skipped": 3}


def test_a_run_that_was_cut_short_has_not_passed() -> None:
    found = of_run(results_of(make_record(), planned=3, wall_s=None))
    assert ending(found["the run"]) == "error"
    assert "1 of its 3 cases are there" in (found["the run"][0].text or "")


def test_a_case_takes_the_time_it_took() -> None:
    cost = Cost(total_s=1.25, implementation_s=0.5, oracle_s=0.25, sampling_s=0.5)
    record = replace(make_record(), cost=cost)
    root = parsed(junit_of_run(results_of(record, make_record(make_case(rows=1))), "run"))
    assert [each.attrib["time"] for each in root.iter("testcase")] == ["1.250", "0.000"]
    assert root[0].attrib["time"] == "1.250"


def test_a_right_case_tells_its_figures() -> None:
    record = make_record(ratios=(1.5,))
    assert record.errors is not None
    (case,) = of_run(results_of(record)).values()
    error = f"{record.errors.worst.scaled_max_ulp:.3g}"
    assert case.findtext("system-out") == (
        f"ok, y {error} ulp off, 100 us a call, 1.500 of the time of native"
    )


def test_a_time_that_is_not_believed_is_said_not_to_be() -> None:
    record = make_record(latency=make_latency(is_valid=False))
    (case,) = of_run(results_of(record)).values()
    assert "100 us a call (not believed), 1.000 of" in str(case.findtext("system-out"))

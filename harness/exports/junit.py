"""JUnit XML, as GitLab, Jenkins and the reporters of GitHub read it: one test case per case.

The format has no owner. The output is valid by the schema of Jenkins' xunit plugin (junit-10.xsd,
in which a test case has no properties). A reason is both message and text of its element, because
GitLab shows only the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from harness.records import Case, Record, Status
from harness.records.speed import as_speed, speed_text
from harness.records.text import seconds_text, ulp_text
from harness.regression.changes import Change, Comparison
from harness.store import Results

__all__ = ["junit_of_comparison", "junit_of_refusal", "junit_of_run"]

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'
_SUITE = "layernorm-bench"
# characters that XML 1.0 cannot hold, even escaped (section 2.2); among them lone surrogates
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnitStatus(StrEnum):
    """The result of a test case; the value is the name of its element."""

    PASSED = "system-out"
    SKIPPED = "skipped"
    """Not judged, so neither passed nor failed."""
    FAILURE = "failure"
    ERROR = "error"
    """There is no result to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A test case of the report."""

    group: str
    name: str
    status: JUnitStatus
    type: str
    """Kind of failure, or of reason to skip it."""
    text: str
    """The reason; for a test case that passed, its figures."""
    time_s: float = 0.0


def junit_of_comparison(comparison: Comparison) -> str:
    """Return a comparison as JUnit XML; a case that was not judged is skipped."""
    return _document(
        [_test_of_change(change) for change in comparison.changes],
        properties={"head": comparison.head, "baseline": comparison.baseline},
        output=comparison.notes,
    )


def junit_of_refusal(why: str) -> str:
    """Return a report of one error, so that a gate that could not compare does not look passed."""
    gate = Entry(
        group=_SUITE, name="the gate", status=JUnitStatus.ERROR, type="not compared", text=why
    )
    return _document([gate], properties={}, output=())


def junit_of_run(results: Results, name: str) -> str:
    """Return a run as JUnit XML.

    A wrong case is a failure; a crash, a timeout or an error is an error. Cases out of guarantee,
    unsupported or out of memory are skipped. A run that was cut short has an error of its own.
    """
    tests = [_test_of_record(record) for record in results.records]
    if why := results.why_unfinished:
        why = f"the run was cut short: {why}"
        status = JUnitStatus.ERROR
        tests.insert(
            0, Entry(group=_SUITE, name="the run", status=status, type="cut short", text=why)
        )
    commands = dict.fromkeys(run.command for run in results.runs)
    properties = {"run": name, "command": "; ".join(commands)}
    return _document(tests, properties=properties, output=())


def _test_of_change(change: Change) -> Entry:
    status = JUnitStatus.PASSED
    if change.kind.is_failure:
        status = JUnitStatus.FAILURE
    elif not change.kind.is_judged:
        status = JUnitStatus.SKIPPED
    return Entry(
        group=_group(change.case),
        name=change.case.id,
        status=status,
        type=str(change.kind),
        text=change.reason,
    )


def _test_of_record(record: Record) -> Entry:
    status = JUnitStatus.SKIPPED
    if record.status is Status.OK:
        status = JUnitStatus.PASSED
    elif record.status is Status.WRONG:
        status = JUnitStatus.FAILURE
    elif record.status.is_failure:
        status = JUnitStatus.ERROR
    return Entry(
        group=_group(record.case),
        name=record.case.id,
        status=status,
        type=str(record.status),
        text=record.reason or _figures(record),
        time_s=record.cost.total_s if record.cost else 0.0,
    )


def _figures(record: Record) -> str:
    """Return error and latency of a case that has no reason."""
    figures = [str(record.status)]
    if record.errors is not None:
        worst = record.errors.worst
        figures.append(f"error of {worst.output} {ulp_text(worst.worst_ulp)}")
    if record.latency is not None:
        invalid = "" if record.latency.is_valid else " (invalid)"
        figures.append(f"{seconds_text(record.latency.per_call_s.value)} per call{invalid}")
        if ratio := record.latency.reference_ratio:
            speed = speed_text(as_speed(ratio).value)
            figures.append(f"{speed} the speed of {record.latency.reference}")
    return ", ".join(figures)


def _group(case: Case) -> str:
    """Return the class name of a test case; Jenkins takes the last dot for the end of a package."""
    return f"{_SUITE}.{case.implementation.replace('.', '_')}"


def _document(tests: Sequence[Entry], *, properties: dict[str, str], output: Iterable[str]) -> str:
    counts = Counter(test.status for test in tests)
    shared = {
        "name": _SUITE,
        "tests": str(len(tests)),
        "failures": str(counts[JUnitStatus.FAILURE]),
        "errors": str(counts[JUnitStatus.ERROR]),
        "time": _seconds(sum(test.time_s for test in tests)),
    }
    root = Element("testsuites", shared)
    skipped = str(counts[JUnitStatus.SKIPPED])
    suite = SubElement(root, "testsuite", shared | {"skipped": skipped})
    listed = SubElement(suite, "properties")
    for name, value in properties.items():
        SubElement(listed, "property", {"name": name, "value": _legal(value)})
    for test in tests:
        _add(suite, test)
    if text := "\n".join(output):
        SubElement(suite, "system-out").text = _legal(text)
    indent(root)
    return f"{_DECLARATION}\n{tostring(root, encoding='unicode')}\n"


def _add(suite: Element, test: Entry) -> None:
    case = SubElement(
        suite,
        "testcase",
        {
            "classname": _legal(test.group),
            "name": _legal(test.name),
            "time": _seconds(test.time_s),
        },
    )
    text = _legal(test.text)
    if test.status is JUnitStatus.PASSED:
        SubElement(case, test.status).text = text
        return
    child = SubElement(case, test.status, {"type": test.type, "message": text})
    child.text = f"{test.type}: {text}"


def _seconds(time_s: float) -> str:
    return f"{time_s:.3f}"


def _legal(text: str) -> str:
    """Escape what XML cannot hold, such as a terminal's colour codes, as "\\x1b"."""
    return _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", text)

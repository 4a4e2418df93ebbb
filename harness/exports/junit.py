"""JUnit XML, as GitLab, Jenkins and the reporters of GitHub read it: a test case a case.

Nobody owns the format. What is written here passes the schema that Jenkins' xunit plugin checks
(junit-10.xsd, in which a test case has no properties of its own), and says everything twice that
one of them leaves out: GitLab shows the text of a failure and drops its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from harness.records import Case, Record, Status
from harness.regression.changes import Change, Comparison
from harness.store import Results

__all__ = ["junit_of_comparison", "junit_of_refusal", "junit_of_run"]

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'
_SUITE = "layernorm-bench"
# what XML 1.0 cannot hold in any spelling (section 2.2), lone surrogates among it
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnitStatus(StrEnum):
    """How a test case ended, by the name of its element."""

    PASSED = "passed"
    SKIPPED = "skipped"
    """Not judged. Not a pass."""
    FAILURE = "failure"
    ERROR = "error"
    """It did not get as far as an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A test case of the report."""

    group: str
    name: str
    status: JUnitStatus
    type: str
    """What kind of failure, or of reason to skip it."""
    text: str
    """Why; of one that passed, what was seen."""
    time_s: float = 0.0


def junit_of_comparison(comparison: Comparison) -> str:
    """Return a comparison as JUnit XML: what fails the gate fails, what is unsure is skipped."""
    return _document(
        [_test_of_change(each) for each in comparison.changes],
        properties={"head": comparison.head, "baseline": comparison.baseline},
        output=comparison.notes,
    )


def junit_of_refusal(why: str) -> str:
    """Return a report of one error, for a gate that could not compare: it must not look passed."""
    gate = Entry(
        group=_SUITE, name="the gate", status=JUnitStatus.ERROR, type="not compared", text=why
    )
    return _document([gate], properties={}, output=())


def junit_of_run(results: Results, name: str) -> str:
    """Return a run as JUnit XML: wrong is a failure, crashed and its like an error.

    What its algorithm does not promise, and what was declined, is skipped. A run that was cut
    short has an error of its own.
    """
    tests = [_test_of_record(each) for each in results.records]
    if why := results.why_unfinished:
        text = f"the run was cut short: {why}"
        tests.insert(
            0,
            Entry(
                group=_SUITE, name="the run", status=JUnitStatus.ERROR, type="cut short", text=text
            ),
        )
    commands = dict.fromkeys(each.command for each in results.runs)
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
    """What was seen of a case that there is nothing to say against."""
    seen = [str(record.status)]
    if record.errors is not None:
        worst = record.errors.worst
        seen.append(f"{worst.output} {worst.scaled_max_ulp:.3g} ulp off")
    if record.latency is not None:
        warning = "" if record.latency.is_valid else " (not believed)"
        seen.append(f"{record.latency.per_call_s.value * 1e6:.4g} us a call{warning}")
        if ratio := record.latency.reference_ratio:
            seen.append(f"{ratio.value:.3f} of the time of {record.latency.reference}")
    return ", ".join(seen)


def _group(case: Case) -> str:
    """The implementation, as a class: Jenkins takes what is before the last dot for a package."""
    return f"{_SUITE}.{case.implementation.replace('.', '_')}"


def _document(tests: Sequence[Entry], *, properties: dict[str, str], output: Iterable[str]) -> str:
    counts = {
        "tests": len(tests),
        "failures": sum(each.status is JUnitStatus.FAILURE for each in tests),
        "errors": sum(each.status is JUnitStatus.ERROR for each in tests),
    }
    skipped = sum(each.status is JUnitStatus.SKIPPED for each in tests)
    shared = {name: str(count) for name, count in counts.items()} | {
        "name": _SUITE,
        "time": _seconds(sum(each.time_s for each in tests)),
    }
    root = Element("testsuites", shared)
    suite = SubElement(root, "testsuite", shared | {"skipped": str(skipped)})
    listed = SubElement(suite, "properties")
    for name, value in properties.items():
        SubElement(listed, "property", {"name": name, "value": _legal(value)})
    for each in tests:
        _add(suite, each)
    if told := "\n".join(output):
        SubElement(suite, "system-out").text = _legal(told)
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
        SubElement(case, "system-out").text = text
        return
    ended = SubElement(case, test.status, {"type": test.type, "message": text})
    ended.text = f"{test.type}: {text}"


def _seconds(time_s: float) -> str:
    return f"{time_s:.3f}"


def _legal(text: str) -> str:
    """Spell out what XML cannot hold, such as the colours of somebody's terminal."""
    return _NOT_XML.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

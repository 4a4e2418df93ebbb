"""Reports for CI: JUnit XML, GitHub's job summary and GitHub's annotations.

JUnit XML has no owner. The output is valid by the schema of Jenkins' xunit plugin (junit-10.xsd,
in which a test case has no properties). A reason is both message and text of its element, because
GitLab shows only the text.

GitHub shows ten annotations of each level per step and drops the others silently. So the worst come
first, and the tenth line says how many more there are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from harness.records import BAD_FIRST, Case, Record, Status
from harness.records.metrics import Metric, brief, metrics_in
from harness.records.text import count, grouped, in_words
from harness.regression import ChangeKind, Comparison
from harness.report.changes import document_of_comparison, verdict
from harness.report.document import Cell, Document, Table, Text, case_cell, columns
from harness.store import Results

__all__ = [
    "LIMIT_BYTES",
    "annotations_of_comparison",
    "junit_of_comparison",
    "junit_of_run",
    "reports_of_gate",
    "summary_of_comparison",
    "summary_of_run",
]


def reports_of_gate(found: Comparison | str) -> tuple[str, Document, list[str]]:
    """Return JUnit XML, the job summary and the annotations of a gate.

    Args:
        found: a comparison, or why nothing could be compared. That is an error in all three, so
            that a gate that could not compare does not look passed.
    """
    if not isinstance(found, str):
        summary = summary_of_comparison(found)
        return junit_of_comparison(found), summary, annotations_of_comparison(found)
    return (
        _junit([_test("the gate", "error", "not compared", found)], {}),
        (Text("layernorm-bench: ❌ nothing was compared", "title"), Text(found)),
        list(_annotations("error", [("layernorm-bench: nothing was compared", found)])),
    )


# --- the job summary: Markdown with the worst cases first ----------------------------------------

LIMIT_BYTES = 1024 * 1024
"""GitHub's limit for the summary of a step; it shows nothing of a longer one."""


def summary_of_comparison(comparison: Comparison) -> Document:
    """Return the verdict of a gate and its changes; unchanged cases are only counted."""
    title = f"layernorm-bench: {' '.join(verdict(comparison))}"
    return (Text(title, "title"), *document_of_comparison(comparison))


def summary_of_run(results: Results, name: str) -> Document:
    """Return the records of a run, the worst statuses first."""
    metrics = metrics_in("summary")
    heads = ("case", *(metric.heading("summary") for metric in metrics), "why")
    groups = grouped((record.status, record) for record in results.records)
    found = [status for status in BAD_FIRST if status in groups]
    bad = [status for status in found if status.is_incorrect or status.is_failure]
    tables = [
        Table(
            title=f"{len(groups[status])} {in_words(status)}",
            columns=columns(*heads),
            rows=tuple(_row(record, metrics) for record in groups[status]),
            is_folded=status not in bad,
        )
        for status in found
    ]
    why = results.why_unfinished
    passed = not bad and not why and any(status.is_measured for status in found)
    titles = ", ".join(table.title for table in tables)
    return (
        Text(f"layernorm-bench: {'✅' if passed else '❌'} {titles}", "title"),
        Text(name),
        *([Text(f"the run was cut short: {why}", "note")] if why else []),
        *tables,
    )


def _row(record: Record, metrics: Sequence[Metric]) -> tuple[Cell, ...]:
    numbers = (metric.text(record, interval=metric.unit == "speed") for metric in metrics)
    return (case_cell(record.case), *map(Cell, numbers), Cell(record.why))


# --- JUnit XML: one test case per case ------------------------------------------------------------

_SUITE = "layernorm-bench"
# characters that XML 1.0 cannot hold, even escaped (section 2.2); among them lone surrogates
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Verdict = Literal["system-out", "skipped", "failure", "error"]
"""The element of a test case: it passed, was not judged, failed, or has no result to judge."""


def junit_of_comparison(comparison: Comparison) -> str:
    """Return a comparison as JUnit XML; a case that was not judged is skipped."""
    verdicts: dict[ChangeKind, Verdict] = {
        kind: "failure" if kind.is_failure else "system-out" if kind.is_judged else "skipped"
        for kind in ChangeKind
    }
    tests = [
        _test(change.case, verdicts[change.kind], change.kind, change.reason)
        for change in comparison.changes
    ]
    properties = {"head": comparison.head, "baseline": comparison.baseline}
    return _junit(tests, properties, comparison.notes)


def junit_of_run(results: Results, name: str) -> str:
    """Return a run as JUnit XML.

    A wrong or inaccurate case is a failure, of that type: its test is that it is within its error
    bound. A crash, a timeout or an error is an error. Cases out of guarantee, unsupported or out of
    memory are skipped. A run that was cut short has an error of its own.
    """
    tests = list(map(_test_of, results.records))
    if why := results.why_unfinished:
        tests.insert(0, _test("the run", "error", "cut short", f"the run was cut short: {why}"))
    commands = dict.fromkeys(run.command for run in results.runs)
    return _junit(tests, {"run": name, "command": "; ".join(commands)})


def _test_of(record: Record) -> Element:
    status, figures = record.status, ", ".join(filter(None, [record.status, brief(record)]))
    verdict: Verdict = "error" if status.is_failure else "skipped"
    text = record.reason or figures
    if status.is_incorrect:
        verdict = "failure"
    elif status is Status.OK:  # its reason is a remark
        verdict, text = "system-out", ", ".join(filter(None, [figures, record.why]))
    cost_s = record.cost.total_s if record.cost else 0.0
    return _test(record.case, verdict, status, text, cost_s)


def _test(case: Case | str, verdict: Verdict, kind: str, why: str, time_s: float = 0.0) -> Element:
    """Return a test case; a text instead of a case stands for the whole run or gate.

    Args:
        case: the case.
        verdict: whether it passed.
        kind: of failure, or of reason to skip it.
        why: the reason; of a test case that passed, its figures.
        time_s: what it cost.
    """
    group, name, text = _SUITE, str(case), _legal(why)
    if isinstance(case, Case):  # Jenkins takes the last dot for the end of a package
        group, name = f"{_SUITE}.{case.implementation.replace('.', '_')}", case.id
    names = {"classname": _legal(group), "name": _legal(name), "time": f"{time_s:.3f}"}
    test = Element("testcase", names)
    if verdict == "system-out":
        SubElement(test, verdict).text = text
    else:
        SubElement(test, verdict, {"type": kind, "message": text}).text = f"{kind}: {text}"
    return test


def _junit(tests: Sequence[Element], properties: dict[str, str], output: Iterable[str] = ()) -> str:
    counts = Counter(test[0].tag for test in tests)
    shared = {
        "name": _SUITE,
        "tests": str(len(tests)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "time": f"{sum(float(test.attrib['time']) for test in tests):.3f}",
    }
    root = Element("testsuites", shared)
    suite = SubElement(root, "testsuite", shared | {"skipped": str(counts["skipped"])})
    listed = SubElement(suite, "properties")
    for name, value in properties.items():
        SubElement(listed, "property", {"name": name, "value": _legal(value)})
    suite.extend(tests)
    if text := "\n".join(output):
        SubElement(suite, "system-out").text = _legal(text)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _legal(text: str) -> str:
    """Escape what XML cannot hold, such as a terminal's colour codes, as "\\x1b"."""
    return _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


# --- annotations: lines of a step's output that GitHub shows beside the pull request --------------

_MOST = 10  # GitHub's limit, per level and step
_LONGEST_TITLE = 255  # the limit of GitHub's checks API


def annotations_of_comparison(comparison: Comparison) -> list[str]:
    """Return an error per case that fails the gate, then warnings, then the notes as notices.

    Cases that were not judged share one warning per kind, since a busy machine has some in every
    run.
    """
    failing, warnings = [], []
    groups = grouped((change.kind, change) for change in comparison.changes)
    for kind, alike in groups.items():
        if kind.is_failure:
            failing += [(f"{kind}: {change.case.id}", change.reason) for change in alike]
        elif not kind.is_judged and kind is not ChangeKind.NEW:  # a new case is no problem
            cases = f"{count(len(alike), 'case')} {'is' if len(alike) == 1 else 'are'} {kind}"
            warnings.append((cases, f"such as {alike[0].case.id}: {alike[0].reason}"))
    notes = [("layernorm-bench", note) for note in comparison.notes]
    levels = (("error", failing), ("warning", warnings), ("notice", notes))
    return [line for level, found in levels for line in _annotations(level, found)]


def _annotations(level: str, found: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a workflow command per title and message, ten at most."""
    shown = list(found) if len(found) <= _MOST else list(found[: _MOST - 1])
    if left := len(found) - len(shown):
        shown.append(("layernorm-bench", f"and {left} more; see the job's summary and output"))
    for title, message in shown:
        name = _data(title[:_LONGEST_TITLE]).replace(":", "%3A").replace(",", "%2C")
        yield f"::{level} title={name}::{_data(message)}"


def _data(text: str) -> str:
    """Escape what would end the command. The percent sign is first, since it begins each escape."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

"""Runs and comparisons for CI and other tools: CSV, charts, JUnit XML, summaries, annotations."""

from __future__ import annotations

import csv
import re
from io import StringIO
from math import inf, nan
from typing import Any
from xml.etree import ElementTree

import pytest
from factories.compared_runs import (
    STEADY,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
    with_error,
)
from factories.golden import assert_golden

from harness.records import Direction, Estimate, MeasurementWarning, Record, Status, WarningKind
from harness.regression import Change, ChangeKind, Comparison
from harness.report import (
    AS_TEXT,
    LIMIT_BYTES,
    Document,
    annotations_of_comparison,
    junit_of_comparison,
    markdown,
    reports_of_gate,
    summary_of_comparison,
    summary_of_run,
)

WARNINGS = tuple(
    MeasurementWarning(kind=kind, advice="wait")
    for kind in (WarningKind.NOISY, WarningKind.THROTTLED)
)


def timed(name: str, **changes: Any) -> Record:
    ratio = Estimate(value=1.5, low=1.4, high=1.7)
    latency = make_latency((1.5,), **{"reference_ratio": ratio, **changes})
    return make_record(make_case(name), latency=latency)


NAN = Estimate(value=nan, low=nan, high=nan)
RECORDS = [
    make_record(make_case(direction=Direction.BACKWARD), STEADY, warnings=WARNINGS),
    timed("relative_to_native"),
    timed("alone", reference=None, reference_ratio=None),
    timed("open_end", reference_ratio=Estimate(value=1.5, low=0.0, high=inf)),
    timed("faster_than_copy", is_valid=False),
    timed("nan_time", per_call_s=NAN, reference_ratio=NAN),
    *(with_error(make_record(make_case(f"{x}_off")), scaled_max_ulp=x) for x in (inf, nan)),
    *(failed(make_case(f"of_{status}"), status) for status in Status if status is not Status.OK),
    # a spreadsheet would take these for formulas
    *(failed(make_case(f"starts_{number}"), reason=f"{sign}1+1\nor \"2\", said")
      for number, sign in enumerate("=+-@")),
]  # fmt: skip


READERS = {
    "csv": lambda text: [*csv.DictReader(StringIO(text, newline=""), strict=True)],
    "junit": lambda text: ElementTree.fromstring(text.encode()),
    "summary": str.encode,
}


@pytest.mark.parametrize("form", READERS)
def test_an_exported_run_is_valid_and_reads_as_in_the_golden_file(form: str) -> None:
    text = AS_TEXT[form](results_of(*RECORDS, planned=99), "run.parquet")
    assert text
    assert READERS[form](text)
    assert_golden(text, __file__, f"run_{form}.txt")


# --- a comparison in CI --------------------------------------------------------------------------


def change_of(kind: ChangeKind, reason: str = "why", number: int = 0, **more: Any) -> Change:
    return Change(**{"case": make_case(rows=number), "kind": kind, "reason": reason, **more})


def comparison_of(*changes: Change, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(changes=changes, baseline="old.parquet", head="new.parquet", notes=notes)


def one_of_each() -> Comparison:
    """Return one change of each kind, each of a different case, ordered from worst to best."""
    ratio = Estimate(value=1.25, low=1.2, high=1.3)
    changes = [
        change_of(kind, f"because {number}", number, ratio=ratio if number == 1 else None)
        for number, kind in enumerate(ChangeKind)
    ]
    return comparison_of(*changes, notes=("it rains",))


HOSTILE = comparison_of(
    change_of(ChangeKind.REGRESSED, "100 %\r\n::error::fake", case=make_case("v2/mine.py:f,g\n")),
    change_of(ChangeKind.REGRESSED, "\x1b[31mred\x1b[0m, nul \x00, \ufffe and lost \udcff", 1),
    change_of(ChangeKind.REGRESSED, '<b> & "quotes" ]]> a|b a\\|b `code` *bold* _it_ two_pass', 2),
    change_of(ChangeKind.REGRESSED, "two\nlines\tand µs \U0001f600 [a](b) #1 ~~x~~ &amp;", 3),
    change_of(ChangeKind.REGRESSED, case=make_case("x" * 260)),  # GitHub cuts titles
)


@pytest.mark.parametrize("name", ["comparison", "hostile", "refusal"])
def test_a_gate_reads_as_in_the_golden_file(name: str) -> None:
    if name == "refusal":
        why = "base_.parquet: 50%0A and \udcff"
        junit, summary, annotations = reports_of_gate(why)
    else:
        comparison = one_of_each() if name == "comparison" else HOSTILE
        junit, summary = junit_of_comparison(comparison), summary_of_comparison(comparison)
        annotations = annotations_of_comparison(comparison)
    assert ElementTree.fromstring(junit.encode()).tag == "testsuites"
    text = "\n".join((junit, markdown(summary), *annotations))
    visible = (sign if sign.isprintable() or sign == "\n" else ascii(sign) for sign in text)
    assert_golden("".join(visible), __file__, f"{name}.txt")


def test_of_more_than_ten_annotations_the_tenth_is_their_number() -> None:
    def annotations(number: int) -> list[str]:
        changes = [change_of(ChangeKind.SLOWER, f"why {place}", place) for place in range(number)]
        return annotations_of_comparison(comparison_of(*changes))

    assert annotations(10)[9].endswith("::why 9")
    assert len(annotations(14)) == 10
    assert "5 more" in annotations(14)[9]


def compared(*kinds: ChangeKind) -> Document:
    return summary_of_comparison(comparison_of(*map(change_of, kinds)))


def ran(status: Status, planned: int = 1) -> Document:
    record = make_record() if status is Status.OK else failed(status=status)
    return summary_of_run(results_of(record, planned=planned), "run")


@pytest.mark.parametrize(
    ("summary", "sign"),
    [
        (compared(ChangeKind.UNCHANGED, ChangeKind.SLOWER), "❌"),
        (compared(ChangeKind.UNCHANGED, ChangeKind.INCONCLUSIVE), "✅"),
        (compared(ChangeKind.INCONCLUSIVE, ChangeKind.GONE), "⚠️"),
        (ran(Status.OK), "✅"),
        (ran(Status.OK, planned=2), "❌"),  # cut short
        (ran(Status.UNSUPPORTED), "❌"),  # nothing was measured
        (ran(Status.WRONG), "❌"),
    ],
)
def test_the_heading_is_the_verdict(summary: Document, sign: str) -> None:
    assert markdown(summary).startswith(f"## layernorm-bench: {sign} ")


# --- within GitHub's limit -----------------------------------------------------------------------


def rows(summary: str) -> list[str]:
    """Return the rows of all tables, without their heads."""
    lines = [line for line in summary.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| case |")]


def test_a_summary_keeps_within_the_limit_and_counts_the_rows_left_out() -> None:
    number = 9000
    changes = [change_of(ChangeKind.REGRESSED, "µ" * 100, place) for place in range(number)]
    document = summary_of_comparison(comparison_of(*changes))
    summary = markdown(document, limit_bytes=LIMIT_BYTES, rest="all are in junit.xml")
    assert LIMIT_BYTES * 0.99 < len(summary.encode()) <= LIMIT_BYTES
    (left,) = re.findall(r"([\d,]+) more lines; all are in junit.xml$", summary, re.M)
    assert len(rows(summary)) + int(left.replace(",", "")) == number + 1
    assert rows(summary)[0] == f"| {make_case(rows=0).id} | – | {'µ' * 100} |"


def test_the_summary_is_empty_if_the_verdict_does_not_fit() -> None:
    assert markdown(summary_of_comparison(one_of_each()), limit_bytes=100) == ""

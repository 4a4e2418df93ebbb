"""Verdicts, explanations and self-tests in words, and the renderings of one document."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.golden import assert_golden
from factories.verdict_examples import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st

from harness.records import Case, Finding, Status
from harness.report import (
    Cell,
    Document,
    Facts,
    Table,
    Text,
    document_of_explanation,
    document_of_self_test,
    document_of_verdict,
    headline,
    markdown,
    number,
    pill,
    terminal_lines,
    verdict_as_json,
)
from harness.verify import Explanation, MutantResult, SelfTest, Step, Verdict

MEAN = Step(name="mean", shape=(3, 1), exact=(-0.25,), computed=(-0.2500001,))
EXPLANATION = Explanation(
    case=Case(implementation="norm", shape=(3, 2)),
    status=Status.OK,
    reason="",
    row=1,
    worst_element=0,
    worst_ulp=0.42,
    steps=(MEAN, Step(name="y", shape=(3, 2), exact=(1.0, -1.0), computed=(1.0, -1.0))),
)
UNEXPLAINED = replace(
    EXPLANATION,
    status=Status.WRONG,
    reason="y: 2 of 2 elements are NaN",
    worst_ulp=float("inf"),
    steps=(replace(MEAN, computed=None),),
)
FOUND, MISSED = (
    MutantResult(name="no_root", mistake="divides", dtype=dtype, is_found=dtype == "float32")
    for dtype in ("float32", "bfloat16")
)
SELF_TEST = SelfTest(mutants=(FOUND,), rejected=())
every_example = pytest.mark.parametrize("verdict", EXAMPLES.values(), ids=EXAMPLES)


def text_of(document: Document, width: int = 100) -> str:
    return "\n".join(line for line, _ in terminal_lines(document, width))


def test_verdicts_explanations_and_self_tests_read_as_in_the_golden_file() -> None:
    documents = {name: document_of_verdict(verdict) for name, verdict in EXAMPLES.items()}
    for name in ("right with a narrow scope and remarks", "wrong"):
        documents[f"{name}: verbose"] = document_of_verdict(EXAMPLES[name], verbose=True)
    documents |= {
        "an explanation": document_of_explanation(EXPLANATION),
        "an explanation of NaN": document_of_explanation(UNEXPLAINED),
        "a self-test": document_of_self_test(SELF_TEST),
        "a self-test that fails": document_of_self_test(
            replace(SELF_TEST, mutants=(MISSED,), rejected=("module", "recentred"))
        ),
    }
    texts = [f"# {name}\n{text_of(document)}" for name, document in documents.items()]
    assert_golden("\n\n".join(texts), __file__, "verdicts.txt")


FINDINGS = [finding for verdict in EXAMPLES.values() for finding in verdict.findings]


@given(
    verdict=st.sampled_from([*EXAMPLES.values()]),
    findings=st.lists(
        st.builds(
            lambda finding, text: replace(finding, text=f"does {text}"),
            st.sampled_from(FINDINGS),
            st.text("ab cdefgh", max_size=400),
        ),
        max_size=20,
    ),
)
def test_a_verdict_fits_a_screen_however_many_and_long_its_findings(
    verdict: Verdict, findings: list[Finding]
) -> None:
    for own in (verdict.findings, tuple(findings)):
        shown = replace(verdict, findings=own)
        lines = text_of(document_of_verdict(shown)).splitlines()
        assert len(lines) <= 15
        assert max(map(len, lines)) <= 100
        assert headline(shown).split()[0] == lines[0].split()[0]


@every_example
def test_the_verbose_form_and_the_json_hold_every_finding(verdict: Verdict) -> None:
    text = text_of(document_of_verdict(verdict, verbose=True), 10_000)
    assert all(finding.text in text for finding in verdict.findings)
    assert verdict_as_json("norm", verdict)["outcome"] == verdict.outcome


def test_a_warning_is_never_left_out() -> None:
    full = EXAMPLES["right with more remarks than fit"]
    warnings = EXAMPLES["right with a narrow scope and remarks"].remarks
    verdict = replace(full, findings=(*full.findings, *warnings))
    text = text_of(document_of_verdict(verdict))
    assert "has a wrong second derivative" in text.partition("WARNING")[2]


# --- the renderings of one document --------------------------------------------------------------


DOCUMENT = (
    Text("2 cases ran", "title"),
    Text("on one machine", "note"),
    Text("with <one> thread", "note"),
    Table(
        title="the cases",
        columns=(Cell("case"), Cell("latency", is_number=True), Cell("memory", is_number=True)),
        rows=(
            (Cell("native/4x8"), number("1.2 µs"), number("128 B")),
            (Cell("a|b_c/4x8", note="a longer reason"), pill("wrong"), number("1 KiB")),
        ),
    ),
    Text("the longest-of-words of a text that is wrapped"),
    Facts("machine", (("CPU", "Imaginary*"), ("memory", "a value of several lines"))),
    Text("layernorm-bench verify mine.py:norm --quick", "code"),
)


def test_a_document_reads_as_in_the_golden_file() -> None:
    texts = {f"{width} columns": text_of(DOCUMENT, width) for width in (100, 24)}
    texts["Markdown"] = markdown(DOCUMENT)
    blocks = [f"=== {name}\n{text}" for name, text in texts.items()]
    assert_golden("\n\n".join(blocks), __file__, "document.txt")


@pytest.mark.parametrize("limit", range(1, 1600, 50))
def test_markdown_is_never_longer_than_its_limit(limit: int) -> None:
    text = markdown(DOCUMENT, limit_bytes=limit, rest="see elsewhere")
    assert len(text.encode()) <= limit
    whole = markdown(DOCUMENT)
    assert text in {"", whole} or "see elsewhere" in text

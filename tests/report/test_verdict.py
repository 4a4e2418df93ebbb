"""Verdicts, explanations and self-tests in words, and the four renderings of one document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories.golden import assert_golden
from factories.verdict_examples import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st

from harness.records import Case, Finding, Status
from harness.report.document import (
    Cell,
    Document,
    Facts,
    Table,
    Text,
    markdown,
    number,
    pill,
    terminal_lines,
)
from harness.report.verdict import (
    document_of_explanation,
    document_of_self_test,
    document_of_verdict,
    headline,
    verdict_as_json,
)
from harness.verify import Explanation, MutantResult, SelfTest, Step, Verdict
from harness.verify.case_results import Count

GOLDEN = Path(__file__).parent / "golden"
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
every_example = pytest.mark.parametrize("verdict", EXAMPLES.values(), ids=EXAMPLES)


def text_of(document: Document, width: int = 100) -> str:
    return "\n".join(line for line, _ in terminal_lines(document, width))


def as_text(documents: dict[str, Document]) -> str:
    return "\n\n".join(f"# {name}\n{text_of(document)}" for name, document in documents.items())


def test_verdicts_in_words() -> None:
    documents = {name: document_of_verdict(verdict) for name, verdict in EXAMPLES.items()}
    assert_golden(as_text(documents), GOLDEN / "verdicts.txt")


def test_verbose_verdicts_explanations_and_self_tests_in_words() -> None:
    verbose = ("right with a narrow scope and remarks", "wrong")
    documents: dict[str, Document] = {
        name: document_of_verdict(EXAMPLES[name], verbose=True) for name in verbose
    }
    documents |= {
        "an explanation": document_of_explanation(EXPLANATION),
        "an explanation of NaN": document_of_explanation(UNEXPLAINED),
        "a self-test": document_of_self_test(SelfTest(mutants=(FOUND,), rejected=())),
        "a self-test that fails": document_of_self_test(
            SelfTest(mutants=(FOUND, MISSED), rejected=("module", "recentred"))
        ),
    }
    assert_golden(as_text(documents), GOLDEN / "verbose_verdicts.txt")


def assert_fits_a_screen(verdict: Verdict) -> None:
    lines = text_of(document_of_verdict(verdict)).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "everything: --verbose"
    assert "guarantee" not in " ".join(lines)
    assert headline(verdict).split()[0] == lines[0].split()[0]


@every_example
def test_a_verdict_fits_a_screen_and_says_where_everything_is(verdict: Verdict) -> None:
    assert_fits_a_screen(verdict)


DTYPES = ("float32", "bfloat16", "float16", "float64")
FINDINGS = [own for verdict in EXAMPLES.values() for own in verdict.findings]
WORDS = st.text("ab cdefgh", min_size=9, max_size=400)


@given(
    verdict=st.sampled_from([*EXAMPLES.values()]),
    findings=st.lists(
        st.builds(
            lambda finding, text, dtypes: replace(
                finding, text=f"does {text}", dtypes=tuple(dtypes)
            ),
            st.sampled_from(FINDINGS),
            WORDS,
            st.lists(st.sampled_from(DTYPES), unique=True, min_size=1),
        ),
        max_size=20,
    ),
    counts=st.lists(
        st.builds(
            Count,
            dtype=st.sampled_from(DTYPES),
            ok=st.integers(0, 9000),
            failed=st.integers(0, 3),
            declined=st.integers(0, 9000),
        ),
        unique_by=lambda own: own.dtype,
    ),
)
def test_a_verdict_with_many_long_findings_fits_a_screen(
    verdict: Verdict, findings: list[Finding], counts: list[Count]
) -> None:
    assert_fits_a_screen(replace(verdict, findings=tuple(findings), counts=tuple(counts)))


@every_example
def test_the_verbose_form_and_the_json_hold_every_finding(verdict: Verdict) -> None:
    text = text_of(document_of_verdict(verdict, verbose=True), 10_000)
    assert all(one.text in text for one in verdict.findings)
    plain = verdict_as_json("norm", verdict)
    assert (plain["target"], plain["headline"]) == ("norm", headline(verdict))
    assert plain["outcome"] == verdict.outcome


def test_a_warning_is_never_left_out() -> None:
    full = EXAMPLES["right with more remarks than fit"]
    warnings = EXAMPLES["right with a narrow scope and remarks"].remarks
    verdict = replace(full, findings=(*full.findings, *warnings))
    text = text_of(document_of_verdict(verdict))
    assert "has a wrong second derivative" in text.partition("WARNING")[2]


# === The four renderings of one document


DOCUMENT = (
    Text("2 cases ran", "title"),
    Text("on one machine", "note"),
    Text("with <one> thread", "note"),
    Table(
        title="the cases",
        columns=(
            Cell("case"),
            Cell("latency", is_number=True),
            Cell("memory", is_number=True),
        ),
        rows=(
            (Cell("native/4x8"), number("1.2 µs"), number("128 B")),
            (Cell("a|b_c/4x8", note="a longer reason"), pill("wrong"), number("1 KiB")),
        ),
    ),
    Facts("machine", (("CPU", "Imaginary*"),)),
)


def test_terminal() -> None:
    assert list(terminal_lines(DOCUMENT)) == [
        ("2 cases ran", ""),
        ("note: on one machine", ""),
        ("note: with <one> thread", ""),
        ("the cases", ""),
        (" case        latency  memory", ""),
        (" native/4x8  1.2 µs   128 B", ""),
        (" a|b_c/4x8   wrong    1 KiB", "yellow"),
        ("    a longer reason", "yellow"),
        ("machine", ""),
        ("  CPU   Imaginary*", ""),
    ]


def test_on_a_narrow_terminal_the_id_has_a_line_of_its_own() -> None:
    assert [line for line, _ in terminal_lines(DOCUMENT, width=24)][4:] == [
        "  latency  memory",
        "native/4x8",
        "  1.2 µs   128 B",
        "a|b_c/4x8",
        "  wrong    1 KiB",
        "    a longer reason",
        "machine",
        "  CPU   Imaginary*",
    ]


def test_texts_facts_and_commands_are_wrapped_between_words() -> None:
    document = (
        Text("the longest-of-words of a text that is wrapped"),
        Facts("", (("x", "a value that needs several lines"), ("output", "y"))),
        Text("layernorm-bench verify mine.py:norm --quick", "code"),
        Text(""),
    )
    assert [line for line, _ in terminal_lines(document, width=32)] == [
        "the longest-of-words of a text",
        "  that is wrapped",
        "  x        a value that needs",
        "           several lines",
        "  output   y",
        "layernorm-bench verify \\",
        "  mine.py:norm --quick",
        "",
    ]
    assert markdown(document[2:3]).startswith("```\nlayernorm-bench verify mine.py:norm --quick\n")


def test_markdown() -> None:
    assert markdown(DOCUMENT).splitlines() == [
        "## 2 cases ran",
        "",
        "- on one machine",
        "- with \\<one\\> thread",
        "",
        "### the cases",
        "",
        "| case | latency | memory |",
        "|---|---:|---:|",
        "| native/4x8 | 1.2 µs | 128 B |",
        "| a\\|b_c/4x8<br>a longer reason | ✕ | 1 KiB |",
        "",
        "### machine",
        "",
        "- CPU: Imaginary\\*",
    ]


@pytest.mark.parametrize("limit", range(1, 1600, 50))
def test_markdown_is_never_longer_than_its_limit(limit: int) -> None:
    text = markdown(DOCUMENT[:4], limit_bytes=limit, rest="see elsewhere")
    assert len(text.encode()) <= limit
    whole = markdown(DOCUMENT[:4])
    assert text in {"", whole} or ("see elsewhere" in text and text[:10] == whole[:10])

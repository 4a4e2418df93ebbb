"""The four renderings of one document."""

from __future__ import annotations

import pytest

from harness.report.document import (
    Cell,
    Facts,
    Table,
    Text,
    markdown,
    number,
    pill,
    terminal_lines,
)

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

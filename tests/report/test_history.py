"""Sections of some pages alone: a history, verdicts against a baseline; and the glossary."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from factories.compared_runs import make_case, make_record, results_of
from factories.histories import URL, commit_of, history_of, runs_of, wavy

from harness.regression import compare_as_stored
from harness.regression.history import History
from harness.report import build_page, document
from harness.report.changes import how_it_changed
from harness.report.document import definitions, with_terms
from harness.report.frame import gather

CASE = make_case("c_recentred")


def blocks_of(history: History) -> list[object]:
    runs = [run.results for run in history.latest]
    return list(how_it_changed(replace(gather(runs), history=history)))


@pytest.fixture(scope="module")
def changed() -> History:
    return history_of(*runs_of(CASE, wavy((0.7, 8), (0.77, 8))))


def test_the_page_shows_each_change_with_a_link_to_its_commit(changed: History) -> None:
    page = build_page([run.results for run in changed.latest], history=changed)
    section = page.partition('<section id="how_it_changed"')[2].partition("</section>")[0]
    assert f'href="{URL}/commit/{commit_of(8)}"' in section
    assert f"{commit_of(7)[:10]}..{commit_of(8)[:10]}" in section
    assert section.count("<svg") == 1
    assert page == build_page([run.results for run in changed.latest], history=changed)


def test_runs_without_times_have_no_figure() -> None:
    runs = [replace(run, records=(make_record(CASE),)) for run in runs_of(CASE, (0.7, 0.7))]
    text = repr(blocks_of(history_of(*runs)))
    assert "No case has a speed" in text
    assert "FigureBlock" not in text


# === The verdicts against a baseline on the page


STEADY = make_record(make_case("native"))
LEAKING = make_record(make_case("two_pass"))


def verdicts_of(head_bytes: int) -> str:
    """Return the section of a page of a run whose second case takes this much memory."""
    assert LEAKING.memory is not None
    memory = replace(LEAKING.memory, peak_extra_bytes=head_bytes)
    before, after = results_of(STEADY, LEAKING), results_of(STEADY, replace(LEAKING, memory=memory))
    comparison = compare_as_stored(before, after, ("base.parquet", "run.parquet"))
    page = build_page([after], comparison=comparison)
    return page.partition('<section id="gate_verdicts"')[2].partition("</section>")[0]


def test_a_regression_is_named_with_its_figures() -> None:
    assert LEAKING.memory is not None
    section = verdicts_of(2 * LEAKING.memory.peak_extra_bytes)
    assert "1 case got worse." in section
    assert "run.parquet against base.parquet" in section
    rows = section.partition("<tbody>")[2].replace("<wbr>", "")
    assert LEAKING.case.id in rows
    assert STEADY.case.id not in rows


def test_an_unchanged_run_says_so_without_a_table() -> None:
    assert LEAKING.memory is not None
    section = verdicts_of(LEAKING.memory.peak_extra_bytes)
    assert "No case got worse" in section
    assert "<table" not in section


# === The definitions on the page are those of the documentation


DOCS = Path(__file__).parents[2] / "docs" / "glossary.md"
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def test_the_package_has_the_definitions_of_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.*)\n\n((?:.+\n|\n(?!#))*)", text, re.MULTILINE)
    plain = {
        heading: " ".join(LINK.sub(r"\1", body).replace("`", "").replace("*", "").split())
        for heading, body in sections
        if heading in definitions()
    }
    path = Path(document.__file__).with_name("glossary.json")
    if os.environ.get("WRITE_GOLDEN"):
        written = json.dumps(plain, indent=1, ensure_ascii=False)
        path.write_text(f"{written}\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == plain


def test_the_first_use_of_a_term_leads_to_its_definition_and_text_is_escaped() -> None:
    found = with_terms("Errors <b> in ulp; 0.5 ulp is correctly rounded, pulp is not.")
    assert found.count('<a class="term" href="#term-ulp"') == 1
    assert definitions()["ulp"].startswith("Unit in the last place")
    assert "&lt;b&gt;" in found
    assert "pulp is not" in found

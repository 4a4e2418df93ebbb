"""The section of a history: what it shows, links to, and withstands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.compared_runs import make_case, make_record
from factories.histories import URL, commit_of, history_of, runs_of, wavy

from harness.regression.history import History
from harness.report import build_page
from harness.report.changes import how_it_changed
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

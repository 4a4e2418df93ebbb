"""What the page must hold, whatever the results hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from threading import Thread

import pytest
from factories.results_factory import make_cases, make_record, make_results, make_run
from factories.small_results import CASE, FAILED, SMALL

from harness.records import Mode, Status
from harness.records.refusal import Refusal
from harness.report import build_page, write_report
from harness.report.changes import gate_verdicts, how_it_changed
from harness.report.document import heading, script_json
from harness.report.frame import gather
from harness.report.page import SECTIONS
from harness.report.provenance import case_data
from harness.store import Results

HOSTILE = "</script><script>alert('x')</script> & $a$ $\\frac{ <b>\u2028 µ😀"


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1], parse_constant=pytest.fail)


def markup_of(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    assert found, f"no section {name}"
    return found[0]


ON_SOME_PAGES = {how_it_changed, gate_verdicts}
"""Left out of a page without a history or a baseline."""

# --- sections ------------------------------------------------------------------------------------


def test_every_section_is_on_the_page_and_in_its_navigation(page: str) -> None:
    for section in SECTIONS:
        if section in ON_SOME_PAGES:
            assert f"{heading(section)}</" not in page
            continue
        assert f">{heading(section)}</h2>" in markup_of(page, section.__name__)
        assert f'<a href="#{section.__name__}">{heading(section)}</a>' in page


def test_a_section_without_data_is_left_out_or_says_so_and_has_no_figure() -> None:
    for section in SECTIONS:
        blocks = section(gather([SMALL]))
        assert bool(blocks) == (section not in ON_SOME_PAGES), section.__name__
        assert not [block for block in blocks if block.kind == "figure"]


# --- the file ------------------------------------------------------------------------------------


def test_five_thousand_cases_stay_below_two_megabytes() -> None:
    results = make_results(5000)
    assert len(build_page([results]).encode()) < 2_000_000
    assert json.loads(script_json(case_data(gather([results]))))["count"] == 5000


def test_the_page_loads_nothing_and_its_drawings_are_small(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    drawings = re.findall(r"<svg viewBox[^>]*role=\"img\".*?</svg>", page, re.DOTALL)
    assert len(drawings) >= 8
    assert max(map(len, drawings)) < 40_000


def test_a_report_needs_no_torch() -> None:
    code = "import sys, harness.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_report([SMALL], path)
    write_report([SMALL], path, title="Second")
    assert "Second" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_a_page_can_be_written_to_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    os.mkfifo(path)
    found: list[str] = []
    read = Thread(target=lambda: found.append(path.read_text(encoding="utf-8")), daemon=True)
    read.start()
    write_report([SMALL], path)
    assert path.is_fifo()
    read.join(timeout=60)
    assert found == [build_page([SMALL])]


# --- what the page holds -------------------------------------------------------------------------


def test_hostile_texts_are_shown_and_not_run() -> None:
    case = replace(next(make_cases()), implementation=HOSTILE)
    crash = replace(FAILED, case=replace(case, seed=1), status=Status.CRASHED, reason=HOSTILE)
    records = (crash, make_record(case), make_record(CASE))
    page = build_page([replace(SMALL, records=records)], title=HOSTILE)
    assert "<script>alert" not in page
    assert "<b>" not in page.replace('<b aria-hidden="true">', "")
    assert escape(HOSTILE) in page.replace("&#39;", "&#x27;")
    assert HOSTILE in embedded(page)["texts"]["reason"]["words"]


def test_one_implementation_makes_a_page_and_the_same_page_again() -> None:
    cases = [
        case
        for case in make_cases(["cpu"], ["float32"])
        if case.implementation == "welford" and case.mode is Mode.EAGER
    ]
    results = replace(SMALL, records=tuple(map(make_record, cases)))
    page = build_page([results])
    assert build_page([results]) == page
    assert "welford" in markup_of(page, "latency_against_size")
    assert "welford" in markup_of(page, "error_against_condition")


def test_a_run_without_a_record_has_no_page(tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    with pytest.raises(Refusal) as refusal:
        write_report([Results(records=(), runs=(make_run(),), environments={})], path)
    assert refusal.value.exit_code == 3
    assert not path.exists()

"""What the page and the data of its script must hold, whatever the results hold."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from functools import partial
from hashlib import sha256
from html import escape
from math import inf
from pathlib import Path
from threading import Thread

import pytest
from factories.results_factory import make_cases, make_record, make_results, make_run
from factories.small_results import CASE, FAILED, SMALL

from harness.cases import NAMED, expand, sweep_axes
from harness.cli.options import SweepChoice, given_axes
from harness.cli.run import run
from harness.records import Affine, Autograd, Case, Direction, Mode, Refusal, Status
from harness.report import build_page, write_report
from harness.report.changes import gate_verdicts, how_it_changed
from harness.report.document import heading, script_json
from harness.report.frame import gather
from harness.report.page import SECTIONS
from harness.report.provenance import case_data, command_rest
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


# === What the page's script is given: columns and commands; and the page's policy


PLAIN = Case(implementation="two_pass", shape=(64, 768))
ODD = Case(
    implementation="some/where.py:norm",
    mode=Mode.COMPILED,
    shape=(2, 3, 4),
    normalized_dims=2,
    dtype="bfloat16",
    param_dtype="float32",
    distribution="offset_1e3",
    layout="transposed",
    direction=Direction.BACKWARD,
    autograd=Autograd.FROZEN_X,
    grad_output="ones",
    affine=Affine.WEIGHT,
    parameters="ones_weight",
    eps=1e-12,
    threads=2,
    seed=7,
)


@pytest.mark.parametrize("case", [PLAIN, ODD], ids=["plain", "odd"])
def test_the_command_of_a_case_runs_this_case_alone(case: Case) -> None:
    record = make_record(case)
    command = (
        f"-i {case.implementation} --shape {'x'.join(map(str, case.shape))} --dtype {case.dtype} "
        f"--distribution {case.distribution} --direction {case.direction} {command_rest(record)}"
    )
    given = run.make_context("run", shlex.split(command)).params
    choice = SweepChoice(given_axes({axis.key: given[axis.key] for axis in sweep_axes()}))
    planned = expand(
        choice.load(),
        implementations={},
        names=NAMED,
        devices={"cpu": None},
    )
    assert [planned_case.case for planned_case in planned] == [case]


# --- more cases than a page can hold --------------------------------------------------------------


def test_of_too_many_cases_the_worst_are_shown_and_the_file_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = make_results(2000, devices=["cpu"], dtypes=["float32"])
    found = gather([many])
    data = case_data(found, most=900)
    assert data["count"] <= 900
    assert set(data["texts"]["status"]["words"]) == set(found.cases["status"])
    few = partial(case_data, most=100)
    monkeypatch.setattr("harness.report.provenance.case_data", few)
    page = build_page([many], files=["results/many.parquet"])
    assert "cases are too many for a page" in page
    assert "results/many.parquet" in page


# --- policy -----------------------------------------------------------------------------------


def test_the_policy_allows_the_script_of_the_page_and_nothing_else(page: str) -> None:
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found
    policy = dict(word.split(" ", 1) for word in found[1].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == "'unsafe-inline'"
    assert "http" not in found[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert (
        policy["script-src"] == f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    )
    assert not re.search(r"<[^>]* on\w+=", page)


def test_an_infinite_number_becomes_a_text_and_a_missing_one_null() -> None:
    record = make_record(CASE)
    assert record.errors is not None
    output = replace(record.errors.outputs[0], scaled_max_ulp=inf, bound_ratio=inf)
    errors = replace(record.errors, outputs=(output,), condition_max_ratio=inf)
    lost = replace(record, errors=errors, latency=None)
    data = case_data(gather([replace(SMALL, records=(lost,))]))
    assert data["numbers"]["error_ulp"] == ["inf"]
    assert data["numbers"].get("latency_s") is None
    json.loads(script_json(data), parse_constant=pytest.fail)


def test_ids_can_be_joined_again_from_the_columns(results: Results) -> None:
    odd = Case(
        implementation="some/where.py:norm",
        mode=Mode.COMPILED,
        shape=(2, 3, 4),
        normalized_dims=2,
        device="cuda",
        seed=7,
    )
    findings = gather([replace(results, records=(make_record(odd), *results.records))])
    texts = case_data(findings)["texts"]

    def word(name: str, row: int) -> str:
        return texts[name]["words"][texts[name]["codes"][row]]

    axes = ("implementation", "direction", "shape", "dtype", "distribution")
    for row, record in enumerate(findings.records):
        parts = [word(name, row).replace("×", "x") for name in axes]
        assert "/".join(parts) + word("id_rest", row) == record.case.id

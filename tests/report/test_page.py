"""What the page must hold, whatever the results hold."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from math import inf, nan
from pathlib import Path
from pkgutil import iter_modules
from threading import Thread
from types import FunctionType

import pytest
from results_factory import make_cases, make_environment, make_record, make_results, make_run

from harness.records import Case, Mode, Record, Status
from harness.report import ReportError, build_page, sections, write_report
from harness.report.content import Section, heading
from harness.report.embedded import case_data, script_json
from harness.report.frame import gather
from harness.report.sections import SECTIONS
from harness.report.sections.account import not_measured, warnings
from harness.report.sections.cost import memory
from harness.report.sections.gate import gate_verdicts
from harness.report.sections.history import how_it_changed
from harness.report.sections.provenance import environment_and_method
from harness.report.shown_cases import shown_cases
from harness.store import Results

DRAWN = r"stroke-dasharray: ([^;}]*)"
HOSTILE = "</script><script>alert('x')</script> & $a$ $\\frac{ <b>\u2028 µ😀"
CASE = Case(implementation="native", shape=(4, 8))
FAILED = Record(case=CASE, environment="elsewhere", status=Status.TIMEOUT, reason="too slow")
SMALL = Results(records=(FAILED,), runs=(make_run(),), environments={})
"""Results without a figure, whose page is quickly made."""


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1], parse_constant=pytest.fail)


def markup_of(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    assert found, f"no section {name}"
    return found[0]


def shown(section: Section, results: Results, *records: Record) -> str:
    """Return the blocks of a section for ``records``, by default those of the results, as text."""
    return repr(section(gather([replace(results, records=records) if records else results])))


# --- sections ---------------------------------------------------------------------------------


def test_every_section_is_on_the_page_and_in_its_navigation(page: str) -> None:
    for section in SECTIONS:
        if section in {how_it_changed, gate_verdicts}:  # on other pages alone
            assert heading(section) not in page
            continue
        assert f">{heading(section)}</h2>" in markup_of(page, section.__name__)
        assert f'<a href="#{section.__name__}">{heading(section)}</a>' in page


def test_every_public_function_of_the_sections_is_in_sections() -> None:
    names = [f"{sections.__name__}.{module.name}" for module in iter_modules(sections.__path__)]
    public = {
        function.__name__
        for name in names
        for function in vars(sys.modules[name]).values()
        if isinstance(function, FunctionType)
        and function.__module__ == name
        and not function.__name__.startswith("_")
    }
    assert public == {section.__name__ for section in SECTIONS}


def test_a_section_without_data_says_so_and_has_no_figure() -> None:
    for section in SECTIONS:
        blocks = section(gather([SMALL]))
        assert blocks, f"{section.__name__} shows nothing"
        assert not [block for block in blocks if block.kind == "figure"]


# --- the file ---------------------------------------------------------------------------------


def test_five_thousand_cases_stay_below_two_megabytes() -> None:
    results = make_results(5000)
    assert len(build_page([results]).encode()) < 2_000_000
    assert json.loads(script_json(case_data(shown_cases(gather([results])))))["count"] == 5000


def test_the_page_loads_nothing_and_its_drawings_are_small(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    drawings = re.findall(r"<svg viewBox[^>]*role=\"img\".*?</svg>", page, re.DOTALL)
    assert len(drawings) > 10
    assert max(map(len, drawings)) < 40_000


def test_ids_are_unique(page: str) -> None:
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_a_report_needs_no_torch() -> None:
    code = "import sys, harness.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_report([SMALL], path)
    write_report([SMALL], path, title="Second")
    assert "Second" in path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]


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


def test_a_page_behind_a_link_is_replaced_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page.html").symlink_to("elsewhere/first.html")
    write_report([SMALL], tmp_path / "page.html")
    assert (tmp_path / "page.html").is_symlink()
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["first.html"]


# --- what the page holds --------------------------------------------------------------------------


def test_hostile_texts_are_shown_and_not_run() -> None:
    case = replace(next(make_cases()), implementation=HOSTILE)
    crash = replace(FAILED, case=replace(case, seed=1), status=Status.CRASHED, reason=HOSTILE)
    records = (crash, make_record(case), make_record(CASE))
    page = build_page([replace(SMALL, records=records)], title=HOSTILE)
    assert "<script>alert" not in page
    assert "<b>" not in page.replace('<b aria-hidden="true">', "")
    assert escape(HOSTILE) in page.replace("&#39;", "&#x27;")
    assert HOSTILE in embedded(page)["texts"]["reason"]["words"]


def test_json_refuses_a_number_that_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json({"value": nan})


def test_an_infinite_number_becomes_a_text_and_a_missing_one_null() -> None:
    record = make_record(CASE)
    assert record.errors is not None
    output = replace(record.errors.outputs[0], scaled_max_ulp=inf, bound_ratio=inf)
    errors = replace(record.errors, outputs=(output,), condition_max_ratio=inf)
    lost = replace(record, errors=errors, latency=None)
    data = case_data(shown_cases(gather([replace(SMALL, records=(lost,))])))
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
    texts = case_data(shown_cases(findings))["texts"]

    def word(name: str, row: int) -> str:
        return texts[name]["words"][texts[name]["codes"][row]]

    axes = ("implementation", "direction", "shape", "dtype", "distribution")
    for row, record in enumerate(findings.records):
        parts = [word(name, row).replace("×", "x") for name in axes]
        assert "/".join(parts) + word("id_rest", row) == record.case.id


def test_everything_not_measured_is_listed_with_its_reason(results: Results) -> None:
    listed = shown(not_measured, results)
    absent = [record for record in results.records if not record.status.is_measured]
    assert {record.status for record in absent} >= {
        Status.UNSUPPORTED, Status.TIMEOUT, Status.CRASHED,
    }  # fmt: skip
    # reasons that differ only in numbers are listed once
    assert all(re.split(r"\d", record.reason)[0] in listed for record in absent)
    assert f"{len(absent)} cases" in listed
    assert "3 cases of 1,203" in listed
    assert "--resume" in listed


def test_reasons_that_differ_only_in_numbers_are_listed_once() -> None:
    wanted = [
        replace(FAILED, case=replace(CASE, shape=(size, 8)), reason=f"float32 wanted {size}.5 GiB")
        for size in (1, 2, 3)
    ]
    other = replace(FAILED, reason="float16 wanted 1.5 GiB", environment="b")
    listed = shown(not_measured, SMALL, *wanted, other)
    assert listed.count("float32 wanted") == 1
    assert "and 2 with other numbers" in listed
    assert "float16 wanted" in listed


def test_a_complete_run_has_nothing_left_out() -> None:
    complete = replace(SMALL, runs=(make_run(planned=1),))
    (block,) = not_measured(gather([replace(complete, records=(make_record(CASE),))]))
    assert block.kind == "text"


def test_errors_without_latency_make_a_page() -> None:
    page = build_page([make_results(60, devices=["cpu"], dtypes=["float32"], errors_only=True)])
    assert "<svg" not in markup_of(page, "which_implementation_to_run")
    assert "<svg" not in markup_of(page, "latency_against_size")


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


def test_a_run_cut_short_has_no_wall_time() -> None:
    page = build_page([replace(SMALL, runs=(make_run(wall_s=None, overhead_ratio=None),))])
    assert "was cut short" in markup_of(page, "environment_and_method")
    assert "Wall time" not in page


def test_every_field_of_the_environment_is_shown(results: Results) -> None:
    text, environment = shown(environment_and_method, results), make_environment()
    for part in (
        environment.fingerprint,
        environment.cpu,
        "2 usable",
        environment.cpu_capability,
        "8 GiB",
        environment.platform,
        environment.python,
        "torch 2.13.0",
        str(environment.compiler),
        "Imaginary GPU, 80 GiB, compute capability 9.0, limited to 700 W, GPU-0",
        environment.nvml,
        f"{environment.git_commit}, with uncommitted changes",
        "0.25 processes",
    ):
        assert part in text


def test_warnings_are_listed_with_their_advice(results: Results) -> None:
    assert "close other programs" in shown(warnings, results)
    certain = [replace(record, warnings=()) for record in results.records[:50]]
    assert "close other programs" not in shown(warnings, results, *certain)


def test_operators_are_counted_only_of_eager_calls() -> None:
    once = replace(make_record(CASE), operators=1)
    compiled = replace(make_record(replace(CASE, mode=Mode.COMPILED)), operators=0)
    assert re.findall(r"\d+ operators?\b", shown(memory, SMALL, once, compiled)) == ["1 operator"]


def test_lines_of_similar_colours_differ_in_their_dashes(page: str) -> None:
    """Neighbours in the legend differ in how they are dashed; the drawings use the same dashes."""
    markup = markup_of(page, "latency_against_size")
    keys = re.findall(
        r'data-series="series-(\d+)"><svg[^>]*><line[^>]*?(?: stroke-dasharray="([^"]*)")?/>',
        markup,
    )
    legend = {int(place): dashes for place, dashes in keys}
    assert len(legend) >= 3
    assert all(legend[each] != legend[each + 1] for each in legend if each + 1 in legend)
    drawn = [list(map(float, each.split(","))) for each in re.findall(DRAWN, markup)]
    for dashes in filter(None, legend.values()):
        widths = [float(each) / 2.5 for each in dashes.split()]  # a line of the legend: 2.5 px
        assert [1.5 * each for each in widths] in [pytest.approx(each) for each in drawn]


# --- several files ------------------------------------------------------------------------------


def test_the_later_of_two_measurements_in_one_environment_counts() -> None:
    later = replace(FAILED, status=Status.WRONG, reason="worse since")
    findings = gather([SMALL, replace(SMALL, records=(later,))])
    assert [record.reason for record in findings.records] == ["worse since"]
    assert findings.cases["place"].tolist() == ["cpu"]


def test_measurements_from_two_environments_are_kept_apart() -> None:
    here, there = make_environment(), make_environment(cpu="Another CPU")
    both = [
        Results(
            records=(replace(FAILED, environment=each.fingerprint),),
            runs=(),
            environments={each.fingerprint: each},
        )
        for each in (here, there)
    ]
    expected = ["cpu, environment A, Imaginary CPU 9000", "cpu, environment B, Another CPU"]
    assert gather(both).cases["place"].tolist() == expected
    page = build_page(both)
    assert "Environment B, fingerprint" in page
    assert "Another CPU" in page


def test_two_revisions_on_one_machine_are_kept_apart() -> None:
    before, after = make_environment(git_dirty=False), make_environment(git_commit="f" * 40)
    assert before.fingerprint == after.fingerprint
    both = [
        Results(
            records=(replace(FAILED, environment=each.fingerprint),),
            runs=(),
            environments={each.fingerprint: each},
        )
        for each in (before, after)
    ]
    findings = gather(both)
    assert findings.cases["place"].tolist() == [
        "cpu, environment A, commit 01234567",
        "cpu, environment B, commit ffffffff changed",
    ]
    assert list(findings.environments.values()) == [before, after]


def test_a_run_without_a_record_is_a_page_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    with pytest.raises(ReportError) as refusal:
        write_report([Results(records=(), runs=(make_run(name=HOSTILE),), environments={})], path)
    assert refusal.value.exit_code == 3
    page = path.read_text(encoding="utf-8")
    assert "No case has a record" in page
    assert "&lt;b&gt;" in page
    assert HOSTILE not in page


def test_several_runs_are_side_by_side() -> None:
    other = make_environment(cpu="Another CPU")
    record = replace(FAILED, environment=other.fingerprint)
    second = Results(
        records=(record,), runs=(make_run(name="other"),), environments={other.fingerprint: other}
    )
    assert "runs on this page" not in shown(environment_and_method, SMALL)
    text = repr(environment_and_method(gather([SMALL, second])))
    assert "2 runs on this page" in text
    assert "Another CPU" in text
    assert "1 timeout" in text

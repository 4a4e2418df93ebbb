"""What the page must hold, whatever the results hold."""

import json
import os
import re
import subprocess
import sys
import types
from dataclasses import replace
from html import escape, unescape
from math import inf, nan
from pathlib import Path
from pkgutil import iter_modules
from threading import Thread

import pytest
from results_factory import make_cases, make_environment, make_record, make_results, make_run

import harness.report.sections
from harness.records import Case, Mode, Record, Status
from harness.report import ReportError, build_page, write_report
from harness.report.content import Section, heading
from harness.report.embedded import case_data, script_json
from harness.report.frame import gather
from harness.report.sections import SECTIONS
from harness.store import Results

DRAWN = r"stroke-dasharray: ([^;}]*)"
HOSTILE = "</script><script>alert('x')</script> & $a$ $\\frac{ <b>\u2028 µ😀"


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1], parse_constant=pytest.fail)


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    assert found, f"no section {name}"
    return found[0]


def text_of(markup: str) -> str:
    whole = markup.replace("<wbr>", "")  # where a name may be broken
    return unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", whole, flags=re.DOTALL))


def with_records(results: Results, *records: Record) -> Results:
    return replace(results, records=records)


def defined_sections() -> set[str]:
    """Return every public function that a module of the sections package defines itself."""
    package = harness.report.sections
    found = set()
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        content = vars(sys.modules[module.name])
        found |= {
            name
            for name, each in content.items()
            if isinstance(each, types.FunctionType)
            and each.__module__ == module.name
            and not name.startswith("_")
        }
    return found


# --- sections ---------------------------------------------------------------------------------


def test_every_section_is_on_the_page_and_in_its_navigation(page: str) -> None:
    for each in SECTIONS:
        assert f">{heading(each)}</h2>" in section(page, each.__name__)
        assert f'<a href="#{each.__name__}">{heading(each)}</a>' in page


def test_a_section_that_sections_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert defined_sections() == {each.__name__ for each in SECTIONS}
    forgotten: Section = types.FunctionType((lambda findings: ()).__code__, {}, "forgotten")
    forgotten.__module__ = "harness.report.sections.account"
    monkeypatch.setattr("harness.report.sections.account.forgotten", forgotten, raising=False)
    assert defined_sections() - {each.__name__ for each in SECTIONS} == {"forgotten"}


def test_a_section_without_anything_to_show_says_so(results: Results) -> None:
    case = Case(implementation="native", shape=(4, 8))
    failed = Record(case=case, environment="elsewhere", status=Status.TIMEOUT, reason="too slow")
    findings = gather([Results(records=(failed,), runs=(), environments={})])
    for each in SECTIONS:
        blocks = each(findings)
        assert blocks, f"{each.__name__} shows nothing"
        assert not [block for block in blocks if block.kind == "figure"]


# --- the file ---------------------------------------------------------------------------------


def test_equal_results_give_an_equal_page(results: Results, page: str) -> None:
    assert build_page([results]) == page
    assert build_page([results], title="Another") != page


def test_five_thousand_cases_stay_below_two_megabytes() -> None:
    page = build_page([make_results(5000)])
    assert len(page.encode()) < 2_000_000
    assert embedded(page)["count"] == 5000


def test_the_page_loads_nothing(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_ids_are_unique(page: str) -> None:
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_reporting_needs_no_torch() -> None:
    code = "import sys, harness.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_page_is_replaced_as_a_whole(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_report([results], path)
    write_report([results], path, title="Second")
    assert "Second" in path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]


def test_a_page_goes_through_a_pipe_and_leaves_it_one(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    os.mkfifo(path)
    read = Thread(target=lambda: found.append(path.read_text(encoding="utf-8")), daemon=True)
    found: list[str] = []
    read.start()
    write_report([results], path)
    assert path.is_fifo()
    read.join(timeout=60)
    assert found == [build_page([results])]


def test_a_page_behind_a_link_is_replaced_there(results: Results, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page.html").symlink_to("elsewhere/first.html")
    write_report([results], tmp_path / "page.html")
    assert (tmp_path / "page.html").is_symlink()
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["first.html"]


def test_a_page_that_cannot_be_written_is_named(results: Results, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match=r"page\.html: cannot be written: ") as caught:
        write_report([results], tmp_path / "file" / "page.html")
    assert "\n" not in str(caught.value)


def test_no_records_is_an_error_in_words(tmp_path: Path) -> None:
    nothing = Results(records=(), runs=(make_run(planned=7),), environments={})
    with pytest.raises(ReportError, match="no records to report"):
        write_report([nothing], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


# --- what was found -----------------------------------------------------------------------------


def test_hostile_texts_are_shown_and_not_obeyed(results: Results) -> None:
    case = replace(next(make_cases()), implementation=HOSTILE)
    timed = make_record(case)
    failed = Record(
        case=replace(case, seed=1),
        environment=timed.environment,
        status=Status.CRASHED,
        reason=HOSTILE,
    )
    page = build_page([with_records(results, failed, timed, *results.records)], title=HOSTILE)
    assert "<script>alert" not in page
    assert "<b>" not in page.replace('<b aria-hidden="true">', "")
    assert escape(HOSTILE) in page.replace("&#39;", "&#x27;")
    assert HOSTILE in embedded(page)["texts"]["reason"]["words"]


def test_json_refuses_what_it_has_no_word_for() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json({"value": nan})


def test_numbers_that_json_cannot_hold_become_null_or_a_text(results: Results) -> None:
    record = next(each for each in results.records if each.errors is not None)
    assert record.errors is not None
    output = replace(record.errors.outputs[0], scaled_max_ulp=inf, bound_ratio=inf)
    errors = replace(record.errors, outputs=(output,), condition_max_ratio=inf)
    data = case_data(gather([with_records(results, replace(record, errors=errors, latency=None))]))
    assert data["numbers"]["error_ulp"] == ["inf"]
    assert data["numbers"]["latency_s"] == [None]
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
    findings = gather([with_records(results, make_record(odd), *results.records)])
    texts = case_data(findings)["texts"]

    def word(name: str, row: int) -> str:
        return texts[name]["words"][texts[name]["codes"][row]]

    axes = ("implementation", "direction", "shape", "dtype", "distribution")
    for row, record in enumerate(findings.records):
        parts = [word(name, row).replace("×", "x") for name in axes]
        assert "/".join(parts) + word("id_rest", row) == record.case.id


def test_everything_not_measured_is_listed_with_its_reason(results: Results, page: str) -> None:
    listed = text_of(section(page, "not_measured"))
    absent = [each for each in results.records if not each.status.is_measured]
    assert {each.status for each in absent} >= {Status.UNSUPPORTED, Status.TIMEOUT, Status.CRASHED}
    for each in absent:
        assert each.reason in listed
    assert f"{len(absent)} cases, by reason" in listed
    assert "3 cases of 403 planned left no record" in listed
    assert "--resume" in listed


def test_reasons_that_differ_in_numbers_only_are_listed_once(results: Results) -> None:
    records = [
        Record(
            case=Case(implementation="native", shape=(size, 8)),
            environment="a",
            status=Status.OUT_OF_MEMORY,
            reason=f"float32 wanted {size}.5 GiB",
        )
        for size in (1, 2, 3)
    ]
    other = replace(records[0], reason="float16 wanted 1.5 GiB", environment="b")
    listed = text_of(section(build_page([with_records(results, *records, other)]), "not_measured"))
    assert listed.count("float32 wanted") == 1
    assert "and 2 alike with other numbers" in listed
    assert "float16 wanted" in listed


def test_a_complete_run_has_nothing_left_out(results: Results) -> None:
    good = [each for each in results.records if each.status is Status.OK]
    run = make_run(planned=len(good))
    page = build_page([replace(with_records(results, *good), runs=(run,))])
    assert "Every case on record was measured." in section(page, "not_measured")


def test_failures_alone_make_a_page(results: Results) -> None:
    failed = [each for each in results.records if not each.status.is_measured]
    page = build_page([with_records(results, *failed)])
    assert "<svg" not in page
    for words in ("No latency was measured", "No memory was measured", "No gradient was checked"):
        assert words in page


def test_errors_without_latency_make_a_page() -> None:
    page = build_page([make_results(300, devices=["cpu"], dtypes=["float32"], errors_only=True)])
    assert "nothing to prefer by" in section(page, "which_implementation_to_run")
    assert "No latency was measured" in section(page, "latency_against_size")


def test_one_implementation_alone_makes_a_page(results: Results) -> None:
    cases = [each for each in make_cases(["cpu"], ["float32"]) if each.implementation == "welford"]
    page = build_page([with_records(results, *map(make_record, cases))])
    assert "welford" in section(page, "latency_against_size")
    assert "welford" in section(page, "error_against_condition")


def test_a_run_cut_short_has_no_wall_time(results: Results) -> None:
    run = make_run(planned=400, wall_s=None, overhead_ratio=None)
    page = build_page([replace(results, runs=(run,))])
    assert "was cut short" in section(page, "environment_and_method")
    assert "Wall time" not in page


def test_every_field_of_the_environment_is_shown(page: str) -> None:
    shown = text_of(section(page, "environment_and_method"))
    environment = make_environment()
    for words in (
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
        assert words in shown


def test_doubts_are_listed_with_their_advice(results: Results, many: Results) -> None:
    assert "close other programs" in section(build_page([many]), "warnings")
    certain = [replace(each, warnings=()) for each in results.records]
    page = build_page([with_records(results, *certain)])
    assert "No measurement gave cause for warning" in section(page, "warnings")


def test_operators_are_counted_in_words_and_only_of_what_runs_them(results: Results) -> None:
    case = Case(implementation="native", shape=(4, 8))
    once = replace(make_record(case), operators=1)
    compiled = replace(make_record(replace(case, mode=Mode.COMPILED)), operators=0)
    shown = text_of(section(build_page([with_records(results, once, compiled)]), "memory"))
    assert "1 operator " in shown
    assert "1 operators" not in shown
    assert "0 operator" not in shown


def test_lines_that_lie_on_each_other_can_both_be_seen(many: Results) -> None:
    """Neighbours in the legend differ in how they are dashed; the drawings use the same dashes."""
    page = build_page([many])
    for name in ("error_against_condition", "latency_against_size"):
        markup = section(page, name)
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


def test_the_later_of_two_measurements_in_one_environment_counts(results: Results) -> None:
    first = next(each for each in results.records if each.latency is not None)
    later = replace(first, status=Status.WRONG, reason="worse since")
    findings = gather([with_records(results, first), with_records(results, later)])
    assert [each.reason for each in findings.records] == ["worse since"]
    assert findings.cases["place"].tolist() == [first.case.device]


def test_measurements_from_two_environments_are_kept_apart(results: Results) -> None:
    other = make_environment(cpu="Another CPU")
    first = next(each for each in results.records if each.latency is not None)
    moved = replace(first, environment=other.fingerprint)
    there = Results(records=(moved,), runs=(), environments={other.fingerprint: other})
    findings = gather([with_records(results, first), there])
    device = first.case.device
    expected = [f"{device}, environment A", f"{device}, environment B"]
    assert findings.cases["place"].tolist() == expected
    page = build_page([with_records(results, first), there])
    assert "Environment B, fingerprint" in page
    assert "Another CPU" in page

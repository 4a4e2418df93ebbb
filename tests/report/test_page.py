"""Records become a page: its words, its parts, its data, and what it must never hold."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from dataclasses import replace
from functools import partial
from hashlib import sha256
from html import escape, unescape
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factories.choice_records import SHAPES, failed, ran, timed, vacuous
from factories.compared_runs import make_case, make_record, results_of, with_memory
from factories.golden import assert_golden
from factories.histories import URL, commit_of, history_of, runs_of, wavy
from factories.results_factory import make_cases, make_environment, make_run

from harness.records import (
    Direction,
    MeasurementWarning,
    Mode,
    Record,
    Status,
    WarningKind,
)
from harness.regression import compare_as_stored
from harness.report import build_page, definitions, drawings_of, file_of, tables_of, write_whole
from harness.report import provenance as provenance_module
from harness.report.figures import canvas, log_scales
from harness.store import Results

FAILED = Record(
    case=make_case(rows=4), environment="elsewhere", status=Status.TIMEOUT, reason="too slow"
)
SMALL = Results(records=(FAILED,), runs=(make_run(),), environments={})
"""Results of one case that failed, whose page is quickly made."""
HOSTILE = "</script><script>alert('x')</script> & $a$ $\\frac{ <b>\u2028 µ😀"


def embedded(page: str) -> dict[str, Any]:
    """Return what the script of the page is given."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1], parse_constant=pytest.fail)
    return data


def sections_of(page: str) -> dict[str, str]:
    """Return the markup of each section by its name."""
    return dict(re.findall(r'<section id="(\w+)"[^>]*>(.*?)</section>', page, re.DOTALL))


def text_of(markup: str) -> str:
    """Return the texts of the markup, a line for each paragraph and row."""
    plain = re.sub(r"<(svg|script|caption)\b.*?</\1>|<wbr>|</?div>", "", markup, flags=re.DOTALL)
    plain = re.sub(r"\s*</t[dh]>", " | ", " ".join(plain.replace("<small>", " ").split()))
    plain = re.sub(r"</?(?:tr|p|h\d|div|li|dt|summary|figcaption)\b[^>]*>", "\n", plain)
    lines = (" ".join(line.split()) for line in re.sub("<[^>]*>", "", plain).splitlines())
    return "\n".join(unescape(line) for line in lines if line.strip(" |"))


# --- its words -----------------------------------------------------------------------------------


BACKWARD = {"direction": Direction.BACKWARD}
NOT_COUNTED = MeasurementWarning(kind=WarningKind.MEMORY_NOT_COUNTED, advice="memory of numpy")
SPEEDS = [record for name, ratio in (("native", 1.0), ("twice", 0.5), ("half", 2.0))
          for record in timed(name, ratio, peak_bytes=4096)]  # fmt: skip
RUN = [
    *SPEEDS,
    # operators are counted only of eager calls
    replace(ran("tenth", 10.0, shape=SHAPES[0], peak_bytes=9), operators=1),
    replace(ran("native", 1.0, mode=Mode.COMPILED, shape=SHAPES[0], peak_bytes=9), operators=0),
    replace(ran("hidden", 1.0, shape=SHAPES[0]), warnings=(NOT_COUNTED,)),
    ran("errors_only", shape=SHAPES[0]),
    # a status has its symbol, and what is incorrect is a failure
    ran("native", 1.0, **BACKWARD),
    ran("again", 0.5, reason="y is 1.5 ulp off: rounded again", **BACKWARD),
    ran("near", 0.5, status=Status.INACCURATE, reason="y is 22 ulp off", **BACKWARD),
    ran("off", 0.5, status=Status.WRONG, reason="y is 99 ulp off", **BACKWARD),
    ran("unbound", 0.5, status=Status.OUT_OF_GUARANTEE, reason="no bound holds", **BACKWARD),
    # a tie and a wide interval; out of guarantee, as all are; more than a row has room for
    ran("native", 1.0, dtype="float64"),
    ran("blunt", 0.98, spread=0.03, error_ulp=9.0, dtype="float64"),
    ran("wide", 1.1, spread=0.5, dtype="float64"),
    *(vacuous(name, 10.0, shape=(9, 9), dtype="float64") for name in ("native", "blunt", "wide")),
    ran("native", 1.0, dtype="float16"),
    *(ran(f"bad{number}", 0.5, status=Status.WRONG, dtype="float16") for number in range(6)),
    # of two failures the simplest case is named, and of reasons that differ in numbers one
    *(ran("native", status=Status.WRONG, reason=f"dx is {rows} ulp off", shape=(rows, 64),
          dtype="bfloat16", **BACKWARD) for rows in (512, 4)),
    *(failed("two_pass", Status.OUT_OF_MEMORY, f"float32 wanted {rows}.5 GiB", shape=(rows, 8))
      for rows in (1, 2, 3)),
    failed("choosy", Status.UNSUPPORTED, "needs a GPU"),
    failed("slow", Status.TIMEOUT, "ran past its limit of 60 s"),
    # a bound for each declared class, and its limit
    *(make_record(make_case(name, distribution=distribution))
      for name in ("one_pass", "recentred")
      for distribution in ("normal", "offset_1e2", "offset_1e4")),
]  # fmt: skip


def test_a_page_reads_as_in_the_golden_file() -> None:
    page = build_page([results_of(*RUN)], files=["results/run.parquet"])
    head = page.partition("<main")[0].partition("<body")[2]
    shown = sections_of(page)
    shown.pop("terms")
    text = "\n\n".join(text_of(part) for part in (head, *shown.values()))
    assert_golden(text, __file__, "page.txt")


def test_every_section_is_in_the_navigation_and_says_so_if_it_has_no_data() -> None:
    page = build_page([SMALL])
    sections = sections_of(page)
    assert re.findall(r'<a href="#(\w+)">[^<]+</a>', page.partition("<main")[0]) == [*sections]
    assert len(sections) > 8
    assert {"how_it_changed", "gate_verdicts"}.isdisjoint(sections)
    assert min(len(text_of(section).splitlines()) for section in sections.values()) >= 2


def test_colours_of_the_map_diverge_from_native_and_end_at_four_times() -> None:
    table = tables_of([results_of(*RUN)])["speed-cpu-forward"]
    heats = {row[0].text: row[2].heat for row in table.rows if row[1].text == "float32"}
    wanted = {"native": 0, "twice": 0.5, "half": -0.5, "tenth": -1}
    assert {name: heats[name] for name in wanted} == wanted


def test_a_caption_names_what_its_figure_cannot_draw() -> None:
    far = ran("native", condition=100.0, distribution="offset_1e2")
    text = text_of(build_page([results_of(ran("native"), far, vacuous("native", inf))]))
    assert "Right up to condition 100, the highest measured: native (up to 1 ulp off)" in text
    assert "which are not drawn: native out of guarantee (up to 1e+06 ulp off)" in text


def test_a_class_of_algorithms_has_a_colour_that_no_implementation_has() -> None:
    far = ran("native", condition=100.0, distribution="offset_1e2")
    few = [record for record in RUN if record.case.implementation in {"native", "twice"}]
    sections = sections_of(build_page([results_of(ran("native"), far, *few)]))
    named = set(re.findall(r'data-series="(series-\d+)"', sections["error_against_condition"]))
    drawn, of_implementations = (
        set(re.findall(r'<g class="(series-\d+)"', sections[name]))
        for name in ("error_against_condition", "latency_against_size")
    )
    assert named
    assert named <= drawn
    assert of_implementations.isdisjoint(drawn)


def test_number_and_mark_of_a_gradient_are_of_one_case() -> None:
    changes: dict[str, dict[str, Any]] = {
        "normal": {"scaled_max_ulp": 3.0},
        "offset_1e6": {"scaled_max_ulp": 1e6, "bound_ratio": None, "vacuous_elements": 1},
        "constant": {"scaled_max_ulp": 1e40, "normwise_ratio": inf},  # exactly 0
    }
    records = []
    for name, change in changes.items():
        record = ran("native", distribution=name, **BACKWARD)
        assert record.errors
        output = replace(record.errors.outputs[0], output="dx", **change)
        records.append(replace(record, errors=replace(record.errors, outputs=(output,))))
    ((_, _, dx, *_),) = tables_of([results_of(*records)])["gradients-cpu-backward"].rows
    assert (dx.text, dx.status, dx.note) == ("3", "", "10⁶ ○")
    assert embedded(build_page([results_of(*records)]))["numbers"]["error_abs"][:2] == [None, None]


@pytest.mark.parametrize("most", [4e4, 2e5])
def test_ticks_are_powers_of_ten_all_or_none(most: float) -> None:
    with canvas(5.0, 3.0) as (_, axes):
        log_scales(axes, pd.Series([2e4, most]), (1.0, 9.0))
        ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert {"10⁴" in tick or "10⁵" in tick for tick in ticks} == {most > 1e5}


@pytest.mark.parametrize(("name", "symbol"), [("again", ""), ("near", "≈"), ("off", "✕")])
def test_a_figure_marks_what_is_incorrect(name: str, symbol: str) -> None:
    drawing = drawings_of([results_of(*RUN)])["speed-cpu-backward"]
    assert f">2.00x{' ' if symbol else ''}{symbol}<" in file_of(drawing, "svg").decode()


def test_the_package_has_the_definitions_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^### (.*)\n\n((?:.+\n|\n(?!#))*)", text, re.MULTILINE)
    link = re.compile(r"\[([^\]]*)\]\([^)]*\)")
    plain = {
        heading: " ".join(link.sub(r"\1", body).replace("`", "").replace("*", "").split())
        for heading, body in entries
        if heading in definitions()
    }
    path = files("harness.report") / "glossary.json"
    if os.environ.get("WRITE_GOLDEN"):
        written = json.dumps(plain, indent=1, ensure_ascii=False)
        Path(str(path)).write_text(f"{written}\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == plain
    assert len(plain) == len(definitions()) > 0


# --- a history, and a baseline -------------------------------------------------------------------


def test_a_history_shows_each_change_with_a_link_to_its_commit() -> None:
    history = history_of(*runs_of(make_case("c_recentred"), wavy((0.7, 8), (0.77, 8))))
    section = sections_of(build_page([run.results for run in history.latest], history=history))[
        "how_it_changed"
    ]
    assert f'href="{URL}/commit/{commit_of(8)}"' in section
    assert f"{commit_of(7)[:10]}..{commit_of(8)[:10]}" in section
    assert section.count("<svg") == 1


def test_a_regression_against_a_baseline_is_named() -> None:
    before = [make_record(make_case(name)) for name in ("native", "two_pass")]
    leaking = with_memory(before[1], peak_extra_bytes=1 << 40)
    runs = [results_of(*records) for records in (before, [before[0], leaking])]
    comparison = compare_as_stored(*runs, ("base.parquet", "run.parquet"))
    section = text_of(sections_of(build_page(runs[1:], comparison=comparison))["gate_verdicts"])
    assert "1 case got worse." in section
    assert "run.parquet against base.parquet" in section
    assert [record.case.id in section for record in before] == [False, True]


# --- several results files -----------------------------------------------------------------------


def column(page: str, name: str) -> list[str]:
    """Return a column of the table of all cases."""
    texts = embedded(page)["texts"][name]
    return [texts["words"][code] for code in texts["codes"]]


def test_two_revisions_are_kept_apart() -> None:
    both = (make_environment(git_dirty=False), make_environment(git_commit="f" * 40))
    record = replace(FAILED, environment=both[0].fingerprint)
    page = build_page([
        replace(SMALL, records=(record,), environments={record.environment: environment})
        for environment in both
    ])
    assert column(page, "device") == ["cpu, environment A", "cpu, environment B"]
    assert "f" * 10 in page


# --- the file ------------------------------------------------------------------------------------


def test_a_page_loads_nothing_runs_its_own_script_alone_and_is_small(page: str) -> None:
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found
    policy = dict(word.split(" ", 1) for word in found[1].split("; "))
    assert policy["default-src"] == "'none'"
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    script_hash = b64encode(sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{script_hash}'"
    assert not re.search(r"<[^>]* on\w+=|(?:src|href)=\"(?!#)|@import|url\((?!#)", page)
    assert len(page.encode()) < 1_000_000


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_whole(path, build_page([SMALL]))
    write_whole(path, build_page([SMALL], title="Second"))
    assert "Second" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_hostile_texts_are_shown_and_not_run() -> None:
    case = replace(next(make_cases()), implementation=HOSTILE)
    crash = replace(FAILED, case=replace(case, seed=1), status=Status.CRASHED, reason=HOSTILE)
    page = build_page([replace(SMALL, records=(crash, make_record(case)))], title=HOSTILE)
    assert "<script>alert" not in page
    assert "<b>" not in page.replace('<b aria-hidden="true">', "")
    assert escape(HOSTILE) in page.replace("&#39;", "&#x27;")
    assert HOSTILE in column(page, "reason")


def test_an_infinite_number_becomes_a_text_and_a_missing_one_null() -> None:
    records = (ran("native", error_ulp=inf), ran("two_pass", 1.0))
    numbers = embedded(build_page([replace(SMALL, records=records)]))["numbers"]
    assert numbers["error_ulp"][0] == "inf"
    assert numbers["latency_s"][0] is None


def test_of_too_many_cases_the_worst_are_shown_and_the_file_is_named(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = partial(provenance_module.case_data, most=400)
    monkeypatch.setattr(provenance_module, "case_data", few)
    page = build_page([results], files=["results/many.parquet"])
    assert embedded(page)["count"] <= 400
    assert "cases are too many for a page" in page
    assert "results/many.parquet" in page

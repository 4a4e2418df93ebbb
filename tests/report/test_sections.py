"""The tables and figures of the sections: small arrangements with one right result each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from factories.choice_records import SHAPES, failed, ran, results_of, timed, vacuous
from factories.golden import assert_golden
from factories.results_factory import make_environment, make_record
from factories.small_results import CASE, FAILED, SMALL, shown

from harness.records import Case, Direction, MeasurementWarning, Mode, Record, Status, WarningKind
from harness.report import build_page
from harness.report.accuracy import error_against_condition, error_of_the_gradients
from harness.report.document import Block, Cell, FigureBlock, Table, Text, rounded
from harness.report.figures import file_of
from harness.report.frame import gather
from harness.report.provenance import failures_and_warnings
from harness.report.speed import (
    memory,
    speed_relative_to_native,
    which_implementation_to_run,
)
from harness.store import Results

ELSEWHERE = {"shape": (9, 9), "distribution": "offset_1e6"}


NATIVE, QUICK = timed("native", 1.0), timed("quick", 0.5)
BLUNT = timed("blunt", 0.98, spread=0.03, error_ulp=9.0)
ROWS = {
    "the fastest": [*timed("slow", 2.0), *QUICK, *NATIVE],
    "one candidate": NATIVE,
    "a tie, and a wide interval": [*BLUNT, *NATIVE, *timed("wide", 1.1, spread=0.5)],
    "out of guarantee, as all are": [
        *QUICK,
        *NATIVE,
        *(vacuous(name, **ELSEWHERE) for name in ("quick", "native")),
    ],
    "wrong": [*QUICK, *NATIVE, ran("quick", status=Status.WRONG, condition=100.0, **ELSEWHERE)],
    "inaccurate": [
        *QUICK,
        *NATIVE,
        ran("quick", status=Status.INACCURATE, reason="y is 21.9 ulp off", **ELSEWHERE),
    ],
    "out of guarantee on constant rows": [
        *QUICK,
        *NATIVE,
        ran("native", **ELSEWHERE),
        vacuous("quick", inf, **ELSEWHERE),
    ],
    "crashed": [
        *QUICK,
        *NATIVE,
        ran("native", **ELSEWHERE),
        failed("quick", Status.CRASHED, **ELSEWHERE),
    ],
    "unsupported": [
        *QUICK,
        *NATIVE,
        ran("native", **ELSEWHERE),
        failed("quick", Status.UNSUPPORTED, **ELSEWHERE),
    ],
    "not verified": [*(replace(record, errors=None) for record in QUICK), *NATIVE],
    "timed in one epoch": [*timed("once", 0.5, interval=(0.0, inf)), *NATIVE],
    "timed in too few cases": [*timed("few", 0.5, SHAPES[:1]), *NATIVE],
    "none is eligible": [
        ran("native", 1.0, status=Status.WRONG),
        ran("quick", 0.0, interval=(0, 0)),
    ],
    "more than a row has room for": [
        *NATIVE,
        *(ran(f"bad{number}", 0.5, shape=(4, 8), status=Status.WRONG) for number in range(6)),
    ],
}


def preference(records: Sequence[Record]) -> tuple[Block, ...]:
    return which_implementation_to_run(gather([results_of(records)], max_condition=inf))


def speed_map_of(*records: Record) -> tuple[dict[str, list[Cell]], str]:
    """Return the rows of the map on the page by their names, and the map as a file."""
    (table,) = speed_relative_to_native(gather([results_of(records)]))
    assert isinstance(table, Table)
    drawn = file_of(table.drawings[0].draw, "svg").decode()
    return {row[0].text: list(row[2:]) for row in table.rows}, drawn


def test_the_rows_of_the_preference() -> None:
    lines = []
    for title, records in ROWS.items():
        table = preference(records)[0]
        assert isinstance(table, Table)
        row = table.rows[-1]
        lines.append(f"\n{title}")
        for column, cell in list(zip(table.columns, row, strict=True))[3:]:
            text = f"{cell.text} | {cell.note}" if cell.note else cell.text
            lines += [f"  {column.text}: {text}".replace("\n", "\n    ")]
    assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "preference.txt")


def test_under_each_requirement_each_place_and_shape_has_one_row() -> None:
    records = [
        *NATIVE,
        *timed("exact", 1.25),
        ran("exact", **ELSEWHERE, condition=1e6),
        vacuous("native", 1e6, **ELSEWHERE),
    ]
    findings = gather([results_of(records)])
    by_place, by_shape = which_implementation_to_run(findings)
    assert isinstance(by_place, Table)
    assert isinstance(by_shape, Table)
    for table, rows in ((by_place, 1), (by_shape, len(SHAPES))):
        assert len(table.row_needs) == len(table.rows) == 2 * rows
        for need in range(len(findings.answers)):
            assert sum(need in needs for needs in table.row_needs) == rows
    assert by_place.shown_rows == by_place.rows[:1]
    texts = [row[3].text for row in by_place.rows]
    assert texts == ["keep native", "exact"]
    assert by_place.rows[1][-1].text.startswith("native: loses all digits")


def test_the_map_of_speeds_has_the_implementations_that_were_timed() -> None:
    rows, drawn = speed_map_of(
        *NATIVE,
        ran("exact", shape=SHAPES[0]),
        failed("choosy", Status.UNSUPPORTED, "needs a GPU", shape=SHAPES[0]),
    )
    assert list(rows) == ["native"]
    assert [name in drawn for name in ("exact", "choosy", "native")] == [False, False, True]


def test_the_colours_of_the_map_diverge_from_native_and_end_at_four_times() -> None:
    rows, _ = speed_map_of(
        *NATIVE, *timed("twice", 0.5), *timed("half", 2.0), *timed("tenth", 10.0)
    )
    assert [rows[name][0].heat for name in ("native", "twice", "half", "tenth")] == [
        0,
        0.5,
        -0.5,
        -1,
    ]


def test_memory_that_was_not_counted_says_so_in_its_cell() -> None:
    reason = MeasurementWarning(kind=WarningKind.MEMORY_NOT_COUNTED, advice="memory of numpy")
    hidden = replace(ran("hidden"), warnings=(reason,))
    seen = ran("seen", peak_bytes=3)
    (table,) = memory(gather([results_of([seen, hidden, ran("errors only")])]))
    assert isinstance(table, Table)
    cells = {row[0].text: (row[-1].text, row[-1].title) for row in table.rows}
    assert cells.pop("hidden") == ("not counted", "memory of numpy")
    assert list(cells) == ["seen"]


def test_operators_are_counted_only_of_eager_calls() -> None:
    case = Case(implementation="native", shape=(4, 8))
    once = replace(make_record(case), operators=1)
    compiled = replace(make_record(replace(case, mode=Mode.COMPILED)), operators=0)
    shown = repr(memory(gather([results_of([once, compiled])])))
    assert re.findall(r"\d+ operators?\b", shown) == ["1 operator"]


# --- error against condition ----------------------------------------------------------------------


def test_a_curve_has_the_bound_of_each_declared_class_and_its_limit() -> None:
    records = [
        make_record(Case(implementation=name, shape=(4, 1024), distribution=distribution))
        for name in ("one_pass", "recentred")
        for distribution in ("normal", "offset_1e2", "offset_1e4")
    ]
    first, *_ = error_against_condition(gather([results_of(records)]))
    assert isinstance(first, FigureBlock)
    assert [entry.text for entry in first.legend] == ["one pass", "recentred", "bound of the class"]
    assert "one pass (tree sums in float32) 650" in first.conclusion  # 1/sqrt(2 (f + 2) u), f = 18
    assert 'class="series-0"' in first.panels[0].svg


# --- failures ------------------------------------------------------------------------------------


def test_a_failure_has_its_simplest_case_and_a_line_that_runs_it() -> None:
    axes = {"dtype": "bfloat16", "direction": Direction.BACKWARD}
    records = [
        ran("native", status=Status.WRONG, reason=f"dx is {size} ulp off", shape=shape, **axes)
        for size, shape in enumerate(((512, 64), (4, 8)))
    ]
    (table,) = failures_and_warnings(
        gather([results_of([*records, ran("native", shape=(9, 9), **axes)])])
    )
    assert isinstance(table, Table)
    (row,) = table.rows
    assert [row[0].status, row[2].text, row[3].text] == ["wrong", "native: bfloat16", "2"]
    assert row[4].text == (
        "from layernorm_bench import verify_case; print(verify_case('native', shape=(4, 8), "
        "dtype='bfloat16', direction='backward'))"
    )


# --- statuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "symbol", "failure", "sentence"),
    [
        (Status.OK, "", "", "", "none is wrong and none is inaccurate"),
        (Status.OK, "y is 1.5 ulp off: rounded again", "", "", "none is wrong"),
        (Status.INACCURATE, "y is 22 ulp off", " ≈", "inaccurate", "1 is inaccurate (quick in"),
        (Status.WRONG, "y is 99 ulp off", " ✕", "wrong", "1 is wrong (quick in"),
        (Status.OUT_OF_GUARANTEE, "no bound holds", " ○", "", "none is wrong"),
    ],
)
def test_a_status_has_its_symbol_and_what_is_incorrect_is_a_failure(
    status: Status, reason: str, symbol: str, failure: str, sentence: str
) -> None:
    backward = {"direction": Direction.BACKWARD}
    quick = ran("quick", 0.5, status=status, reason=reason, **backward)
    rows, drawn = speed_map_of(ran("native", 1.0, **backward), quick)
    assert rows["quick"][0].text == f"2.00{symbol}"
    assert f">2.00{symbol}<" in drawn
    data = gather([results_of([quick])])
    shown = [row[0].status for block in failures_and_warnings(data) for row in _rows(block)]
    assert shown == [failure] * bool(failure)
    first = error_of_the_gradients(data)[0]
    assert isinstance(first, Text)
    assert sentence in first.text


def _rows(block: Block) -> tuple[tuple[Cell, ...], ...]:
    return block.rows if isinstance(block, Table) else ()


# === Which cases were not measured, and which have a warning


def test_everything_failures_and_warnings_is_listed_with_its_reason(results: Results) -> None:
    listed = shown(failures_and_warnings, results)
    absent = [record for record in results.records if not record.status.is_measured]
    assert {record.status for record in absent} >= {
        Status.UNSUPPORTED, Status.TIMEOUT, Status.CRASHED,
    }  # fmt: skip
    # reasons that differ only in numbers are listed once
    assert all(re.split(r"\d", record.reason)[0] in listed for record in absent)
    assert "3 cases of 1,203" in listed
    assert "--resume" in listed


def test_reasons_that_differ_only_in_numbers_are_listed_once() -> None:
    wanted = [
        replace(FAILED, case=replace(CASE, shape=(size, 8)), reason=f"float32 wanted {size}.5 GiB")
        for size in (1, 2, 3)
    ]
    other = replace(FAILED, reason="float16 wanted 1.5 GiB", environment="b")
    listed = shown(failures_and_warnings, SMALL, *wanted, other)
    assert listed.count("float32 wanted") == 1
    assert "and 2 like it" in listed
    assert "float16 wanted" in listed


# === Numbers as the page writes them


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.12345, "0.123"),
        (999.6, "1,000"),
        (12345.0, "12,300"),
        (99999.0, "1 × 10⁵"),
        (5.3e11, "5.3 × 10¹¹"),
        (1.5e-7, "1.5 × 10⁻⁷"),
        (-2.5, "-2.5"),
        (inf, "∞"),
        (nan, "–"),
        (None, "–"),
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert rounded(value) == text


# === Several results files on one page, and the environments of their records


# --- what the page holds -------------------------------------------------------------------------


# --- several files -------------------------------------------------------------------------------


def test_the_later_of_two_measurements_in_one_environment_counts() -> None:
    later = replace(FAILED, status=Status.WRONG, reason="worse since")
    findings = gather([SMALL, replace(SMALL, records=(later,))])
    assert [record.reason for record in findings.records] == ["worse since"]
    assert findings.cases["device"].tolist() == ["cpu"]


def test_measurements_from_two_environments_are_kept_apart() -> None:
    here, there = make_environment(), make_environment(cpu="Another CPU")
    both = [
        Results(
            records=(replace(FAILED, environment=own.fingerprint),),
            runs=(),
            environments={own.fingerprint: own},
        )
        for own in (here, there)
    ]
    expected = ["cpu, environment A", "cpu, environment B"]
    assert gather(both).cases["device"].tolist() == expected
    page = build_page(both)
    assert "Environment B, fingerprint" in page
    assert "Another CPU" in page


def test_two_revisions_on_one_machine_are_kept_apart() -> None:
    before, after = make_environment(git_dirty=False), make_environment(git_commit="f" * 40)
    assert before.fingerprint == after.fingerprint
    both = [
        Results(
            records=(replace(FAILED, environment=own.fingerprint),),
            runs=(),
            environments={own.fingerprint: own},
        )
        for own in (before, after)
    ]
    findings = gather(both)
    assert findings.cases["device"].tolist() == [
        "cpu, environment A",
        "cpu, environment B",
    ]
    assert list(findings.environments.values()) == [before, after]

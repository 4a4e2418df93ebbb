"""The preference and the curves: small arrangements with one right answer each."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from results_factory import make_environment, make_errors, make_latency, make_memory, make_record

from harness.records import (
    Case,
    Direction,
    Errors,
    Estimate,
    MeasurementWarning,
    Memory,
    Record,
    Status,
    WarningKind,
)
from harness.report.content import Figure, Table, Text
from harness.report.frame import gather
from harness.report.sections.accuracy import _order, error_against_condition
from harness.report.sections.choice import which_implementation_to_run
from harness.store import Results

SHAPES = ((4, 8), (64, 128), (512, 1024))


ALIKE = make_errors(Case(implementation="alike", shape=(4, 8)))


def timed(
    name: str,
    ratio: float,
    *,
    spread: float = 0.01,
    shapes: tuple = SHAPES,
    errors: Errors | None = ALIKE,
    memory: Memory | None = None,
    processes: int = 5,
) -> list[Record]:
    records = []
    for shape in shapes:
        case = Case(implementation=name, shape=shape)
        interval = Estimate(value=ratio, low=ratio * (1 - spread), high=ratio * (1 + spread))
        latency = replace(make_latency(case), reference_ratio=interval, processes=processes)
        records.append(
            Record(
                case=case,
                environment="here",
                status=Status.OK,
                errors=errors,
                latency=latency,
                memory=memory,
            )
        )
    return records


def choose(*records: Record) -> dict[str, str]:
    """Return the only row of the table, by heading."""
    environments = {"here": make_environment()}
    blocks = which_implementation_to_run(
        gather([Results(records=records, runs=(), environments=environments)])
    )
    table = blocks[0]
    assert isinstance(table, Table)
    (row,) = table.rows
    return {
        column.text: f"{cell.text} {cell.note}".strip()
        for column, cell in zip(table.columns, row, strict=True)
    }


def test_the_fastest_without_a_fault_is_preferred() -> None:
    row = choose(*timed("slow", 2.0), *timed("quick", 0.5), *timed("native", 1.0))
    assert row["Run"] == "quick"
    assert row["Speed"] == "2.00×"
    assert row["Fastest in"] == "3 of 3"
    assert row["Next"] == "native 1.00×"
    assert row["Faster, but passed over"] == "none"


def test_one_wrong_case_without_latency_excludes_and_is_named() -> None:
    bad = make_record(Case(implementation="quick", shape=(9, 9), distribution="offset_1e2"))
    bad = replace(bad, environment="here", status=Status.WRONG, reason="y is off", latency=None)
    row = choose(*timed("quick", 0.5), *timed("native", 1.0), bad)
    assert row["Run"] == "native"
    assert row["Faster, but passed over"] == "quick 2.00×: wrong from condition 100 on"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.OUT_OF_GUARANTEE, "out of guarantee somewhere"),
        (Status.CRASHED, "crashed in 1 case"),
        (Status.UNSUPPORTED, "declines 1 case that others run"),
        (Status.OUT_OF_MEMORY, "out of memory in 1 case"),
    ],
)
def test_what_others_can_and_one_cannot_speaks_against_it(status: Status, words: str) -> None:
    shape = (9, 9)
    fails, runs = (
        Record(case=Case(implementation=name, shape=shape), environment="here", status=each)
        for name, each in (("quick", status), ("native", Status.OK))
    )
    row = choose(*timed("quick", 0.5), *timed("native", 1.0), fails, runs)
    assert row["Run"] == "native"
    assert words in row["Faster, but passed over"]


def test_the_map_of_speeds_has_no_row_for_who_was_asked_for_errors_alone() -> None:
    case = Case(implementation="exact", shape=SHAPES[0])
    errors_alone = Record(case=case, environment="here", status=Status.OK, errors=ALIKE)
    declined = replace(
        errors_alone,
        case=replace(case, implementation="choosy"),
        status=Status.UNSUPPORTED,
        reason="needs a GPU",
        errors=None,
    )
    doubtful = replace(
        errors_alone,
        case=replace(case, implementation="hasty"),
        warnings=(
            MeasurementWarning(kind=WarningKind.TOO_FEW_SAMPLES, advice="give the case more time"),
        ),
    )
    records = (*timed("native", 1.0), errors_alone, declined, doubtful)
    environments = {"here": make_environment()}
    _, figure = which_implementation_to_run(
        gather([Results(records=records, runs=(), environments=environments)])
    )
    assert isinstance(figure, Figure)
    drawn = figure.panels[0].svg
    assert "exact" not in drawn
    for name in ("native", "choosy", "hasty"):
        assert name in drawn


@pytest.mark.parametrize(
    ("ratio", "text"), [(400.0, "0.0025"), (1538.0, "0.00065"), (40000.0, "3 × 10⁻⁵")]
)
def test_the_map_keeps_the_digits_of_a_small_speed(ratio: float, text: str) -> None:
    environments = {"here": make_environment()}
    records = (*timed("native", 1.0), *timed("slow", ratio))
    _, figure = which_implementation_to_run(
        gather([Results(records=records, runs=(), environments=environments)])
    )
    assert isinstance(figure, Figure)
    assert f">{text}<" in figure.panels[0].svg


def test_what_nobody_can_run_speaks_against_nobody() -> None:
    nobody = [
        Record(
            case=Case(implementation=name, shape=(9, 9), distribution="offset_1e6"),
            environment="here",
            status=Status.UNSUPPORTED,
            reason="beyond the largest float16",
        )
        for name in ("quick", "native")
    ]
    assert choose(*timed("quick", 0.5), *timed("native", 1.0), *nobody)["Run"] == "quick"


def test_what_nobody_promises_is_counted_and_speaks_against_nobody() -> None:
    vacuous = [
        Record(
            case=Case(implementation=name, shape=(9, 9), distribution="offset_1e6"),
            environment="here",
            status=Status.OUT_OF_GUARANTEE,
        )
        for name in ("quick", "native")
    ]
    row = choose(*timed("quick", 0.5), *timed("native", 1.0), *vacuous)
    assert row["Run"] == "quick out of guarantee, as all are, in 1 case"
    wrong = [replace(each, status=Status.WRONG) for each in vacuous]
    row = choose(*timed("quick", 0.5), *timed("native", 1.0), *wrong)
    assert row["Run"] == "none is to be relied on"


def test_means_over_other_cases_are_not_compared() -> None:
    """The first is timed on all but the last shape, the second on all but the first."""
    shapes = (*SHAPES, (1024, 2048))
    one = [*timed("one", 0.5, shapes=shapes[:1]), *timed("one", 0.7, shapes=shapes[1:3])]
    two = [*timed("two", 0.6, shapes=shapes[1:3]), *timed("two", 0.9, shapes=shapes[3:])]
    row = choose(*one, *two)
    assert row["Run"] == "none is to be relied on"
    assert "one 1.60×: timed in 3 of 4 cases only" in row["Faster, but passed over"]
    assert "two 1.46×: timed in 3 of 4 cases only" in row["Faster, but passed over"]
    whole = choose(*one, *two, *timed("native", 1.0, shapes=shapes))
    assert whole["Run"] == "native"


def test_overlapping_intervals_everywhere_are_a_tie_and_others_are_not() -> None:
    near = choose(*timed("one", 0.50, spread=0.03), *timed("two", 0.52, spread=0.03))
    assert near["Run"] == "one tie with two"
    apart = choose(*timed("one", 0.50, spread=0.01), *timed("two", 0.52, spread=0.01))
    assert apart["Run"] == "one"


def test_over_one_process_more_is_a_tie() -> None:
    row = choose(*timed("one", 0.50, processes=1), *timed("two", 0.52, processes=1))
    assert row["Run"] == "one tie with two"
    row = choose(*timed("one", 0.50, processes=1), *timed("two", 0.56, processes=1))
    assert row["Run"] == "one"


def test_a_tie_is_broken_by_accuracy_and_then_by_memory() -> None:
    (output,) = ALIKE.outputs
    worse = replace(ALIKE, outputs=(replace(output, scaled_max_ulp=9.0),))
    quick = timed("quick", 0.50, spread=0.03, errors=worse)
    assert choose(*quick, *timed("exact", 0.52, spread=0.03))["Run"] == "exact tie with quick"
    lean = make_memory(Case(implementation="native", shape=(4, 8)))
    fat = replace(lean, peak_extra_bytes=lean.peak_extra_bytes + 1)
    quick = timed("quick", 0.50, spread=0.03, memory=fat)
    row = choose(*quick, *timed("lean", 0.52, spread=0.03, memory=lean))
    assert row["Run"] == "lean tie with quick"
    assert row["Faster, but passed over"] == "none"


def test_a_wide_interval_is_no_tie_and_is_told() -> None:
    (output,) = ALIKE.outputs
    worse = replace(ALIKE, outputs=(replace(output, scaled_max_ulp=9.0),))
    row = choose(*timed("quick", 0.50, errors=worse), *timed("exact", 0.8, spread=0.5))
    assert row["Run"] == "quick by its estimate: intervals are too wide to tell it from exact"


def test_who_was_timed_once_is_not_run_and_if_it_was_faster_told() -> None:
    once = timed("once", 0.5, spread=inf)
    row = choose(*once, *timed("native", 1.0))
    assert row["Run"] == "native"
    assert row["Faster, but passed over"] == "once 2.00×: timed too few times to tell"


def test_who_was_never_verified_is_passed_over() -> None:
    row = choose(*timed("quick", 0.5, errors=None), *timed("native", 1.0))
    assert row["Run"] == "native"
    assert row["Faster, but passed over"] == "quick 2.00×: its errors were not measured"


def test_fewer_timed_cases_than_others_are_not_enough() -> None:
    row = choose(*timed("quick", 0.5, shapes=SHAPES[:1]), *timed("native", 1.0))
    assert row["Run"] == "native"
    assert "timed in 1 of 3 cases only" in row["Faster, but passed over"]


def test_nothing_is_preferred_where_nothing_was_right() -> None:
    bad = [replace(each, status=Status.WRONG) for each in timed("native", 1.0)]
    row = choose(*bad)
    assert row["Run"] == "none is to be relied on"
    assert row["Faster, but passed over"].startswith("native 1.00×: wrong")


# --- curves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [1, 2])
def test_the_order_of_growth_is_the_slope(slope: int) -> None:
    conditions = 10.0 ** np.arange(5)
    points = [(each, 0.5 + 0.01 * each**slope, "ok") for each in conditions]
    assert _order(points, 1e9) == str(slope)


def test_a_level_error_has_order_zero() -> None:
    assert _order([(1.0, 0.5, "ok"), (1e3, 0.7, "ok"), (1e6, 0.6, "ok")], 1e7) == "0"


def test_errors_beyond_the_last_digit_have_no_order() -> None:
    points = [(1.0, 0.5, "ok"), (1e3, 1e9, "wrong"), (1e6, float("inf"), "wrong")]
    assert _order(points, 1e7) == "–"


def test_a_series_of_one_offset_is_no_curve() -> None:
    record = make_record(Case(implementation="recentred", shape=(4, 8)))
    findings = gather([Results(records=(record,), runs=(), environments={})])
    first, table = error_against_condition(findings)
    assert isinstance(first, Text)
    assert isinstance(table, Table)


def test_who_was_not_timed_is_no_measure_for_those_who_were() -> None:
    hard = Case(implementation="exact", shape=(9, 9), distribution="offset_1e7")
    exact = Record(case=hard, environment="here", status=Status.OK, errors=ALIKE)
    native = replace(
        exact, case=replace(hard, implementation="native"), status=Status.OUT_OF_GUARANTEE
    )
    assert choose(*timed("native", 1.0), exact, native)["Run"].startswith("native")


def test_what_choose_passes_over_for_one_shape_the_page_does_too() -> None:
    hard = Case(
        implementation="quick", shape=(9, 9), distribution="offset_1e7", direction=Direction.FORWARD
    )
    quick = Record(case=hard, environment="here", status=Status.OUT_OF_GUARANTEE, errors=ALIKE)
    native = replace(quick, case=replace(hard, implementation="native"), status=Status.OK)
    backward = [
        replace(each, case=replace(each.case, direction=Direction.BACKWARD))
        for each in (*timed("quick", 0.5), *timed("native", 1.0))
    ]
    row = choose(*backward, quick, native)
    assert row["Direction"] == "backward"
    assert row["Run"] == "native"

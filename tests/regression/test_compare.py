"""Two runs are compared case by case: what changed, in which metric, and why, in a golden file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from math import exp, inf, nan
from pathlib import Path
from typing import Any

import pytest
from factories.compared_runs import (
    BEFORE,
    ELSEWHERE,
    HERE,
    SHARED,
    STEADY,
    change,
    compared,
    confirming,
    elsewhere,
    failed,
    make_case,
    make_cases,
    make_latency,
    make_record,
    now,
    results_of,
    with_error,
    with_memory,
)
from factories.golden import assert_golden

from harness.records import (
    OUTPUT_METRICS,
    Allocation,
    Cache,
    Clock,
    Direction,
    MeasurementWarning,
    Memory,
    Mode,
    NotComparableError,
    NotMeasuredError,
    OutputErrors,
    Record,
    Refusal,
    Status,
    WarningKind,
)
from harness.regression import Change, ChangeKind, Comparison
from harness.report.changes import (
    MOST_ROWS,
    comparison_as_plain,
    document_of_comparison,
    end_of_comparison,
)
from harness.report.document import json_text, terminal_lines
from harness.store import Results

GOLDEN = Path(__file__).parent / "golden"
ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))

# --- what changed --------------------------------------------------------------------------------

RIGHT, GPU = make_record(), make_record(make_case(device="cuda"))
BACKWARD = make_record(make_case(direction=Direction.BACKWARD))
ERRORS = [metric.field for metric in OUTPUT_METRICS]
MEMORY_FIELDS = ["peak_extra_bytes", "allocated_bytes", "allocations", "saved_bytes"]
Rows = Iterator[tuple[str, Record, Record]]


def of_status(status: Status) -> Record:
    return make_record(status=status, reason=f"it is {status}")


def with_operators(count: int | None, mode: Mode = Mode.EAGER) -> Record:
    return replace(make_record(make_case(mode=mode)), operators=count)


def statuses() -> Rows:
    yield "nothing", RIGHT, RIGHT
    for status in Status:
        if status is not Status.OK:
            yield f"right, then {status}", RIGHT, of_status(status)
    wrong, inaccurate = of_status(Status.WRONG), of_status(Status.INACCURATE)
    unsupported, timeout = failed(status=Status.UNSUPPORTED), failed(status=Status.TIMEOUT)
    yield "inaccurate, then wrong", inaccurate, wrong
    yield "wrong, then inaccurate", wrong, inaccurate
    yield "inaccurate, then right", inaccurate, RIGHT
    yield "inaccurate, then declined", inaccurate, unsupported
    yield "out of guarantee, then inaccurate", of_status(Status.OUT_OF_GUARANTEE), inaccurate
    yield "wrong, then right", wrong, RIGHT
    yield "wrong, then declined", wrong, unsupported
    yield "declined, then wrong", unsupported, wrong
    yield "wrong, then timeout", wrong, timeout
    yield "wrong in both", wrong, wrong
    yield "a remark", RIGHT, make_record(reason="dx is rounded more than once")
    yield "one failure, then another", failed(), timeout
    yield "declined in both", unsupported, unsupported
    for status in (Status.OUT_OF_MEMORY, Status.TIMEOUT, Status.CRASHED):
        yield f"right, then {status} elsewhere", RIGHT, elsewhere(failed(status=status))
    bare = make_record(status=Status.OUT_OF_GUARANTEE, memory=None)
    yield "out of guarantee, without memory, elsewhere", bare, elsewhere(bare)


def errors() -> Rows:
    for name in ERRORS:
        before = with_error(RIGHT, **{name: 1})
        yield f"{name} grew", before, with_error(before, **{name: 1 + 1e-6})
        yield f"{name} shrank", with_error(before, **{name: 1 + 1e-6}), before
    smaller = with_error(BACKWARD, 0, scaled_max_ulp=0.0, max_abs=0.0)
    larger = with_error(smaller, 2, scaled_max_ulp=9.0, max_abs=0.0)
    yield "a gradient worse, others better", BACKWARD, larger
    lost, infinite = with_error(RIGHT, scaled_max_ulp=nan), with_error(RIGHT, scaled_max_ulp=inf)
    yield "a number, then nan", RIGHT, lost
    yield "nan in both", lost, lost
    yield "nan in both, elsewhere", lost, elsewhere(lost)
    yield "nan in both, another figure grew", lost, with_error(lost, scaled_p99_ulp=1e9)
    yield "the bound is nan elsewhere", RIGHT, elsewhere(with_error(RIGHT, bound_ratio=nan))
    yield "infinite in both", infinite, infinite
    assert BACKWARD.errors is not None
    returned = replace(BACKWARD.errors, outputs=BACKWARD.errors.outputs[:-1])
    fewer = replace(BACKWARD, errors=returned)
    yield "a gradient is not returned", BACKWARD, fewer
    yield "a gradient is not returned elsewhere", BACKWARD, elsewhere(fewer)
    without_mean = with_error(RIGHT, scaled_mean_ulp=None)
    yield "a figure is not measured any more", RIGHT, without_mean
    yield "errors are not measured any more", RIGHT, replace(RIGHT, errors=None)
    yield "errors are measured now", replace(RIGHT, errors=None), RIGHT


def errors_elsewhere() -> Rows:
    yield "nothing, elsewhere", RIGHT, elsewhere(RIGHT)
    low = with_error(RIGHT, bound_ratio=0.05, scaled_max_ulp=2e4)
    for share in (0.25, 0.251):
        yield f"{share} of the bound", low, elsewhere(with_error(low, bound_ratio=share))
    high = with_error(RIGHT, bound_ratio=0.2)
    for share in (0.4, 0.41):
        yield (
            f"{share} of the bound, 0.2 before",
            high,
            elsewhere(with_error(high, bound_ratio=share)),
        )
    for before, after in ((0.6, 1.6), (0.6, 1.61), (3.0, 6.0), (3.0, 6.01)):
        old = with_error(RIGHT, scaled_max_ulp=before)
        new = elsewhere(with_error(old, scaled_max_ulp=after))
        assert new.errors is not None
        weaker = replace(new, errors=replace(new.errors, algorithm="one_pass"))
        yield f"weaker declaration, {before} to {after} ulp", old, weaker
        unbounded = (with_error(one, bound_ratio=None) for one in (old, new))
        yield (f"no bound, {before} to {after} ulp", *unbounded)  # type: ignore[misc]
    out = make_record(status=Status.OUT_OF_GUARANTEE)
    worse = elsewhere(with_error(out, scaled_max_ulp=1e6, bound_ratio=9.0))
    yield "out of guarantee, larger elsewhere", out, worse
    yield "out of guarantee, larger here", out, with_error(out, unexpected_nonfinite=3)
    yield "on a GPU, an error grew by 1 ulp", GPU, with_error(GPU, scaled_max_ulp=2.17)


def memory_and_operators() -> Rows:
    for name in MEMORY_FIELDS:
        before = with_memory(BACKWARD, **{name: 1000})
        after = with_memory(before, **{name: 1001})
        yield f"{name} grew", before, after
        yield f"{name} grew elsewhere", before, elsewhere(after)
        yield f"{name} shrank", after, before
    more = with_memory(GPU, peak_extra_bytes=1 << 40)
    yield "peak of a GPU", GPU, more
    yield "peak of another GPU", GPU, elsewhere(more)
    yield "memory is not measured any more", RIGHT, replace(RIGHT, memory=None)
    yield "memory is measured now", replace(RIGHT, memory=None), RIGHT
    yield "saved is not measured any more", BACKWARD, with_memory(BACKWARD, saved_bytes=None)
    yield "saved is measured now", with_memory(BACKWARD, saved_bytes=None), BACKWARD
    yield "an operator more", with_operators(9), with_operators(10)
    yield "an operator more elsewhere", with_operators(9), elsewhere(with_operators(10))
    yield "an operator less", with_operators(10), with_operators(9)
    fused = with_operators(9, Mode.COMPILED), with_operators(10, Mode.COMPILED)
    yield ("an operator more, compiled", *fused)
    yield "an operator more, compiled elsewhere", fused[0], elsewhere(fused[1])
    yield "operators are not counted any more", with_operators(9), with_operators(None)
    worse = with_memory(with_error(RIGHT, scaled_max_ulp=0.5), peak_extra_bytes=1 << 40)
    yield "a smaller error, more memory", RIGHT, worse


def latencies() -> Rows:
    stepped = (MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand"),)
    yield "within 3 %", BEFORE, now(1.02)
    yield "suspect", BEFORE, now(1.5)
    yield "timed for the first time", RIGHT, now(1.5)
    yield "wrong before", replace(BEFORE, status=Status.WRONG), now(1.5)
    yield "not timed any more", BEFORE, RIGHT
    yield "not timed any more, elsewhere", BEFORE, elsewhere(RIGHT)
    yield "elsewhere", BEFORE, elsewhere(now(1.5))
    yield "nine processes before", make_record(ratios=STEADY[:9]), now(1.5)
    yield "the clock jumped before", replace(BEFORE, warnings=stepped), now(1.5)
    yield "the clock jumped now", BEFORE, replace(now(1.5), warnings=stepped)
    for bad in (nan, 0.0, -1.0):
        yield f"a sample was {bad}", make_record(ratios=(*STEADY[:9], bad)), now(1.5)
        yield f"a sample is {bad}", BEFORE, now(bad)
    yield "spread by 4 %", make_record(ratios=[exp(0.04), exp(-0.04)] * 5), now(1.0)
    yield "half the speed before", make_record(ratios=[2 * one for one in STEADY]), now(3.0)
    yield "warned of noise", replace(BEFORE, warnings=(SHARED,)), now(1.0)
    for figures in ({"converged": False}, {"minor_faults_ratio": 7.0}):
        yield f"{next(iter(figures))}", make_record(latency=make_latency(STEADY, **figures)), BEFORE
    differences: list[dict[str, Any]] = [
        {"timer": "pytest-benchmark:time"},
        {"is_valid": False},
        {"reference": None, "reference_ratio": None},
        {"reference": "two_pass"},
        {"clock": Clock.WALL},
        {"cache": Cache.ROTATE},
        {"allocation": Allocation.DEFAULT},
    ]
    for other in differences:
        yield f"{next(iter(other))} differs", BEFORE, now(1.5, **other)
        yield (
            f"{next(iter(other))} differed",
            make_record(latency=make_latency(STEADY, **other)),
            BEFORE,
        )
    more_memory = with_memory(now(1.5, is_valid=False), peak_extra_bytes=1 << 40)
    yield "not valid, and more memory", BEFORE, more_memory


def test_every_figure_but_one_of_errors_and_of_memory_is_compared() -> None:
    assert {*ERRORS, "raw_max_ulp", "output", "elements"} == {
        field.name for field in fields(OutputErrors)
    }
    assert {*MEMORY_FIELDS, "minimum_bytes"} == {field.name for field in fields(Memory)}


def line_of(name: str, found: Change) -> str:
    return f"{name}\n  {found.kind} ({found.metric}): {found.reason}"


def test_what_changed_and_why_reads_as_in_the_golden_file() -> None:
    parts = (statuses, errors, errors_elsewhere, memory_and_operators, latencies)
    rows = [row for part in parts for row in part()]
    lines = [line_of(name, change(before, after)) for name, before, after in rows]
    for first, fresh in (
        (1.5, (1.5,) * 5),
        (0.5, (0.5,) * 5),
        (1.5, (1.0, 1.5, 1.5, 1.5, 1.6)),
        (1.5, (1.5,) * 4),
    ):
        found = change(BEFORE, now(first), confirm=confirming(*fresh))
        lines.append(line_of(f"{first}, then {fresh}", found))
    found = change(now(1.0), now(1.02), least_processes=1)
    lines.append(line_of("of one process", found))
    assert_golden("\n".join(lines), GOLDEN / "reasons.txt")


# --- the cases -----------------------------------------------------------------------------------


def test_a_case_that_is_in_one_run_only_is_new_or_gone_and_fails_nothing() -> None:
    before = results_of(make_record(ONE), make_record(TWO))
    found = compared(before, results_of(make_record(TWO), failed(THREE)))
    assert {change.case: (change.kind, change.reason) for change in found.changes} == {
        ONE: (ChangeKind.GONE, "in old only, ok there"),
        TWO: (ChangeKind.UNCHANGED, "the same errors; the same memory"),
        THREE: (ChangeKind.NEW, "in new only, error there: why"),
    }
    assert not found.failed


def test_changes_are_ordered_by_kind_and_severity() -> None:
    before = results_of(*(make_record(case, STEADY) for case in (ONE, TWO, THREE)))
    after = results_of(
        make_record(ONE, (1.5,)), make_record(TWO, (3.0,)), failed(THREE, Status.CRASHED)
    )
    found = compared(before, after, confirm=lambda cases: {ONE.id: [1.5] * 5, TWO.id: [3.0] * 5})
    assert [change.case for change in found.changes] == [THREE, TWO, ONE]
    assert found.failed


# --- notes ---------------------------------------------------------------------------------------


def test_notes_read_as_in_the_golden_file() -> None:
    newer = replace(HERE, packages=(("torch", "2.14.0"), ("numpy", "2.4.6")))
    nameless = replace(results_of(make_record(ONE, environment=ELSEWHERE)), environments={})
    updated = replace(
        results_of(make_record(ONE, (2.0,), environment=newer)),
        environments={newer.fingerprint: newer},
    )
    noisy = make_record(ONE, latency=make_latency(STEADY, converged=False))
    cold = make_record(ONE, (1.0,), cold=make_latency())
    foreign = make_latency((9.0,), timer="pytest-benchmark:perf_counter")
    many = make_cases(36)
    pairs: list[tuple[Record | Results, Record | Results]] = [
        (make_record(ONE, STEADY), updated),
        (make_record(ONE), nameless),
        (noisy, make_record(ONE, (1.0,))),
        (make_record(ONE, STEADY[:9]), make_record(ONE, (1.0,))),
        (cold, cold),
        (make_record(ONE, (1.0,), memory=None), make_record(ONE, latency=foreign)),
        (
            results_of(*(make_record(case, STEADY) for case in many)),
            results_of(*(make_record(case, (3.0,)) for case in many)),
        ),
    ]
    notes = [
        f"{', '.join(found.counts)}: {note}"
        for found in (compared(before, after) for before, after in pairs)
        for note in (found.notes or ["no note"])
    ]
    assert_golden("\n".join(notes), GOLDEN / "notes.txt")


# --- what is refused -----------------------------------------------------------------------------

FAILURES = results_of(failed(ONE), failed(TWO, Status.CRASHED))
TWICE = results_of(make_record(ONE), make_record(ONE))
LOST = make_record(ONE, STEADY, status=Status.OUT_OF_GUARANTEE, memory=None)


@pytest.mark.parametrize(
    ("before", "after", "error", "fact"),
    [
        (results_of(), RIGHT, NotMeasuredError, "old: holds no case"),
        (RIGHT, results_of(), NotMeasuredError, "new: holds no case"),
        (FAILURES, RIGHT, NotMeasuredError, r"old: .*1 error, 1 crashed"),
        (RIGHT, FAILURES, NotMeasuredError, r"new: .*1 error, 1 crashed"),
        (make_record(ONE), make_record(TWO), NotComparableError, "no case in common"),
        (
            results_of(make_record(ONE), failed(TWO)),
            results_of(failed(ONE), make_record(TWO)),
            NotComparableError,
            "no case in common",
        ),
        (LOST, elsewhere(LOST), NotComparableError, ONE.id),
        (TWICE, make_record(ONE), Refusal, f"old: holds 1 case more than once, such as {ONE.id}"),
        (make_record(ONE), TWICE, Refusal, "new: holds 1 case more than once"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    before: Results | Record, after: Results | Record, error: type[Refusal], fact: str
) -> None:
    with pytest.raises(error, match=fact):
        compared(before, after)


def test_the_exit_codes_of_refusals() -> None:
    errors = (NotMeasuredError, NotComparableError, Refusal)
    assert [error.exit_code for error in errors] == [3, 4, 2]


# --- the comparison in words ---------------------------------------------------------------------

SLOWER = compared(
    results_of(make_record(ONE, STEADY), make_record(TWO, STEADY)),
    results_of(make_record(ONE, (1.5,)), make_record(TWO, (1.0,))),
    confirm=confirming(*[1.5] * 5),
)


def changes(number: int, kind: ChangeKind, *, alike: bool) -> Comparison:
    return Comparison(
        changes=tuple(
            Change(case=make_case(rows=rows), kind=kind, reason="why" if alike else f"why {rows}")
            for rows in range(number)
        ),
        baseline="old",
        head="new",
        notes=("it rains",),
    )


def printed(comparison: Comparison) -> list[str]:
    document = document_of_comparison(comparison, most_rows=MOST_ROWS)
    return [line for line, _ in terminal_lines([*document, *end_of_comparison(comparison)])]


def test_lines_read_as_in_the_golden_file() -> None:
    comparisons = (
        SLOWER,
        changes(1, ChangeKind.NEW, alike=False),
        changes(53, ChangeKind.GONE, alike=True),
        changes(22, ChangeKind.INCONCLUSIVE, alike=False),  # of which twenty rows are listed
        changes(3, ChangeKind.REGRESSED, alike=True),  # each failure has its own
    )
    lines = [line for comparison in comparisons for line in printed(comparison)]
    assert_golden("\n".join(lines), GOLDEN / "lines.txt")


def test_json_has_every_case_with_its_figures() -> None:
    plain = json.loads(json_text(comparison_as_plain(SLOWER)))
    assert (plain["failed"], plain["counts"]) == (True, {"slower": 1, "unchanged": 1})
    found = [(one["id"], one["kind"], one["metric"]) for one in plain["changes"]]
    assert found == [(ONE.id, "slower", "latency"), (TWO.id, "unchanged", None)]
    assert plain["changes"][0]["case"]["shape"] == [1, 768]
    assert plain["changes"][0]["ratio"]["value"] == pytest.approx(1.5)
    one = make_record(ONE, (1.0,))  # of one process, so its interval is infinite
    plain = json.loads(json_text(comparison_as_plain(compared(one, one, least_processes=1))))
    assert plain["changes"][0]["ratio"]["high"] is None

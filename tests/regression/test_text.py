"""A comparison in words and as JSON; every reason and note is in a golden file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import exp, nan
from pathlib import Path

from factories.compared_runs import (
    ELSEWHERE,
    HERE,
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
    results_of,
    with_error,
    with_memory,
)
from factories.golden import assert_golden

from harness.records import Direction, MeasurementWarning, Mode, Record, Status, WarningKind
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
ONE, TWO = make_case(rows=1), make_case(rows=2)
SLOWER = compared(
    results_of(make_record(ONE, STEADY), make_record(TWO, STEADY)),
    results_of(make_record(ONE, (1.5,)), make_record(TWO, (1.0,))),
    confirm=confirming(*[1.5] * 5),
)


def statuses() -> Iterator[Change]:
    right, wrong = make_record(), failed(status=Status.WRONG, reason="y is 99 ulp off")
    yield change(right, right)
    yield change(right, wrong)
    yield change(wrong, right)
    yield change(wrong, wrong)
    yield change(right, elsewhere(failed(status=Status.OUT_OF_MEMORY)))
    bare = make_record(status=Status.OUT_OF_GUARANTEE, memory=None)
    yield change(bare, elsewhere(bare))


def exact() -> Iterator[Change]:
    right, gpu = make_record(), make_record(make_case(device="cuda"))
    backward = make_record(make_case(direction=Direction.BACKWARD))
    assert backward.errors is not None
    fewer = replace(backward.errors, outputs=backward.errors.outputs[:-1])
    lost = with_error(right, scaled_max_ulp=nan)
    low = with_error(right, bound_ratio=0.2, scaled_max_ulp=0.6)
    high = elsewhere(with_error(right, bound_ratio=0.6, scaled_max_ulp=4.0))
    assert high.errors is not None
    yield change(right, with_error(right, scaled_max_ulp=9.0, scaled_mean_ulp=0.4, max_abs=0.0))
    yield change(right, with_error(right, scaled_max_ulp=0.5))
    yield change(lost, lost)
    yield change(backward, replace(backward, errors=fewer))
    yield change(right, replace(right, errors=None))
    yield change(right, elsewhere(right))
    yield change(gpu, gpu)
    yield change(low, high)
    yield change(low, replace(high, errors=replace(high.errors, algorithm="one_pass")))
    yield change(right, with_memory(right, peak_extra_bytes=1 << 40))
    yield change(gpu, elsewhere(with_memory(gpu, peak_extra_bytes=1 << 40)))
    yield change(right, replace(right, memory=None))
    compiled = replace(make_record(make_case(mode=Mode.COMPILED)), operators=9)
    yield change(compiled, replace(compiled, operators=10))
    yield change(compiled, elsewhere(replace(compiled, operators=10)))


def latencies() -> Iterator[Change]:
    before, now = make_record(ratios=STEADY), make_record(ratios=(1.5,))
    warnings = tuple(
        MeasurementWarning(kind=kind, advice="the advice")
        for kind in (WarningKind.NOISY, WarningKind.CLOCK_STEPPED)
    )
    spread = make_record(ratios=tuple(exp(0.04 * sign) for sign in (-1, 1) * 5))
    yield change(before, make_record(ratios=(1.02,)))
    yield change(before, now)
    yield change(before, now, confirm=confirming(*[1.5] * 5))
    yield change(before, make_record(ratios=(0.5,)), confirm=confirming(*[0.5] * 5))
    yield change(before, now, confirm=confirming(1.0, 1.5, 1.5, 1.5, 1.6))
    yield change(before, now, confirm=confirming(*[1.5] * 4))
    yield change(make_record(ratios=(1.0,)), make_record(ratios=(1.02,)), least_processes=1)
    yield change(make_record(ratios=STEADY[:9]), now)
    yield change(replace(before, warnings=warnings[1:]), now)
    yield change(spread, make_record(ratios=(1.0,)))
    yield change(replace(before, warnings=warnings[:1]), make_record(ratios=(1.0,)))
    for figures in ({"converged": False}, {"minor_faults_ratio": 7.0}):
        yield change(make_record(latency=make_latency(STEADY, **figures)), before)
    yield change(before, make_record())
    yield change(before, make_record(ratios=(nan,)))
    yield change(before, elsewhere(now))
    for differences in (
        {"timer": "pytest-benchmark:time"},
        {"is_valid": False},
        {"reference": None, "reference_ratio": None},
        {"reference": "two_pass"},
    ):
        yield change(before, make_record(latency=make_latency((1.5,), **differences)))


def test_reasons_read_as_in_the_golden_file() -> None:
    changes = (*statuses(), *exact(), *latencies())
    assert {change.kind for change in changes} == {*ChangeKind} - {ChangeKind.GONE, ChangeKind.NEW}
    lines = "\n".join(f"{change.kind}: {change.reason}" for change in changes)
    assert_golden(lines, GOLDEN / "reasons.txt")


def test_notes_read_as_in_the_golden_file() -> None:
    newer = replace(HERE, packages=(("torch", "2.14.0"), ("numpy", "2.4.6")))
    nameless = replace(results_of(make_record(ONE, environment=ELSEWHERE)), environments={})
    updated = replace(
        results_of(make_record(ONE, (2.0,), environment=newer)),
        environments={newer.fingerprint: newer},
    )
    noisy = make_record(ONE, latency=make_latency(STEADY, converged=False))
    cold = make_record(ONE, (1.0,), cold=make_latency())
    many = make_cases(36)
    pairs: list[tuple[Record | Results, Record | Results]] = [
        (make_record(ONE, STEADY), updated),
        (make_record(ONE), nameless),
        (noisy, make_record(ONE, (1.0,))),
        (cold, cold),
        (
            results_of(make_record(ONE), make_record(TWO)),
            results_of(make_record(ONE), failed(make_case(rows=3))),
        ),
        (
            results_of(*(make_record(case, STEADY) for case in many)),
            results_of(*(make_record(case, (3.0,)) for case in many)),
        ),
    ]
    notes = [note for before, after in pairs for note in compared(before, after).notes]
    assert_golden("\n".join(notes), GOLDEN / "notes.txt")


# --- lines ---------------------------------------------------------------------------------------


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
    both = changes(1, ChangeKind.NEW, alike=False), changes(53, ChangeKind.GONE, alike=True)
    lines = [line for comparison in (SLOWER, *both) for line in printed(comparison)]
    assert_golden("\n".join(lines), GOLDEN / "lines.txt")


def test_at_most_twenty_rows_are_listed_and_each_failure_has_its_own() -> None:
    lines = printed(changes(53, ChangeKind.INCONCLUSIVE, alike=False))
    assert sum(line.startswith(" two_pass") for line in lines) == 20
    assert lines[-3].startswith("and 33 more")
    lines = printed(changes(7, ChangeKind.REGRESSED, alike=True))
    assert sum(line.startswith(" two_pass") for line in lines) == 7


# --- JSON ----------------------------------------------------------------------------------------


def test_json_has_every_case_with_its_figures() -> None:
    plain = json.loads(json_text(comparison_as_plain(SLOWER)))
    assert plain["failed"] is True
    assert plain["counts"] == {"slower": 1, "unchanged": 1}
    first, second = plain["changes"]
    assert (first["id"], first["kind"], first["metric"]) == (ONE.id, "slower", "latency")
    assert round(first["ratio"]["value"], 3) == 1.5
    assert first["case"]["shape"] == [1, 768]
    assert (second["id"], second["metric"]) == (TWO.id, None)
    one = make_record(ONE, (1.0,))  # of one process, so its interval is infinite
    text = json_text(comparison_as_plain(compared(one, one, least_processes=1)))
    (plain,) = json.loads(text)["changes"]
    assert (plain["ratio"]["value"], plain["ratio"]["high"]) == (1.0, None)

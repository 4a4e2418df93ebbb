"""Two runs are compared case by case: what changed, in which metric, and why, in a golden file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from math import exp, nan
from pathlib import Path
from typing import Any

import pytest
from factories.commanding import call
from factories.compared_runs import (
    BEFORE,
    ELSEWHERE,
    HERE,
    SHARED,
    STEADY,
    STEPPED,
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
    Cache,
    Clock,
    Direction,
    Memory,
    Mode,
    OutputErrors,
    Record,
    Status,
)
from harness.store import Results, write

ONE, TWO = (make_case(rows=rows) for rows in (1, 2))

# --- what changed --------------------------------------------------------------------------------

RIGHT, GPU = make_record(), make_record(make_case(device="cuda"))
BACKWARD = make_record(make_case(direction=Direction.BACKWARD))
ERRORS = [metric.field for metric in OUTPUT_METRICS]
MEMORY_FIELDS = ["peak_extra_bytes", "allocated_bytes", "allocations", "saved_bytes"]
Rows = Iterator[tuple[str, Record, Record]]


def of_status(status: Status) -> Record:
    reason = "" if status is Status.OK else f"it is {status}"
    if status.is_measured:
        return make_record(status=status, reason=reason)
    return failed(status=status, reason=reason)


def statuses() -> Rows:
    for before, after in product(Status, repeat=2):
        yield f"{before}, then {after}", of_status(before), of_status(after)
    for status in Status:
        yield f"ok, then {status} elsewhere", RIGHT, elsewhere(of_status(status))
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
    lost = with_error(RIGHT, scaled_max_ulp=nan)
    yield "a number, then nan", RIGHT, lost
    yield "nan in both", lost, lost
    yield "the bound is nan elsewhere", RIGHT, elsewhere(with_error(RIGHT, bound_ratio=nan))
    returned = replace(BACKWARD.errors, outputs=BACKWARD.errors.outputs[:-1])
    fewer = replace(BACKWARD, errors=returned)
    yield "a gradient is not returned", BACKWARD, fewer
    yield "errors are not measured any more", RIGHT, replace(RIGHT, errors=None)
    yield "errors are measured now", replace(RIGHT, errors=None), RIGHT


def errors_elsewhere() -> Rows:
    for before, after in ((0.05, 0.25), (0.05, 0.251), (0.2, 0.4), (0.2, 0.41)):
        old = with_error(RIGHT, bound_ratio=before, scaled_max_ulp=2e4)
        new = elsewhere(with_error(old, bound_ratio=after))
        yield f"{before} of the bound, then {after} elsewhere", old, new
    for before, after in ((0.6, 1.6), (0.6, 1.61), (3.0, 6.0), (3.0, 6.01)):
        old = with_error(RIGHT, scaled_max_ulp=before)
        new = elsewhere(with_error(old, scaled_max_ulp=after))
        old, new = (with_error(record, bound_ratio=None) for record in (old, new))
        yield f"no bound, {before} to {after} ulp", old, new
    out = make_record(status=Status.OUT_OF_GUARANTEE)
    worse = elsewhere(with_error(out, scaled_max_ulp=1e6, bound_ratio=9.0))
    yield "out of guarantee, larger elsewhere", out, worse
    yield "on a GPU, an error grew by 1 ulp", GPU, with_error(GPU, scaled_max_ulp=2.17)


def memory_and_operators() -> Rows:
    for name in MEMORY_FIELDS:
        before = with_memory(BACKWARD, **{name: 1000})
        after = with_memory(before, **{name: 1001})
        yield f"{name} grew", before, after
        yield f"{name} shrank", after, before
    more = with_memory(GPU, peak_extra_bytes=1 << 40)
    yield "peak of another GPU", GPU, elsewhere(more)
    yield "memory is not measured any more", RIGHT, replace(RIGHT, memory=None)
    for mode in Mode:
        few, many = (make_record(make_case(mode=mode), operators=count) for count in (9, 10))
        yield f"an operator more, {mode}", few, many
        yield f"an operator more, {mode}, elsewhere", few, elsewhere(many)
    worse = with_memory(with_error(RIGHT, scaled_max_ulp=0.5), peak_extra_bytes=1 << 40)
    yield "a smaller error, more memory", RIGHT, worse


def instructions() -> Rows:
    for before, after in ((50_000, 50_249), (50_000, 50_251), (50_251, 50_000)):
        yield f"{before}, then {after} instructions", *counted(before, after)
    for before, after in ((2_000_000, 2_004_000), (2_000_000, 2_004_001)):
        old, new = counted(before, after)
        yield f"{before}, then {after} instructions elsewhere", old, elsewhere(new)
    yield "instructions are not counted any more", *counted(50_000, None)


def counted(*instructions: int | None) -> Iterator[Record]:
    return (make_record(instructions=number) for number in instructions)


OTHER_LATENCIES: list[dict[str, Any]] = [
    {"timer": "pytest-benchmark:time"},
    {"is_valid": False},
    {"reference": None, "reference_ratio": None},
    {"clock": Clock.WALL},
    {"cache": Cache.ROTATE},
]


def latencies() -> Rows:
    yield "timed for the first time", RIGHT, now(1.5)
    yield "wrong before", replace(BEFORE, status=Status.WRONG), now(1.5)
    yield "elsewhere", BEFORE, elsewhere(now(1.5))
    yield "nine processes before", make_record(ratios=STEADY[:9]), now(1.5)
    yield "the clock jumped before", replace(BEFORE, warnings=(STEPPED,)), now(1.5)
    yield "a sample was nan", make_record(ratios=(*STEADY[:9], nan)), now(1.5)
    yield "a sample is nan", BEFORE, now(nan)
    yield "spread by 4 %", make_record(ratios=[exp(0.04), exp(-0.04)] * 5), now(1.0)
    yield "warned of noise", replace(BEFORE, warnings=(SHARED,)), now(1.0)
    for other in OTHER_LATENCIES:
        yield f"{' and '.join(other)} differs", BEFORE, now(1.5, **other)


def test_every_figure_but_one_of_errors_and_of_memory_is_compared() -> None:
    compared_fields = {*ERRORS, *MEMORY_FIELDS}
    names = {field.name for kind in (OutputErrors, Memory) for field in fields(kind)}
    assert names - compared_fields == {"raw_max_ulp", "output", "elements", "minimum_bytes"}


def test_what_changed_and_why_reads_as_in_the_golden_file() -> None:
    parts = (statuses, errors, errors_elsewhere, memory_and_operators, instructions, latencies)
    found = {name: change(*records) for part in parts for name, *records in part()}
    for first, fresh in (
        (1.5, (1.5,) * 5),
        (0.5, (0.5,) * 5),
        (1.5, (1.0, 1.5, 1.5, 1.5, 1.6)),
    ):
        confirmed = change(BEFORE, now(first), confirm=confirming(*fresh))
        found[f"{first}, then {fresh}"] = confirmed
    lines = [f"{name}\n  {one.kind} ({one.metric}): {one.reason}" for name, one in found.items()]
    assert_golden("\n".join(lines), __file__, "reasons.txt")


def test_notes_read_as_in_the_golden_file() -> None:
    newer = replace(HERE, packages=(("torch", "2.14.0"), ("numpy", "2.4.6")))
    updated = results_of(make_record(ONE, (2.0,), environment=newer), environments=(newer,))
    noisy = make_record(ONE, latency=make_latency(STEADY, converged=False))
    cold = make_record(ONE, (1.0,), cold=make_latency())
    many = make_cases(36)
    pairs: list[tuple[Record | Results, Record | Results]] = [
        (make_record(ONE, STEADY, instructions=9), updated),
        (make_record(ONE), make_record(ONE, environment=ELSEWHERE)),
        (noisy, make_record(ONE, (1.0,))),
        (cold, cold),
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
    assert_golden("\n".join(notes), __file__, "notes.txt")


@pytest.mark.parametrize(
    ("implementation", "packages", "is_timed"),
    [
        ("two_pass", {"onnx": "1.18"}, True),
        ("two_pass", {"jax": "0.9"}, True),
        ("two_pass", {"torch": "2.14.0"}, False),
        ("jax", {"onnx": "1.18"}, True),
        ("jax", {"jax": "0.9"}, False),
        ("mine.py:norm", {"jax": "0.9"}, False),
    ],
)
def test_times_are_compared_if_the_packages_that_a_case_needs_are_the_same(
    implementation: str, packages: dict[str, str], is_timed: bool
) -> None:
    usual = {"torch": "2.13.0", "jax": "0.8"}
    case = make_case(implementation)
    environments = [
        replace(HERE, packages=tuple(versions.items())) for versions in (usual, usual | packages)
    ]
    before, after = (
        results_of(make_record(case, STEADY, environment=here), environments=(here,))
        for here in environments
    )
    (found,) = compared(before, after).changes
    assert (found.ratio is not None) is is_timed


# --- what is refused -----------------------------------------------------------------------------


# --- the comparison as it is printed -------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_the_worst_changes_are_printed_first_as_in_the_golden_file() -> None:
    one, two, three, *others = (make_record(make_case(rows=rows), STEADY) for rows in range(1, 40))
    wrong = [replace(record, status=Status.WRONG, reason="y is off") for record in others[:3]]
    slower = [make_record(make_case(rows=rows), (rows,) * 5) for rows in (2, 3)]
    noisy = [  # of which twenty rows of the table are left
        make_record(record.case, (1 + number / 100,)) for number, record in enumerate(others[5:27])
    ]
    runs = [
        ([one, two, three, *others], [one, *slower, *wrong, *noisy, make_record(make_case("new"))]),
        ([one], [make_record(one.case, (1.0,), memory=None, errors=None)]),
    ]
    texts = []
    for before, after in runs:
        write(results_of(*before), Path("old.parquet"))
        write(results_of(*after), Path("new.parquet"))
        texts.append(call("compare", "old.parquet", "new.parquet", code=0).stdout)
    assert_golden("\n".join(texts), __file__, "lines.txt")
    plain = json.loads(call("compare", "old.parquet", "new.parquet", "--json").stdout)
    assert (plain["failed"], plain["counts"]) == (False, {"inconclusive": 1})

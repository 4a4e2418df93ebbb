"""Records become a choice: in the terminal, for a workload, and as code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
from factories.choice_records import (
    LARGE,
    SHAPES,
    SMALL,
    both,
    call,
    choices_among,
    failed,
    ran,
    timed,
    vacuous,
    with_latency,
    workload_choices,
)
from factories.compared_runs import ELSEWHERE
from factories.golden import assert_golden

from harness.records import Direction, MeasurementWarning, Mode, Record, Status, WarningKind
from harness.report import (
    Document,
    choices_document,
    evidence_lines,
    python_lines,
    terminal_lines,
)
from harness.selection import Accuracy, Choices, Requirements
from implementations import Dispatch

TRAINING = {"direction": Direction.FORWARD_BACKWARD}
NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)
NATIVES, QUICKS = timed("native", 1.0), timed("quick", 0.5)
EXACT = ran("exact", 1.0, error_ulp=0.5, peak_bytes=1024)
WIDE = ran("wide", 2.0, interval=(0.82, 4.9), error_ulp=0.5)
INACCURATE = ran("quick", 0.5, status=Status.INACCURATE, error_ulp=21.9, reason="y is 21.9 ulp off")


def warned(record: Record, kind: WarningKind) -> Record:
    return replace(record, warnings=(MeasurementWarning(kind=kind, advice="give it more time"),))


def held(distribution: str, condition: float = 1.0, name: str = "native", **more: Any) -> Record:
    return ran(name, distribution=distribution, condition=condition, **more)


CHOICES: dict[str, Sequence[Record]] = {
    "one candidate": [NATIVE],
    "slower by a percentage and by a factor": [NATIVE, ran("near", 1.12), ran("far", 2.1)],
    "a tie broken by accuracy": [EXACT, ran("quick", 0.99, error_ulp=3.0)],
    "a tie broken by memory": [EXACT, ran("fat", 0.99, error_ulp=0.5, peak_bytes=4096)],
    "a tie broken by nothing": [NATIVE, ran("alike", 0.99)],
    "a wide interval": [NATIVE, ran("slow", 1.5), WIDE],
    "timed in one epoch": [NATIVE, ran("once", 585.0, interval=(0.0, inf), error_ulp=0.5)],
    "an invalid time": [
        NATIVE,
        warned(ran("quick", 0.1, is_valid=False), WarningKind.FASTER_THAN_COPY),
    ],
    "an invalid time in one of three shapes": [
        *NATIVES,
        *timed("quick", 0.5, SHAPES[:2]),
        ran("quick", 0.5, shape=SHAPES[2], is_valid=False),
    ],
    "not timed": [NATIVE, ran("exact", error_ulp=0.5)],
    "digits lost from a condition on": [
        NATIVE,
        ran("one_pass", 0.96),
        vacuous("one_pass"),
        held("offset_1e2", 212.0, "one_pass"),
        held("offset_1e2", 212.0),
        held("offset_1e4", 1e4),
    ],
    "wrong": [NATIVE, ran("quick", 0.5, status=Status.WRONG, reason="y is 9 ulp off")],
    "inaccurate": [NATIVE, INACCURATE],
    "no gradient": [NATIVE, failed("fused", Status.UNSUPPORTED, "fused has no gradient")],
    "not verified at all": [NATIVE, replace(QUICK, errors=None)],
    "none is eligible": [
        ran("quick", 0.5, status=Status.WRONG, reason="y is off"),
        failed("native", Status.CRASHED),
    ],
    "the best is out of guarantee": [NATIVE, vacuous("native")],
    "the best has a warning": [warned(NATIVE, WarningKind.NOT_CONVERGED)],
    "one for all shapes": [*NATIVES, *QUICKS],
    "native for some shapes": [*NATIVES, *QUICKS[:1], *timed("quick", 2.0, SHAPES[1:])],
    "by direction": [NATIVE, QUICK, ran("native", 1.0, **TRAINING), ran("quick", 2.0, **TRAINING)],
    "nothing is eligible for some": [NATIVE, failed("native", Status.CRASHED, shape=(1, 9))],
    "native was not timed": [
        with_latency(record, reference="another")
        for record in (*timed("one", 1.0), *timed("two", 2.0))
    ],
    "two machines": [NATIVE, ran("native", 1.0, environment=ELSEWHERE.fingerprint)],
}
AT_MOST_2_ULP = {
    "less accurate than required": [
        NATIVE,
        QUICK,
        held("offset_1e2", 100.0),
        held("offset_1e2", 100.0, "quick", error_ulp=90.0),
    ],
}
INACCURATE_ACCEPTED = {
    "the best is inaccurate": [
        ran("native", 1.0, error_ulp=3.0),
        ran("exact", 2.0, error_ulp=0.5),
        INACCURATE,
        ran("wrong", 0.4, status=Status.WRONG, error_ulp=0.4, reason="dx is not"),
    ],
}
EXAMPLES = (
    (Requirements(max_condition=inf), CHOICES),
    (Requirements(max_error_ulp=2.0, max_condition=inf), AT_MOST_2_ULP),
    (Requirements(accuracy=Accuracy.INACCURATE), INACCURATE_ACCEPTED),
)


def lines_of(title: str, document: Document) -> Iterator[str]:
    yield f"\n# {title}"
    yield from (line.rstrip() for line, _ in terminal_lines(document) if line)


def test_choices_read_as_in_the_golden_file() -> None:
    lines: list[str] = []
    for requirements, examples in EXAMPLES:
        for title, records in examples.items():
            choices = choices_among(*records, requirements=requirements)
            lines += lines_of(title, choices_document(choices, (), []))
    one_process = choices_among(ran("native", 1.0, processes=1))
    lines += ["\n# evidence of one process", *evidence_lines(one_process, ["a.parquet"])]
    assert_golden("\n".join(lines), __file__, "choices.txt")


# --- for a workload ------------------------------------------------------------------------------


CALLS = [call(SMALL, 1000), call(LARGE, 1)]
ALL = both("native", 1.0, 1.0)
WORKLOADS = {
    "one is the choice for each call": [*ALL, *both("slow", 2.0, 2.0)],
    "a choice per shape": [*ALL, *both("large", 3.0, 0.5)],
    "a tie": [*both("quick", 0.99, 0.99, error_ulp=5.0), *ALL],
    "not measured for one call": [*ALL, ran("quick", 0.5, shape=SMALL)],
    "none serves every call": [
        ran("quick", 0.5, shape=SMALL),
        failed("quick", Status.CRASHED, shape=LARGE),
        failed("native", Status.CRASHED, shape=SMALL),
        ran("native", 1.0, shape=LARGE),
    ],
    "one call is not in the run": ALL[:1],
}


def test_the_choice_for_a_workload_reads_as_in_the_golden_file() -> None:
    lines: list[str] = []
    for title, records in WORKLOADS.items():
        found = workload_choices(CALLS, *records)
        lines += lines_of(title, choices_document(choices_among(*records), found, []))
    assert_golden("\n".join(lines), __file__, "workloads.txt")


# --- as code that runs ---------------------------------------------------------------------------


def code_for(choices: Choices, *of_workload: Any) -> str:
    return "\n".join(python_lines(choices, of_workload, ["evidence: made up\nby hand"]))


def run_code(code: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile(code, "printed", "exec"), scope)
    return scope


def name_for(scope: dict[str, Any], *shape: int, gradient: bool = False) -> str:
    """Return the implementation that the printed module has for a call."""
    found = scope["LayerNorm"].keywords["implementation"]
    if isinstance(found, Dispatch):
        found = found.choose(torch.zeros(*shape), shape[-1:], gradient=gradient)
    return found if isinstance(found, str) else str(found.name)


TWO_PASS, COMPILED = ran("two_pass", 0.5), ran("one_pass", 0.5, mode=Mode.COMPILED)
LARGER = {"shape": (512, 768)}


HERE, THERE_TOO, UNMEASURED = (64, 768), (512, 768), (9, 99)
CODE = {
    "one for all": ([TWO_PASS, NATIVE], {UNMEASURED: "two_pass"}),
    "one for each shape": (
        [NATIVE, ran("two_pass", 0.5, **LARGER)],
        {HERE: "native", THERE_TOO: "two_pass", UNMEASURED: "native"},
    ),
    "compiled for some": (
        [COMPILED, ran("native", 1.0, **LARGER)],
        {HERE: "one_pass (compiled)", THERE_TOO: "native"},
    ),
}


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, on import
@pytest.mark.parametrize(("records", "names"), CODE.values(), ids=CODE)
def test_printed_code_runs_the_choice(
    records: list[Record], names: dict[tuple[int, ...], str]
) -> None:
    scope = run_code(code_for(choices_among(*records)))
    assert {shape: name_for(scope, *shape) for shape in names} == names


def test_printed_code_has_another_choice_for_training() -> None:
    scope = run_code(code_for(choices_among(NATIVE, ran("one_pass", 0.5, **TRAINING))))
    x = torch.randn(64, 768)
    expected = torch.nn.functional.layer_norm(x, (768,))
    torch.testing.assert_close(scope["LayerNorm"](768).eval()(x), expected)
    names = [name_for(scope, 64, 768, gradient=gradient) for gradient in (False, True)]
    assert names == ["native", "one_pass"]


def test_code_for_a_workload_runs_one_candidate_for_all_or_else_a_table_of_its_calls() -> None:
    records = [NATIVE, ran("one_pass", 0.5, **LARGER)]
    calls = [call((64, 768), 15), call((512, 768))]
    for name, more in (("native", [ran("native", 1.0, **LARGER)]), ("one_pass", [])):
        found = workload_choices(calls, *records, *more)
        scope = run_code(code_for(choices_among(*records, *more), *found))
        assert name_for(scope, 512, 768) == name

"""A choice in words: all of them are in the golden files."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from factories.choice_records import (
    LARGE,
    SMALL,
    call,
    choices_among,
    failed,
    ran,
    vacuous,
    workload_choice,
)
from factories.golden import assert_golden

from harness.records import Direction, MeasurementWarning, Mode, Record, Status, WarningKind
from harness.report.choice import answer_text, caveats, evidence_lines, per_shape_text, price_text
from harness.selection import Accuracy, Choices, Requirements

GOLDEN = Path(__file__).parent / "golden"
NATIVE = ran("native", 1.0)
EXACT = ran("exact", 1.0, error_ulp=0.5, peak_bytes=1024)
TRAINING = {"direction": Direction.FORWARD_BACKWARD}
THERE = {"shape": (16, 512), "distribution": "offset_1e4", "condition": 1e4}
FASTER_THAN_COPY = MeasurementWarning(
    kind=WarningKind.FASTER_THAN_COPY, advice="9 times as fast as a copy"
)
NOT_CONVERGED = MeasurementWarning(kind=WarningKind.NOT_CONVERGED, advice="give it more time")
WIDE = ran("wide", 2.0, interval=(0.82, 4.9), error_ulp=0.5)


def held(distribution: str, condition: float = 1.0, name: str = "native") -> Record:
    return ran(name, distribution=distribution, condition=condition)


CHOICES: dict[str, Sequence[Record]] = {
    "one candidate": [NATIVE],
    "slower by a percentage and by a factor": [NATIVE, ran("near", 1.12), ran("far", 2.1)],
    "a tie broken by accuracy": [EXACT, ran("quick", 0.99, error_ulp=3.0)],
    "a tie broken by memory": [EXACT, ran("fat", 0.99, error_ulp=0.5, peak_bytes=4096)],
    "a tie broken by nothing": [NATIVE, ran("alike", 0.99)],
    "a wide interval": [NATIVE, ran("slow", 1.5), WIDE],
    "a wide interval beside a tie": [ran("quick", 0.99, error_ulp=3.0), NATIVE, WIDE],
    "timed in one epoch": [NATIVE, ran("once", 585.0, interval=(0.0, inf), error_ulp=0.5)],
    "an invalid time": [
        NATIVE,
        replace(ran("quick", 0.1, is_valid=False), warnings=(FASTER_THAN_COPY,)),
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
    "digits left, and fewer further on": [
        NATIVE,
        ran("quick", 0.5),
        held("offset_1e3", 1e3),
        held("offset_1e4", 1e4),
        vacuous("quick", 1e3, lost=0.05, distribution="offset_1e3"),
        vacuous("quick", lost=inf),
    ],
    "lost on constant rows": [
        NATIVE,
        ran("quick", 0.5),
        held("constant", inf),
        vacuous("quick", inf, distribution="constant"),
    ],
    "seen at another shape, mode and direction": [
        ran("native", 1.0, **TRAINING),
        ran("quick", 0.5, mode=Mode.COMPILED, **TRAINING),
        ran("native", **THERE),
        vacuous("quick", **THERE),
    ],
    "wrong": [NATIVE, ran("quick", 0.5, status=Status.WRONG, reason="y is 9 ulp off")],
    "inaccurate": [
        NATIVE,
        ran(
            "quick",
            0.5,
            status=Status.INACCURATE,
            error_ulp=21.9,
            reason="y is 21.9 ulp off: as running sums in bfloat16 are",
        ),
    ],
    "no gradient": [NATIVE, failed("fused", Status.UNSUPPORTED, "fused has no gradient")],
    "declined": [NATIVE, failed("fused", Status.UNSUPPORTED, "needs a GPU")],
    "crashed": [NATIVE, failed("fused", Status.CRASHED, "ended by signal 11")],
    "not verified where others are": [NATIVE, held("constant"), ran("quick", 0.5)],
    "not verified at all": [NATIVE, replace(ran("quick", 0.5), errors=None)],
    "none is eligible": [
        ran("quick", 0.5, status=Status.WRONG, reason="y is off"),
        failed("native", Status.CRASHED),
    ],
    "the best is out of guarantee": [NATIVE, vacuous("native")],
    "the best is verified on some distributions": [
        NATIVE,
        ran("other", distribution="uniform", shape=(16, 512)),
    ],
    "the best has a warning": [replace(NATIVE, warnings=(NOT_CONVERGED,))],
}
REQUIRED: dict[str, Sequence[Record]] = {
    "less accurate than required": [
        NATIVE,
        ran("quick", 0.5),
        held("offset_1e2", 100.0),
        ran("quick", error_ulp=90.0, distribution="offset_1e2", condition=100.0),
    ],
    "none is accurate enough": [
        ran("native", 1.0, error_ulp=5.0),
        ran("quick", 0.5, error_ulp=7.0),
    ],
}
ADMITTED: dict[str, Sequence[Record]] = {
    "the best is inaccurate": [
        ran("native", 1.0, error_ulp=3.0),
        ran("exact", 2.0, error_ulp=0.5),
        ran("quick", 0.5, status=Status.INACCURATE, error_ulp=21.9),
        ran("wrong", 0.4, status=Status.WRONG, error_ulp=0.4, reason="dx is not"),
    ],
    "all are inaccurate": [
        ran("quick", 0.5, status=Status.INACCURATE, error_ulp=21.9),
        ran("native", 1.0, status=Status.INACCURATE, error_ulp=40.0),
    ],
    "a tie with an inaccurate one": [
        ran("native", 1.0),
        ran("quick", 0.99, status=Status.INACCURATE, error_ulp=21.9),
    ],
}


def choice_lines(title: str, choices: Choices) -> Iterator[str]:
    choice = choices.choices[0]
    yield f"\n{title}\n  {choice.best.label if choice.best else 'none'}: {answer_text(choice)}"
    for caveat in caveats(choice):
        yield f"    it {caveat}"
    for candidate in choice.candidates:
        if candidate is not choice.best:
            yield f"    {candidate.label}: {price_text(candidate, choice)}"


def test_the_recommendation_with_its_caveats_and_costs() -> None:
    two_ulp = Requirements(max_error_ulp=2.0, max_condition=inf)
    blocks = [choice_lines(title, choices_among(*records)) for title, records in CHOICES.items()]
    blocks += [
        choice_lines(f"{title}: at most 2 ulp", choices_among(*records, requirements=two_ulp))
        for title, records in REQUIRED.items()
    ]
    admitted = Requirements(accuracy=Accuracy.INACCURATE, max_condition=inf)
    blocks += [
        choice_lines(f"{title}: accepted", choices_among(*records, requirements=admitted))
        for title, records in ADMITTED.items()
    ]
    assert_golden("\n".join(line for block in blocks for line in block), GOLDEN / "choices.txt")


def both(name: str, small: float, large: float, **axes: object) -> list[Record]:
    return [ran(name, small, shape=SMALL, **axes), ran(name, large, shape=LARGE, **axes)]


CALLS = [call(SMALL, 1000), call(LARGE, 1)]
ALL = both("native", 1.0, 1.0)
WORKLOADS = {
    "one is the choice for each call": [*ALL, *both("slow", 2.0, 2.0)],
    "a choice per shape": [*ALL, *both("large", 3.0, 0.5)],
    "a tie": [*both("quick", 0.99, 0.99, error_ulp=5.0), *ALL],
    "a wide interval": [*ALL, *both("wide", 2.0, 2.0, interval=(0.82, 4.9), error_ulp=0.5)],
    "wrong for one call": [
        *ALL,
        ran("quick", 0.5, shape=SMALL),
        ran("quick", 0.5, shape=LARGE, status=Status.WRONG, reason="y is off"),
    ],
    "not measured for one call": [*ALL, ran("quick", 0.5, shape=SMALL)],
    "none serves every call": [
        ran("quick", 0.5, shape=SMALL),
        failed("quick", Status.CRASHED, shape=LARGE),
        failed("native", Status.CRASHED, shape=SMALL),
        ran("native", 1.0, shape=LARGE),
    ],
    "one call is not in the run": [ran("native", 1.0, shape=SMALL)],
}


def workload_lines(title: str, records: Sequence[Record]) -> Iterator[str]:
    choice = workload_choice(CALLS, *records)
    label = choice.best.label if choice.best else "none"
    yield f"\n{title}\n  {label}: {answer_text(choice)}"
    for candidate in choice.candidates:
        if candidate is not choice.best:
            yield f"    {candidate.label}: {price_text(candidate, choice)}"
    yield f"    {per_shape_text(choice)}"
    held, all_calls = choice.covered
    yield f"    covered: {held} of {all_calls} calls"


def test_the_choice_for_a_workload() -> None:
    lines = [
        line for title, records in WORKLOADS.items() for line in workload_lines(title, records)
    ]
    assert_golden("\n".join(lines), GOLDEN / "workloads.txt")


def test_the_evidence() -> None:
    lines = [
        line
        for processes in (1, 5)
        for line in evidence_lines(
            choices_among(ran("native", 1.0, processes=processes)), ["a.parquet"]
        )
    ]
    assert_golden("\n".join(lines), GOLDEN / "evidence.txt")

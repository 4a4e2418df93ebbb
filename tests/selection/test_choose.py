"""Choices for whole runs: scenarios, several files, filters, requirements, and refusals."""

from dataclasses import replace
from math import inf

import pytest
from factories.choice_records import (
    HERE,
    OTHER_MACHINE,
    choice_among,
    choices_among,
    failed,
    ran,
    results_of,
    vacuous,
    with_latency,
)
from factories.results_factory import make_run

from harness.records import (
    Direction,
    Estimate,
    NotComparableError,
    NotMeasuredError,
    Record,
    Status,
)
from harness.report.choice import condition_text
from harness.selection import Requirements, answers_of, choose, is_required, requirement_levels
from harness.store import Results

NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)
OTHER = "pytest-benchmark:perf_counter"


def label_of(*files: list[Record]) -> str | None:
    """Return the best of the only scenario of several files."""
    (choice,) = choose([results_of(records) for records in files]).choices
    return choice.best and choice.best.label


def imported(record: Record, seconds: float) -> Record:
    time = Estimate(value=seconds, low=0.9 * seconds, high=1.1 * seconds)
    foreign = {"timer": OTHER, "reference": None, "reference_ratio": None}
    return with_latency(record, per_call_s=time, **foreign)


def test_each_shape_dtype_device_direction_and_setting_is_a_scenario() -> None:
    axes: list[dict[str, object]] = [
        {},
        {"shape": (8, 16)},
        {"dtype": "bfloat16", "param_dtype": "bfloat16"},
        {"device": "cuda"},
        {"direction": Direction.BACKWARD},
        {"threads": 4, "param_dtype": "float64"},
    ]
    found = choices_among(*(ran("native", 1.0, **values) for values in axes))
    assert [choice.scenario.text for choice in found.choices] == [
        "64x768 float32 cpu forward",
        "8x16 float32 cpu forward",
        "64x768 bfloat16 cpu forward",
        "64x768 float32 cuda forward",
        "64x768 float32 cpu backward",
        "64x768 float32 cpu forward params=float64 threads=4",
    ]


def test_each_machine_has_its_own_choice() -> None:
    there = OTHER_MACHINE.fingerprint
    others = [ran("native", 1.0, environment=there), ran("slow", 2.0, environment=there)]
    found = choices_among(NATIVE, QUICK, *others)
    bests = [choice.best and choice.best.label for choice in found.choices]
    assert bests == ["quick", "native"]
    assert found.environments.keys() == {HERE.fingerprint, there}
    assert found.notes == ("2 environments: their times are not compared, each has its own choice",)


def test_of_a_case_in_two_files_the_later_of_its_timer_counts() -> None:
    assert label_of([NATIVE, QUICK], [ran("quick", 2.0)]) == "native"
    assert label_of([NATIVE, QUICK], [imported(QUICK, 1.0)]) == "quick"


@pytest.mark.parametrize(
    ("records", "notes"),
    [
        ([NATIVE, QUICK], ()),
        ([NATIVE], ("native is the only candidate that was measured",)),
        *(
            (
                [first, imported(QUICK, 1.0)],
                (f"cases by timer: {cases}; times of two timers are never compared",),
            )
            for first, cases in (
                (NATIVE, f"layernorm-bench 1, {OTHER} 1"),
                (imported(NATIVE, 1.0), f"{OTHER} 2"),
            )
        ),
    ],
)
def test_what_limits_a_choice_is_noted(records: list[Record], notes: tuple[str, ...]) -> None:
    assert choices_among(*records).notes == notes


def test_a_run_that_was_cut_short_is_noted() -> None:
    short = replace(results_of([NATIVE, QUICK]), runs=(make_run(planned=40, wall_s=None),))
    (note,) = choose([short]).notes
    assert "2 of its 40 cases" in note


# --- filters --------------------------------------------------------------------------------------


def test_a_filter_keeps_the_evidence_of_other_shapes() -> None:
    elsewhere = {"shape": (16, 512)}
    held = ran("native", distribution="offset_1e4", condition=1e4, **elsewhere)
    records = [NATIVE, QUICK, held, vacuous("quick", **elsewhere)]
    (choice,) = choices_among(*records, wanted={"shape": [(64, 768)]}).choices
    assert choice.best is not None
    assert choice.best.label == "native"


def test_a_filter_names_what_it_does_not_match() -> None:
    with pytest.raises(NotComparableError, match="shape: 64x768; dtype: float32; device: cpu"):
        choices_among(NATIVE, wanted={"dtype": ["float16"]})
    found = choices_among(NATIVE, wanted={"dtype": ["float32", "float31"]})
    assert found.notes[0] == "no case of dtype float31 was measured; did you mean 'float32'?"


@pytest.mark.parametrize(
    ("message", "records"),
    [
        (r"^no case was measured$", []),
        (
            r"such as native/.*SIGSEGV",
            [failed(name, Status.CRASHED, "SIGSEGV") for name in ("native", "quick")],
        ),
        (r"forward: run .*--measure errors,latency,memory", [ran("native")]),
        (
            r"forward and 1 more: run .*--measure errors,latency,memory",
            [ran("native", 0.1, is_valid=False), ran("native", shape=(8, 8))],
        ),
    ],
)
def test_a_run_without_a_valid_time_is_refused(message: str, records: list[Record]) -> None:
    with pytest.raises(NotMeasuredError, match=message):
        choose([Results(records=tuple(records), runs=(), environments={})])


def test_a_scenario_without_times_or_without_results_has_no_best() -> None:
    crashed = failed("native", Status.CRASHED, shape=(8, 8))
    found = choices_among(NATIVE, crashed, ran("native", shape=(16, 512)))
    assert [choice.best is None for choice in found.choices] == [False, True]
    assert [scenario.case.shape for scenario in found.untimed] == [(16, 512)]
    assert (found.is_complete, choices_among(NATIVE).is_complete) == (False, True)


# --- up to which condition number results must be right -------------------------------------------


def reaching(condition: float) -> Record:
    return ran("exact", condition=condition, distribution=f"offset_{condition:g}")


LOST_FROM_1E6 = [
    *(NATIVE, ran("exact", 1.25), reaching(1e6)),
    vacuous("native", 1e6, distribution="offset_1e+06"),
]


@pytest.mark.parametrize(("required", "best"), [(1e3, "native"), (1e6, "exact"), (inf, "exact")])
def test_only_what_is_required_disqualifies(required: float, best: str) -> None:
    choice = choice_among(*LOST_FROM_1E6, requirements=Requirements(max_condition=required))
    # for any inputs there is a choice beside it, and native's time is known in each
    of_any = choice.any_condition or choice
    for one, label in ((choice, best), (of_any, "exact")):
        assert one.best is not None
        assert one.best.label == label
        speed = one.speed(one.best)
        assert speed is not None
        speeds = {"native": (1.0, 1.0, 1.0), "exact": (0.8, 0.8 / 1.01, 0.8 / 0.99)}
        assert (speed.value, speed.low, speed.high) == pytest.approx(speeds[label])


@pytest.mark.parametrize(
    ("record", "limit", "is_counted"),
    [
        (reaching(1e3), 1e3, True),
        (reaching(1.1e3), 1e3, True),  # the worst of many rows may lie a little above
        (reaching(1.11e3), 1e3, False),
        (replace(NATIVE, errors=None), 1e-9, True),  # of a case that failed
        (reaching(inf), 1e12, False),
        (reaching(inf), inf, True),
    ],
)
def test_records_are_required_up_to_a_condition_number(
    record: Record, limit: float, is_counted: bool
) -> None:
    assert is_required(record, limit) is is_counted


@pytest.mark.parametrize(
    ("conditions", "asked", "levels"),
    [
        ((1.0,), 1e3, (10.0, 1e3)),
        ((1.0, 100.0, 1e5, inf), 1e3, (10.0, 1e3, 1e6, inf)),
        ((1.0, 1e5), 1e4, (10.0, 1e4, 1e6)),
        ((1.0, 100.0), inf, (10.0, 1e3, inf)),
        ((1.0, 100.0, *[1e5] * 19_999), 1e3, (1e3, inf)),  # of many records only two levels
    ],
)
def test_only_requirements_that_can_differ_are_offered(
    conditions: tuple[float, ...], asked: float, levels: tuple[float, ...]
) -> None:
    records = {condition: reaching(condition) for condition in conditions}
    assert requirement_levels([records[condition] for condition in conditions], asked) == levels


def test_the_answers_to_all_requirements_are_those_that_choose_gives() -> None:
    answers = answers_of(LOST_FROM_1E6)
    found = [
        (answer.requirements.max_condition, answer.is_default, answer.choices[0].best)
        for answer in answers
    ]
    assert [(level, is_default, best and best.label) for level, is_default, best in found] == [
        (10.0, False, "native"),
        (1e3, True, "native"),
        (1e6, False, "exact"),
    ]
    for answer in answers:
        alone = choice_among(*LOST_FROM_1E6, requirements=answer.requirements)
        assert alone.ranking == answer.choices[0].ranking


def test_a_condition_number_is_written_plainly() -> None:
    texts = [condition_text(condition) for condition in (1.0, 212.3, 10_456.0, 1.05e7)]
    assert texts == ["1", "212", "10,500", "1.05e7"]

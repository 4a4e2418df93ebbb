"""Records -> choice: scenarios, files, filters, refusals, and which candidates are eligible."""

from dataclasses import replace
from math import inf, nan

import pytest
from factories.choice_records import choice_among, choices_among, failed, ran, vacuous, with_latency
from factories.compared_runs import results_of
from factories.results_factory import make_run

from harness.records import (
    Direction,
    Estimate,
    Mode,
    Record,
    Status,
)
from harness.selection import Accuracy, Choice, Requirements, answers_of, choose, requirement_levels

NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)
BOTH = [NATIVE, QUICK]
OTHER_SHAPE = {"shape": (16, 512)}
OTHER = "pytest-benchmark:perf_counter"


def label_of(choice: Choice) -> str | None:
    return choice.best and choice.best.label


def imported(record: Record, seconds: float) -> Record:
    time = Estimate(value=seconds, low=0.9 * seconds, high=1.1 * seconds)
    foreign = {"timer": OTHER, "reference": None, "reference_ratio": None}
    return with_latency(record, per_call_s=time, **foreign)


# --- scenarios and files --------------------------------------------------------------------------


def test_each_shape_dtype_device_direction_and_setting_is_a_scenario() -> None:
    axes: list[dict[str, object]] = [
        {},
        {"shape": (8, 16)},
        {"dtype": "bfloat16", "param_dtype": "bfloat16"},
        {"threads": 4, "param_dtype": "float64"},
    ]
    found = choices_among(*(ran("native", 1.0, **values) for values in axes))
    assert [choice.scenario.text for choice in found.choices] == [
        "64x768 float32 cpu forward",
        "8x16 float32 cpu forward",
        "64x768 bfloat16 cpu forward",
        "64x768 float32 cpu forward params=float64 threads=4",
    ]


@pytest.mark.parametrize(
    ("later", "best"), [(ran("quick", 2.0), "native"), (imported(QUICK, 1.0), "quick")]
)
def test_of_a_case_in_two_files_the_later_of_its_timer_counts(later: Record, best: str) -> None:
    (choice,) = choose([results_of(*BOTH), results_of(later)]).choices
    assert label_of(choice) == best


@pytest.mark.parametrize(
    ("records", "run", "note"),
    [
        (BOTH, {}, None),
        ([NATIVE, imported(QUICK, 1.0)], {}, f"cases by timer: layernorm-bench 1, {OTHER} 1"),
        (BOTH, {"planned": 40, "wall_s": None}, "2 of its 40 cases"),
    ],
)
def test_what_limits_a_choice_is_noted(
    records: list[Record], run: dict[str, object], note: str | None
) -> None:
    runs = (make_run(**({"planned": len(records)} | run)),)
    notes = choose([replace(results_of(*records), runs=runs)]).notes
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]


def test_a_filter_keeps_the_evidence_of_other_shapes() -> None:
    held = ran("native", distribution="offset_1e4", condition=1e4, **OTHER_SHAPE)
    records = [*BOTH, held, vacuous("quick", **OTHER_SHAPE)]
    (choice,) = choices_among(*records, wanted={"shape": [(64, 768)]}).choices
    assert label_of(choice) == "native"


# --- eligible candidates --------------------------------------------------------------------------

UNIFORM, HELD = ran("native", distribution="uniform"), ran("native", distribution="offset_1e4")


def lost(**axes: object) -> list[Record]:
    """Errors only: native is ok on offset_1e4, and quick is out of guarantee."""
    held = ran("native", distribution="offset_1e4", condition=1e4, **axes)
    return [held, vacuous("quick", **axes)]


OF_ITS_OWN = [ran(name, distribution="offset_1e4") for name in ("native", "quick")]


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        # a case that only another candidate can do disqualifies
        ("wrong", [*BOTH, UNIFORM, ran("quick", distribution="uniform", status=Status.WRONG)]),
        ("out_of_guarantee", [*BOTH, HELD, vacuous("quick")]),
        ("unverified", [*BOTH, ran("native", distribution="constant")]),
        *(
            (status, [*BOTH, UNIFORM, failed("quick", status, distribution="uniform")])
            for status in Status
            if not status.is_measured
        ),
        # one that no candidate can do disqualifies none
        (None, [*BOTH, vacuous("native"), vacuous("quick")]),
        (None, [*BOTH, *(failed(one, Status.UNSUPPORTED, seed=1) for one in ("native", "quick"))]),
        # evidence: records of another shape, if its own distributions do not include it
        ("out_of_guarantee", [*BOTH, *lost(**OTHER_SHAPE)]),
        (None, [*BOTH, *OF_ITS_OWN, *lost(**OTHER_SHAPE)]),
        # training is none for a forward
        (None, [*BOTH, *lost(direction=Direction.BACKWARD, **OTHER_SHAPE)]),
        ("out_of_guarantee", [*BOTH, *lost(**OTHER_SHAPE, layout="padded")]),
        # another dtype or device is none
        *(
            (None, [*BOTH, *lost(**OTHER_SHAPE, **{axis: value})])
            for axis, value in (("dtype", "float64"), ("device", "cuda"))
        ),
        # where compiled code was not tried, its eager form is evidence
        ("out_of_guarantee", [NATIVE, ran("quick", 0.5, mode=Mode.COMPILED), *lost(**OTHER_SHAPE)]),
        # times
        ("untimed", [NATIVE, ran("quick")]),
        ("invalid_time", [NATIVE, ran("quick", 0.1, is_valid=False)]),
        *(("invalid_time", [NATIVE, ran("quick", value, interval=(value, value))])
          for value in (nan, inf, 0.0, -1.0)),
        ("too_few_samples", [NATIVE, ran("quick", 0.1, interval=(0.0, inf))]),
        (None, [ran("native", 0.0, interval=(0.0, 0.0)), QUICK]),  # of the reference
    ],
)  # fmt: skip
def test_a_candidate_is_chosen_unless_a_rule_disqualifies_it(
    kind: str | None, records: list[Record]
) -> None:
    choice = choice_among(*records)
    (quick,) = (one for one in choice.candidates if one.implementation == "quick")
    assert (quick.disqualification and quick.disqualification.kind) == kind
    assert choice.best.implementation == ("native" if kind else "quick")


ADMITTED = Requirements(accuracy=Accuracy.INACCURATE, max_condition=inf)
IN_BFLOAT16 = ran("quick", distribution="uniform", status=Status.INACCURATE, error_ulp=21.9)


@pytest.mark.parametrize(
    ("by_default", "admitted", "records"),
    [
        ("inaccurate", None, []),
        # what the option does not remove is the reason
        ("wrong", "wrong", [ran("quick", seed=1, status=Status.WRONG)]),
        ("out_of_guarantee", "out_of_guarantee", [HELD, vacuous("quick")]),
        # the narrower bound of native covers it
        ("inaccurate", "out_of_guarantee",
         [replace(vacuous("native"), status=Status.INACCURATE), vacuous("quick")]),
    ],
)  # fmt: skip
def test_an_inaccurate_candidate_is_eligible_only_if_that_is_accepted(
    by_default: str, admitted: str | None, records: list[Record]
) -> None:
    for requirements, kind in ((None, by_default), (ADMITTED, admitted)):
        choice = choice_among(*BOTH, UNIFORM, IN_BFLOAT16, *records, requirements=requirements)
        (quick,) = (one for one in choice.candidates if one.label == "quick")
        assert (quick.disqualification and quick.disqualification.kind) == kind


# --- requirements ---------------------------------------------------------------------------------


def lost_at(condition: float) -> list[Record]:
    """Return records in which quick is out of guarantee from a condition number on."""
    held = ran("native", condition=condition, distribution="offset_1e4")
    return [*BOTH, held, vacuous("quick", condition)]


ROUNDED = [ran("native", 1.0, error_ulp=2.0), ran("quick", 0.5, error_ulp=2.1)]
INACCURATE = [replace(one, status=Status.INACCURATE) for one in BOTH]
TIED = ran("quick", 0.99, spread=0.02, status=Status.INACCURATE, error_ulp=21.9)


@pytest.mark.parametrize(
    ("best", "records", "required"),
    [
        ("quick", ROUNDED, Requirements()),
        ("quick", ROUNDED, Requirements(max_error_ulp=2.1)),
        ("native", ROUNDED, Requirements(max_error_ulp=2.0)),
        *((None, [ran("native", 1.0, error_ulp=bad)], Requirements(max_error_ulp=1e300))
          for bad in (inf, nan)),
        # records beyond the required condition are ignored; the worst row may lie a little above
        *((best, lost_at(condition), Requirements(max_condition=limit))
          for best, condition, limit in (
              ("quick", 1e4, 1e3), ("native", 1e4, 1e4), ("native", 1.1e3, 1e3),
              ("quick", 1.11e3, 1e3), ("quick", inf, 1e12), ("native", inf, inf))),
        # inaccurate candidates have to be accepted, and lose a tie with an accurate one
        (None, INACCURATE, Requirements()),
        ("quick", INACCURATE, ADMITTED),
        ("native", [NATIVE, TIED], ADMITTED),
        # a disqualified candidate is not chosen even alone
        (None, [replace(NATIVE, status=Status.OUT_OF_GUARANTEE)], Requirements()),
    ],
)  # fmt: skip
def test_results_have_to_be_as_accurate_as_required(
    best: str | None, records: list[Record], required: Requirements
) -> None:
    assert label_of(choice_among(*records, requirements=required)) == best


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
        assert one.best.label == label
        speed = one.speed(one.best)
        assert speed.value == pytest.approx({"native": 1.0, "exact": 0.8}[label])


@pytest.mark.parametrize(
    ("conditions", "asked", "levels"),
    [
        ((1.0,), 1e3, (10.0, 1e3)),
        ((1.0, 100.0, 1e5, inf), 1e3, (10.0, 1e3, 1e6, inf)),
        ((1.0, 100.0, *[1e5] * 19_999), 1e3, (1e3, inf)),  # of many records only two levels
    ],
)
def test_only_requirements_that_can_differ_are_offered(
    conditions: tuple[float, ...], asked: float, levels: tuple[float, ...]
) -> None:
    records = {condition: reaching(condition) for condition in conditions}
    assert requirement_levels([records[condition] for condition in conditions], asked) == levels


def test_the_answers_to_all_requirements_are_those_that_choose_gives() -> None:
    found = []
    for answer in answers_of(LOST_FROM_1E6):
        (choice,) = answer.choices
        found.append((answer.requirements.max_condition, answer.is_default, label_of(choice)))
        alone = choice_among(*LOST_FROM_1E6, requirements=answer.requirements)
        assert alone.ranking == choice.ranking
    assert found == [(10.0, False, "native"), (1e3, True, "native"), (1e6, False, "exact")]

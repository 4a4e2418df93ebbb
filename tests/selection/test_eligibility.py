"""Which candidates are eligible: for each rule records that it alone decides."""

from dataclasses import replace
from math import inf, nan

import pytest
from factories.choice_records import choice_among, chosen, failed, ran, vacuous

from harness.records import Direction, Mode, Record, Status
from harness.selection import Accuracy, Requirements

NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)
BOTH = [NATIVE, QUICK]
UNIFORM, HELD = ran("native", distribution="uniform"), ran("native", distribution="offset_1e4")
ELSEWHERE = {"shape": (16, 512)}
TRAINING = {"direction": Direction.FORWARD_BACKWARD}


def lost(**axes: object) -> list[Record]:
    """Errors only: native is ok on offset_1e4, and quick is out of guarantee."""
    held = ran("native", distribution="offset_1e4", condition=1e4, **axes)
    return [held, vacuous("quick", **axes)]


OF_ITS_OWN = [ran(name, distribution="offset_1e4") for name in ("native", "quick")]
TIMES = {
    "untimed": [ran("quick")],
    "invalid_time": [
        ran("quick", 0.1, is_valid=False),
        *(ran("quick", value, interval=(value, value)) for value in (nan, inf, 0.0, -1.0)),
        ran("quick", 0.5, interval=(nan, nan)),
    ],
    "too_few_samples": [
        ran("quick", ratio, interval=(0.0, inf)) for ratio in (0.1, 585.0)
    ],
}  # fmt: skip


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
        (
            None,
            [*BOTH, *(failed(one, Status.UNSUPPORTED, seed=1) for one in ("native", "quick"))],
        ),
        # evidence: records of another shape, if its own distributions do not include it
        ("out_of_guarantee", [*BOTH, *lost(**ELSEWHERE)]),
        (None, [*BOTH, *OF_ITS_OWN, *lost(**ELSEWHERE)]),
        # a forward is evidence for training, and training is none for a forward
        (
            "out_of_guarantee",
            [ran("native", 1.0, **TRAINING), ran("quick", 0.5, **TRAINING), *lost(**ELSEWHERE)],
        ),
        (None, [*BOTH, *lost(direction=Direction.BACKWARD, **ELSEWHERE)]),
        # another dtype, device or layout is none, nor is a failure at another shape
        *(
            (None, [*BOTH, *lost(**ELSEWHERE, **{axis: value})])
            for axis, value in (("dtype", "float64"), ("device", "cuda"), ("layout", "padded"))
        ),
        (
            None,
            [
                *BOTH,
                ran("native", distribution="uniform", **ELSEWHERE),
                failed("quick", Status.CRASHED, distribution="uniform", **ELSEWHERE),
            ],
        ),
        # where compiled code was not tried, its eager form is evidence
        (
            "out_of_guarantee",
            [NATIVE, ran("quick", 0.5, mode=Mode.COMPILED), *lost(**ELSEWHERE)],
        ),
        # times
        *((kind, [NATIVE, record]) for kind, records in TIMES.items() for record in records),
        (None, [ran("native", 0.0, interval=(0.0, 0.0)), QUICK]),  # of the reference
    ],
)  # fmt: skip
def test_a_candidate_is_chosen_unless_a_rule_disqualifies_it(
    kind: str | None, records: list[Record]
) -> None:
    choice = choice_among(*records)
    (quick,) = (one for one in choice.candidates if one.implementation == "quick")
    assert (quick.disqualification and quick.disqualification.kind) == kind
    assert choice.best is not None
    assert choice.best.implementation == ("native" if kind else "quick")


@pytest.mark.parametrize(
    "only",
    [
        replace(NATIVE, status=Status.OUT_OF_GUARANTEE),
        replace(NATIVE, errors=None),
        ran("once", 0.5, interval=(0.0, inf)),
    ],
    ids=["out of guarantee everywhere", "no error measured", "one epoch"],
)
def test_a_disqualified_candidate_is_not_chosen_even_alone(only: Record) -> None:
    assert chosen(only) is None


# --- requirements ---------------------------------------------------------------------------------

ROUNDED = [ran("native", 1.0, error_ulp=2.0), ran("quick", 0.5, error_ulp=2.1)]
SHIFTED = [NATIVE, ran("native", distribution="offset_1e4", condition=1e4), QUICK, vacuous("quick")]


@pytest.mark.parametrize(
    ("best", "records", "required"),
    [
        ("quick", ROUNDED, Requirements()),
        ("quick", ROUNDED, Requirements(max_error_ulp=2.1)),
        ("native", ROUNDED, Requirements(max_error_ulp=2.0)),
        *((None, [ran("native", 1.0, error_ulp=bad)], Requirements(max_error_ulp=1e300))
          for bad in (inf, nan)),
        ("native", [NATIVE, QUICK, replace(ran("quick", seed=1), errors=None)],
         Requirements(max_error_ulp=2.0)),
        # records beyond the required condition are ignored
        ("quick", SHIFTED, Requirements(max_condition=1e3)),
        ("native", SHIFTED, Requirements(max_condition=1e4)),
    ],
)  # fmt: skip
def test_results_have_to_be_as_accurate_as_required(
    best: str | None, records: list[Record], required: Requirements
) -> None:
    assert chosen(*records, requirements=required) == best


ADMITTED = Requirements(accuracy=Accuracy.INACCURATE, max_condition=inf)
IN_BFLOAT16 = ran("quick", distribution="uniform", status=Status.INACCURATE, error_ulp=21.9)
CRASHED = [ran("native", seed=1), failed("quick", Status.CRASHED, seed=1)]


@pytest.mark.parametrize(
    ("by_default", "admitted", "records"),
    [
        ("inaccurate", None, []),
        # what the option does not remove is the reason
        ("wrong", "wrong", [ran("quick", seed=1, status=Status.WRONG)]),
        ("out_of_guarantee", "out_of_guarantee", [HELD, vacuous("quick")]),
        ("crashed", "crashed", CRASHED),
        # no bound covers the point for any candidate
        ("inaccurate", None, [vacuous("native"), vacuous("quick")]),
        # the narrower bound of native covers it
        (
            "inaccurate",
            "out_of_guarantee",
            [replace(vacuous("native"), status=Status.INACCURATE), vacuous("quick")],
        ),
    ],
)
def test_an_inaccurate_candidate_is_eligible_only_if_that_is_accepted(
    by_default: str, admitted: str | None, records: list[Record]
) -> None:
    for requirements, kind in ((None, by_default), (ADMITTED, admitted)):
        choice = choice_among(*BOTH, UNIFORM, IN_BFLOAT16, *records, requirements=requirements)
        (quick,) = (one for one in choice.candidates if one.label == "quick")
        assert (quick.disqualification and quick.disqualification.kind) == kind


def test_a_choice_among_inaccurate_candidates_needs_that_to_be_accepted() -> None:
    records = [replace(one, status=Status.INACCURATE) for one in BOTH]
    assert chosen(*records) is None
    assert chosen(*records, requirements=ADMITTED) == "quick"
    # a tie with an accurate one is decided by accuracy
    tied = ran("quick", 0.99, spread=0.02, status=Status.INACCURATE, error_ulp=21.9)
    assert chosen(NATIVE, tied, requirements=ADMITTED) == "native"

"""Which scenarios a run holds, and which records are evidence for each."""

import pytest
from factories.choice_records import choices_among, chosen, failed, ran, vacuous

from harness.records import Direction, Mode, Record, Status

NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)
ELSEWHERE = {"shape": (16, 512)}
TRAINING = {"direction": Direction.FORWARD_BACKWARD}


def lost(**axes: object) -> list[Record]:
    """Errors only: native is ok on offset_1e4, and quick is out of guarantee."""
    held = ran("native", distribution="offset_1e4", condition=1e4, **axes)
    return [held, vacuous("quick", **axes)]


def test_records_of_another_shape_can_disqualify() -> None:
    assert chosen(NATIVE, QUICK, *lost(**ELSEWHERE)) == "native"


def test_records_of_the_scenario_itself_take_precedence() -> None:
    own = [ran(name, distribution="offset_1e4", condition=1e4) for name in ("native", "quick")]
    assert chosen(NATIVE, QUICK, *own, *lost(**ELSEWHERE)) == "quick"


def test_a_forward_is_evidence_for_training_and_training_is_none_for_a_forward() -> None:
    trained = [ran("native", 1.0, **TRAINING), ran("quick", 0.5, **TRAINING)]
    assert chosen(*trained, *lost(**ELSEWHERE)) == "native"
    assert chosen(NATIVE, QUICK, *lost(direction=Direction.BACKWARD, **ELSEWHERE)) == "quick"


@pytest.mark.parametrize("axes", [{"dtype": "float64"}, {"device": "cuda"}, {"layout": "padded"}])
def test_another_dtype_device_or_layout_is_no_evidence(axes: dict[str, object]) -> None:
    assert chosen(NATIVE, QUICK, *lost(**ELSEWHERE, **axes)) == "quick"


def test_where_compiled_code_was_not_tried_its_eager_form_is_evidence() -> None:
    compiled = ran("quick", 0.5, mode=Mode.COMPILED)
    assert chosen(NATIVE, compiled, *lost(**ELSEWHERE)) == "native"


def test_a_failure_at_another_shape_is_no_evidence() -> None:
    crash = failed("quick", Status.CRASHED, distribution="uniform", **ELSEWHERE)
    held = ran("native", distribution="uniform", **ELSEWHERE)
    assert chosen(NATIVE, QUICK, held, crash) == "quick"


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

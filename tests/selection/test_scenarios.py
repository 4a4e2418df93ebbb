"""What is asked of a run, which records bear upon it, and runs that cannot answer."""

from dataclasses import replace

import pytest
from choice_records import (
    HERE,
    OTHER_MACHINE,
    choices_among,
    chosen,
    failed,
    ran,
    results_of,
    vacuous,
)
from results_factory import make_run

from harness.records import Direction, Mode, Record, Status
from harness.selection.choose import NoTimesError, NotInRunError, ScenarioFilter, choose
from harness.selection.ranking import Decider
from harness.store import Results

NATIVE = ran("native", 1.0)


# --- evidence from elsewhere ----------------------------------------------------------------------

SMALL = {"shape": (16, 512)}


def elsewhere(**axes: object) -> list[Record]:
    """Errors alone: native holds on offset_1e4 and quick does not."""
    held = ran("native", distribution="offset_1e4", condition=1e4, **axes)
    return [held, vacuous("quick", **axes)]


def test_what_was_lost_at_another_shape_speaks_against_this_one() -> None:
    assert chosen(NATIVE, ran("quick", 0.5), *elsewhere(**SMALL)) == "native"


def test_own_evidence_is_not_overruled_by_another_shape() -> None:
    own = [ran(name, distribution="offset_1e4", condition=1e4) for name in ("native", "quick")]
    assert chosen(NATIVE, ran("quick", 0.5), *own, *elsewhere(**SMALL)) == "quick"


def test_a_forward_speaks_of_training_and_training_not_of_a_forward() -> None:
    training = {"direction": Direction.FORWARD_BACKWARD}
    trained = [ran("native", 1.0, **training), ran("quick", 0.5, **training)]
    assert chosen(*trained, *elsewhere(**SMALL)) == "native"
    backward = elsewhere(direction=Direction.BACKWARD, **SMALL)
    assert chosen(NATIVE, ran("quick", 0.5), *backward) == "quick"


@pytest.mark.parametrize("axes", [{"dtype": "float64"}, {"device": "cuda"}, {"layout": "padded"}])
def test_another_dtype_device_or_layout_says_nothing(axes: dict[str, object]) -> None:
    assert chosen(NATIVE, ran("quick", 0.5), *elsewhere(**SMALL, **axes)) == "quick"


def test_what_compiled_code_was_not_tried_on_its_source_answers_for() -> None:
    compiled = ran("quick", 0.5, mode=Mode.COMPILED)
    assert chosen(NATIVE, compiled, *elsewhere(**SMALL)) == "native"


def test_a_failure_at_another_shape_says_nothing() -> None:
    crash = failed("quick", Status.CRASHED, distribution="uniform", **SMALL)
    held = ran("native", distribution="uniform", **SMALL)
    assert chosen(NATIVE, ran("quick", 0.5), held, crash) == "quick"


# --- scenarios ------------------------------------------------------------------------------------


def test_each_shape_dtype_device_and_direction_is_a_question_of_its_own() -> None:
    axes: list[dict[str, object]] = [
        {},
        {"shape": (8, 16)},
        {"dtype": "bfloat16", "param_dtype": "bfloat16"},
        {"device": "cuda"},
        {"direction": Direction.BACKWARD},
    ]
    found = choices_among(*(ran("native", 1.0, **each) for each in axes))
    assert [each.scenario.words for each in found.choices] == [
        "64x768 float32 cpu forward",
        "8x16 float32 cpu forward",
        "64x768 bfloat16 cpu forward",
        "64x768 float32 cuda forward",
        "64x768 float32 cpu backward",
    ]


def test_unusual_settings_are_questions_of_their_own_and_named() -> None:
    found = choices_among(NATIVE, ran("native", 1.0, threads=4, param_dtype="float64"))
    assert found.choices[1].scenario.words == (
        "64x768 float32 cpu forward params=float64 threads=4"
    )


def test_two_machines_are_chosen_for_apart_and_said_to_be() -> None:
    there = OTHER_MACHINE.fingerprint
    found = choices_among(
        NATIVE,
        ran("quick", 0.5),
        ran("native", 1.0, environment=there),
        ran("slow", 2.0, environment=there),
    )
    assert [
        (each.scenario.environment, each.best and each.best.label) for each in found.choices
    ] == [
        (HERE.fingerprint, "quick"),
        (there, "native"),
    ]
    assert any("2 environments" in each for each in found.notes)


def test_a_case_of_two_files_counts_once_and_the_later_one_is_taken() -> None:
    files = [results_of([NATIVE, ran("quick", 0.5)]), results_of([ran("quick", 2.0)])]
    (choice,) = choose(files).choices
    assert choice.best is not None
    assert choice.best.label == "native"


def test_filters_leave_the_evidence_of_other_shapes_in() -> None:
    wanted = ScenarioFilter(shapes=((64, 768),))
    found = choices_among(NATIVE, ran("quick", 0.5), *elsewhere(**SMALL), wanted=wanted)
    assert [each.best.label for each in found.choices if each.best] == ["native"]


def test_a_filter_that_matches_nothing_says_what_there_is() -> None:
    with pytest.raises(NotInRunError, match="there is shape: 64x768; dtype: float32; device"):
        choices_among(NATIVE, wanted=ScenarioFilter(dtypes=("float16",)))


def test_of_several_values_the_one_that_is_not_there_is_named() -> None:
    found = choices_among(NATIVE, wanted=ScenarioFilter(dtypes=("float32", "float31")))
    assert found.notes[0] == "no case of dtype float31 was measured; did you mean 'float32'?"


# --- runs that cannot answer ----------------------------------------------------------------------


def test_only_native_is_chosen_and_said_to_be_no_choice() -> None:
    found = choices_among(NATIVE)
    assert found.choices[0].ranking.decider is Decider.ONLY
    assert "native alone was measured, so there was nothing to choose between" in found.notes


def test_a_run_without_a_case_was_not_measured() -> None:
    with pytest.raises(NoTimesError, match="no case at all"):
        choose([Results(records=(), runs=(), environments={})])


def test_a_run_of_failures_alone_was_not_measured_and_says_how_they_ended() -> None:
    with pytest.raises(NoTimesError, match=r"2 crashed.*such as native/.*SIGSEGV"):
        choices_among(*(failed(name, Status.CRASHED, "SIGSEGV") for name in ("native", "quick")))


@pytest.mark.parametrize("records", [[ran("native")], [ran("native", 0.1, is_valid=False)]])
def test_a_run_without_a_time_that_counts_was_not_measured(records: list[Record]) -> None:
    with pytest.raises(NoTimesError, match="--measure errors,latency,memory"):
        choices_among(*records)


def test_what_was_measured_for_errors_alone_is_named_and_no_question() -> None:
    found = choices_among(NATIVE, ran("native", **SMALL))
    assert len(found.choices) == 1
    assert [each.words for each in found.untimed] == ["16x512 float32 cpu forward"]


def test_a_question_that_everyone_failed_has_the_answer_none() -> None:
    found = choices_among(NATIVE, failed("native", Status.CRASHED, shape=(8, 8)))
    assert [each.best is None for each in found.choices] == [False, True]
    assert not found.is_complete


def test_a_run_that_was_cut_short_is_said_to_be() -> None:
    short = replace(results_of([NATIVE]), runs=(make_run(planned=40, wall_s=None),))
    assert any("cut short: 1 of its 40 cases" in each for each in choose([short]).notes)

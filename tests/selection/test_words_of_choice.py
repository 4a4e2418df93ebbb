"""What a choice says of itself and of the alternatives."""

from dataclasses import replace
from math import inf

from choice_records import choice_among, choices_among, failed, ran, vacuous

from harness.records import Direction, MeasurementWarning, Mode, Record, Status, WarningKind
from harness.selection.choose import Requirements
from harness.selection.text import answer_words, caveats, price
from harness.selection.words_of_evidence import evidence_lines

NATIVE = ran("native", 1.0)


def price_of(name: str, *records: Record, requirements: Requirements | None = None) -> str:
    choice = choice_among(*records, requirements=requirements)
    (candidate,) = (each for each in choice.candidates if each.label == name)
    return price(candidate, choice)


def reason(*records: Record, requirements: Requirements | None = None) -> str:
    return answer_words(choice_among(*records, requirements=requirements))


# --- the price of each alternative ----------------------------------------------------------------


def test_who_is_faster_and_loses_digits_is_told_from_which_condition_on() -> None:
    held = [
        ran("one_pass", distribution="offset_1e2", condition=212.0),
        ran("native", distribution="offset_1e2", condition=212.0),
        ran("native", distribution="offset_1e4", condition=1e4),
    ]
    said = price_of("one_pass", NATIVE, ran("one_pass", 0.96), vacuous("one_pass"), *held)
    assert said == "is 4 % faster and loses all digits beyond condition 212 (offset_1e4: 1e+04)"


def test_how_many_digits_are_left_is_said_and_where_it_gets_worse() -> None:
    distributions = {"offset_1e3": 1e3, "offset_1e4": 1e4}
    held = [ran("native", distribution=each, condition=k) for each, k in distributions.items()]
    bad = [vacuous("quick", 1e3, lost=0.05, distribution="offset_1e3"), vacuous("quick", lost=inf)]
    assert price_of("quick", NATIVE, ran("quick", 0.5), *held, *bad) == (
        "is 2 times as fast and keeps one digit beyond condition 1 (offset_1e3: 1e+03) "
        "and gives NaN or infinity on offset_1e4"
    )


def test_what_was_seen_at_another_shape_or_run_otherwise_is_said_to_be() -> None:
    there = {"shape": (16, 512), "distribution": "offset_1e4", "condition": 1e4}
    training = {"direction": Direction.FORWARD_BACKWARD}
    said = price_of(
        "quick (compiled)",
        ran("native", 1.0, **training),
        ran("quick", 0.5, mode=Mode.COMPILED, **training),
        ran("native", **there),
        vacuous("quick", **there),
    )
    assert "(offset_1e4 run eager at 16x512 in forward: 1e+04)" in said


def test_who_is_wrong_is_said_to_be_with_the_reason() -> None:
    bad = ran("quick", 0.5, status=Status.WRONG, reason="y is 9 ulp off")
    assert price_of("quick", NATIVE, bad) == (
        "is 2 times as fast and is wrong on normal: y is 9 ulp off"
    )


def test_who_is_slower_is_told_by_how_much() -> None:
    assert price_of("slow", NATIVE, ran("slow", 1.12)) == "is 12 % slower"
    assert price_of("slow", NATIVE, ran("slow", 2.1)) == "is 2.1 times as slow"


def test_who_lost_a_tie_is_told_by_what() -> None:
    exact = ran("exact", 1.0, error_ulp=0.5, peak_bytes=1024)
    said = price_of("quick", exact, ran("quick", 0.99, error_ulp=3.0))
    assert said == (
        "is as fast within the intervals and is less accurate: 3 ulp against 0.5 ulp on normal"
    )
    said = price_of("fat", exact, ran("fat", 0.99, error_ulp=0.5, peak_bytes=4096))
    assert said == ("is as fast within the intervals and takes more memory: 4 KiB against 1 KiB")


def test_who_was_timed_once_is_told_to_be_no_more_than_that() -> None:
    said = price_of("once", NATIVE, ran("once", 585.0, interval=(0.0, inf), error_ulp=0.5))
    assert said == (
        "took 585 times as long and was timed too few times to tell how far off that is: raise "
        "seconds_per_case, or take --processes 5"
    )


def test_a_wide_interval_is_told_and_not_called_as_fast() -> None:
    wide = ran("exact", 2.0, interval=(0.82, 4.9), error_ulp=0.5)
    told = "may be as fast: its interval is 0.82 to 4.9 times that of native"
    assert price_of("exact", NATIVE, wide) == told
    apart = ran("slow", 1.5)  # comes before it, and is not what is in warning
    assert reason(NATIVE, apart, wide) == f"the fastest by its estimate; exact {told}"


def test_who_may_be_as_fast_is_not_among_those_that_are() -> None:
    wide = ran("wide", 2.0, interval=(0.82, 4.9))
    said = reason(ran("quick", 0.99, error_ulp=3.0), NATIVE, wide)
    assert said == "as fast as quick within the intervals, and more accurate"


def test_who_has_no_gradient_is_said_to_have_none() -> None:
    declined = failed("fused", Status.UNSUPPORTED, "fused has no gradient")
    assert price_of("fused", NATIVE, declined) == "has no gradient"


def test_who_crashed_is_said_not_to_be_measured() -> None:
    crashed = failed("fused", Status.CRASHED, "ended by signal 11")
    assert price_of("fused", NATIVE, crashed) == (
        "was not measured on normal: crashed: ended by signal 11"
    )


def test_a_time_that_is_not_believed_is_said_to_be_with_the_doubt() -> None:
    warning = MeasurementWarning(
        kind=WarningKind.FASTER_THAN_COPY, advice="9 times as fast as a copy"
    )
    quick = replace(ran("quick", 0.1, is_valid=False), warnings=(warning,))
    assert price_of("quick", NATIVE, quick) == (
        "has no time to be believed: 9 times as fast as a copy"
    )


def test_who_was_not_verified_is_told_on_what() -> None:
    held = ran("native", distribution="constant")
    assert price_of("quick", NATIVE, held, ran("quick", 0.5)) == (
        "is 2 times as fast and was not verified on constant, where others hold"
    )


def test_who_is_less_accurate_than_asked_is_told_where_and_how_far_it_is_not() -> None:
    worse = ran("quick", error_ulp=90.0, distribution="offset_1e2", condition=100.0)
    held = ran("native", distribution="offset_1e2", condition=100.0)
    said = price_of(
        "quick", NATIVE, held, ran("quick", 0.5), worse, requirements=Requirements(max_error_ulp=2.0)
    )
    assert said == (
        "is 2 times as fast and is 90 ulp off on offset_1e2, "
        "and within what is allowed up to condition 1"
    )


# --- the choice itself ----------------------------------------------------------------------------


def test_the_fastest_names_who_is_next_and_by_how_much() -> None:
    assert reason(NATIVE, ran("quick", 0.5)) == "the fastest; native is 2 times as slow"


def test_a_tie_says_with_whom_and_what_broke_it() -> None:
    said = reason(ran("quick", 0.99, error_ulp=3.0), NATIVE)
    assert said == "as fast as quick within the intervals, and more accurate"


def test_none_is_an_answer_with_its_reason() -> None:
    wrong = ran("quick", 0.5, status=Status.WRONG)
    assert reason(wrong, failed("native", Status.CRASHED)) == (
        "none of 2 is to be relied on: 1 wrong, 1 crashed"
    )


def test_if_none_is_accurate_enough_the_nearest_is_named() -> None:
    records = (ran("native", 1.0, error_ulp=5.0), ran("quick", 0.5, error_ulp=7.0))
    assert reason(*records, requirements=Requirements(max_error_ulp=1.0)) == (
        "none of 2 is to be relied on: 2 inaccurate; the nearest, native, is 5 ulp off"
    )


def test_where_its_promise_stops_is_said_of_the_chosen_one() -> None:
    choice = choice_among(NATIVE, vacuous("native"))
    assert list(caveats(choice)) == [
        "promises nothing, as none does, beyond condition 1 (offset_1e4: 1e+04)"
    ]


def test_what_the_chosen_one_was_not_verified_on_is_counted() -> None:
    elsewhere = ran("other", distribution="uniform", shape=(16, 512))
    assert list(caveats(choice_among(NATIVE, elsewhere))) == ["verified on 1 of 2 distributions"]


def test_doubts_about_the_time_of_the_chosen_one_are_named() -> None:
    doubted = replace(
        NATIVE, warnings=(MeasurementWarning(kind=WarningKind.NOT_CONVERGED, advice="wait"),)
    )
    assert list(caveats(choice_among(doubted))) == ["warning: not converged"]


# --- evidence -------------------------------------------------------------------------------------


def test_the_evidence_names_run_time_machine_and_torch() -> None:
    lines = "\n".join(evidence_lines(choices_among(NATIVE), ["a.parquet"]))
    assert "a.parquet: synthetic of 2001-02-03T04:05:06+00:00" in lines
    assert "Imaginary CPU 9000" in lines
    assert "torch 2.13.0" in lines


def test_intervals_over_one_process_are_said_to_be() -> None:
    one = "\n".join(evidence_lines(choices_among(ran("native", 1.0, processes=1)), ["a"]))
    assert "intervals are over one process" in one
    assert "each counts as 3% wider either way, that of a call over 1 ms as 10%" in one
    five = "\n".join(evidence_lines(choices_among(ran("native", 1.0, processes=5)), ["a"]))
    assert "intervals are over 5 processes or more" in five

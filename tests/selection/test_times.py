"""Which times are compared with each other."""

from dataclasses import replace

from choice_records import chosen, ran

from harness.records import Clock

NATIVE = ran("native", 1.0)


def test_ratios_to_the_reference_are_compared_and_not_seconds() -> None:
    quick = ran("quick", 0.8)
    assert quick.latency is not None
    seconds = replace(quick.latency.per_call_s, value=9.0, low=8.9, high=9.1)
    assert chosen(NATIVE, replace(quick, latency=replace(quick.latency, per_call_s=seconds))) == (
        "quick"
    )


def test_without_a_common_reference_seconds_are_compared() -> None:
    other = ran("other", 2.0)
    assert other.latency is not None
    of_another = replace(other, latency=replace(other.latency, reference="another"))
    assert chosen(NATIVE, of_another) == "native"
    assert chosen(ran("native", 3.0), of_another) == "other"


def test_only_times_on_the_same_inputs_are_compared() -> None:
    distributions = ("normal", "uniform")
    verified = [
        ran(name, distribution=each) for name in ("native", "third") for each in distributions
    ]
    timed = [NATIVE, ran("third", 1.2), ran("quick", 0.5, distribution="uniform"), ran("quick")]
    assert chosen(*verified, *timed) == "native"


def test_times_of_another_clock_are_not_compared() -> None:
    quick = ran("quick", 0.5)
    assert quick.latency is not None
    by_wall = replace(quick, latency=replace(quick.latency, clock=Clock.WALL))
    assert chosen(NATIVE, ran("third", 1.2), by_wall) == "native"

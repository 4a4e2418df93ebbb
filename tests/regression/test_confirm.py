"""Confirming processes, on scripted fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from compared_runs import ScriptedFleet

from harness.records import Case, Measurement, Record
from harness.regression.agreement import CONFIRMING_PROCESSES
from harness.regression.confirm import CONFIRMING, time_again
from harness.run.fleet import Fleet
from harness.run.messages import RunCase


def test_three_processes_start_together_then_two_and_each_ends_before_the_next_one_measures() -> (
    None
):
    noted: list[str] = []

    class Noting(ScriptedFleet):
        def __enter__(self) -> Noting:
            noted.append("start")
            return self

        def __exit__(self, *_: object) -> None:
            noted.append("end")

        def run(
            self, jobs: Sequence[RunCase], timeout_s: float, stop_at: float = float("inf")
        ) -> Iterator[Record]:
            noted.append("measure")
            yield from super().run(jobs, timeout_s, stop_at)

    case = Case(implementation="native", shape=(4, 8))
    found = time_again(
        [RunCase(case, (Measurement.LATENCY,), CONFIRMING)],
        lambda: cast("Fleet", Noting({case.id: 1.25})),
        lambda line: None,
        timeout_s=60.0,
        is_refuted=lambda case, ratios: False,
    )
    assert found == {case.id: [1.25] * CONFIRMING_PROCESSES}
    three, two = ["start"] * 3 + ["measure", "end"] * 3, ["start"] * 2 + ["measure", "end"] * 2
    assert noted == three + two


def test_a_refuted_case_is_not_timed_again() -> None:
    cases = [Case(implementation="native", shape=(4, hidden)) for hidden in (8, 16)]
    lines: list[str] = []
    found = time_again(
        [RunCase(case, (Measurement.LATENCY,), CONFIRMING) for case in cases],
        lambda: cast("Fleet", ScriptedFleet({case.id: 1.25 for case in cases})),
        lines.append,
        timeout_s=60.0,
        is_refuted=lambda case, ratios: len(ratios) == (1 if case == cases[0] else 4),
    )
    assert found == {cases[0].id: [1.25], cases[1].id: [1.25] * 4}
    assert [line.split(", ")[0] for line in lines] == [
        "timing 2 suspects again",
        *["timing 1 suspect again"] * 3,
    ]

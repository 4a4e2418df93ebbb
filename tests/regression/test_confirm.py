"""Confirming processes, on scripted fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from compared_runs import ScriptedFleet

from harness.records import Case, Measurement, Record
from harness.regression.confirm import CONFIRMING, time_again
from harness.regression.latency_test import CONFIRMING_PROCESSES
from harness.run.fleet import Fleet
from harness.run.messages import RunCase


def test_processes_start_together_and_each_ends_before_the_next_one_measures() -> None:
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
    )
    assert found == {case.id: [1.25] * CONFIRMING_PROCESSES}
    assert noted == ["start"] * CONFIRMING_PROCESSES + ["measure", "end"] * CONFIRMING_PROCESSES

"""Two revisions side by side: the requests to the processes, and the changes of their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories.compared_runs import failed, make_case, make_cases, make_latency, make_record

from harness.cases import Planned
from harness.records import Case, Measurement, Memory, Record, Status
from harness.records.refusal import NotMeasuredError
from harness.regression import (
    SCREENING_IN_TURN,
    Change,
    ChangeKind,
    Comparison,
)
from harness.regression.ab import BASE, Bench, ab, time_against_base
from harness.regression.revision import Checkout
from harness.run.fleet import Job

ASKED = (Measurement.ERRORS, Measurement.LATENCY, Measurement.MEMORY)
ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))
CHECKOUT = Checkout(
    repository=Path("/here"), folder=Path("/there"), commit="abc", operators=frozenset()
)
Script = Callable[[Job], Record | None]


@dataclass
class Scripted(AbstractContextManager["Scripted"]):
    """A fleet that answers by a script and notes its jobs; a job of None is never started."""

    script: Script
    asked: list[list[Job]] = field(default_factory=list)
    starts: int = 0

    def __enter__(self) -> Scripted:
        self.starts += 1
        return self

    def __exit__(self, *_: object) -> None:
        return

    @property
    def info(self) -> Any:
        return self

    environment = None

    def run(
        self, jobs: Sequence[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        self.asked.append(list(jobs))
        for job in list(jobs):
            record = self.script(job)
            if record is not None:
                yield replace(record, case=job.case)


def of_base(job: Job) -> bool:
    return job.case.implementation.startswith(BASE)


def right(job: Job, ratio: float = 1.0) -> Record:
    """Answer as a right implementation does."""
    timed = Measurement.LATENCY in job.measurements
    same = replace(job.case, implementation="two_pass")  # errors are made up by the name
    record = make_record(same)
    return replace(record, latency=make_latency((ratio,)) if timed else None)


def compared(
    script: Script = right,
    *cases: Case,
    fresh: Script | None = None,
    lacks: Collection[str] = (),
) -> tuple[Comparison, Scripted, Scripted]:
    """Compare cases with a base of the same names; return the fleets, too."""
    machine, again = Scripted(script), Scripted(fresh or script)
    planned = [Planned(case, ASKED) for case in cases or (ONE,)]
    bench = bench_of(machine, again)
    found = ab(planned, lacks, bench, baseline_name="old", head_name="new")
    return found, machine, again


def bench_of(machine: Any, again: Any) -> Bench:
    return Bench(fleet=machine, make_fleet=lambda: again, checkout=CHECKOUT, timeout_s=1)


def only(script: Script, fresh: Script | None = None) -> Change:
    """Return the change of one case, where another case is unchanged."""
    found, _, _ = compared(
        lambda job: right(job) if job.case.shape == TWO.shape else script(job),
        ONE,
        TWO,
        fresh=fresh,
    )
    return next(change for change in found.changes if change.case == ONE)


# --- requests ------------------------------------------------------------------------------------


def test_base_and_head_run_one_after_the_other_and_then_in_turn() -> None:
    found, machine, again = compared(right, ONE, TWO)
    exact, timed = machine.asked
    assert [(job.case.implementation, job.case.shape) for job in exact] == [
        ("base@two_pass", ONE.shape),
        ("two_pass", ONE.shape),
        ("base@two_pass", TWO.shape),
        ("two_pass", TWO.shape),
    ]
    assert {job.measurements for job in exact} == {(Measurement.ERRORS, Measurement.MEMORY)}
    assert timed == [
        Job(
            case,
            (Measurement.LATENCY,),
            SCREENING_IN_TURN,
            function=time_against_base,
            options=CHECKOUT,
        )
        for case in (ONE, TWO)
    ]
    assert again.starts == 0
    assert found.counts == {ChangeKind.UNCHANGED: 2}
    assert not found.failed


def test_only_suspects_are_timed_again_each_time_in_a_fresh_process() -> None:
    found, _, again = compared(
        lambda job: right(job, 1.5 if job.case == TWO else 1.0), ONE, TWO, THREE
    )
    assert again.starts == 5
    assert [[job.case for job in jobs] for jobs in again.asked] == [[TWO]] * 5
    assert {job.budget.min_epochs for jobs in again.asked for job in jobs} == {12}
    assert found.counts == {ChangeKind.SLOWER: 1, ChangeKind.UNCHANGED: 2}
    assert found.failed


def test_a_case_that_is_wrong_in_one_revision_is_not_timed() -> None:
    found, machine, _ = compared(
        lambda job: replace(right(job), status=Status.WRONG) if of_base(job) else right(job)
    )
    assert machine.asked[1] == []
    assert found.counts == {ChangeKind.IMPROVED: 1}


def test_a_case_that_is_inaccurate_in_both_revisions_is_timed() -> None:
    change = only(lambda job: replace(right(job, 0.5), status=Status.INACCURATE))
    assert (change.kind, change.metric) == (ChangeKind.FASTER, "latency")


def test_a_case_that_is_wrong_in_both_revisions_has_a_note() -> None:
    found, _, _ = compared(lambda job: replace(right(job), status=Status.WRONG))
    assert found.counts == {ChangeKind.UNCHANGED: 1}
    (note,) = found.notes
    assert "1 case" in note


# --- changes -------------------------------------------------------------------------------------


def crashed_in_turn(job: Job) -> Record:
    fell = job.function is time_against_base
    return failed(job.case, reason="it fell") if fell else right(job)


def one_byte_more(job: Job) -> Record:
    memory = Memory(
        peak_extra_bytes=8 if of_base(job) else 9,
        allocated_bytes=8,
        allocations=1,
        saved_bytes=8,
        minimum_bytes=8,
    )
    return replace(right(job), memory=memory)


@pytest.mark.parametrize(
    ("script", "fresh", "kind", "metric", "fact"),
    [
        (partial(right, ratio=0.5), None, ChangeKind.FASTER, "latency", "50 % faster"),
        (
            partial(right, ratio=1.2),
            right,
            *(ChangeKind.INCONCLUSIVE, "latency", "20 % slower"),
        ),
        (
            partial(right, ratio=1.5),
            lambda job: failed(job.case),
            *(ChangeKind.INCONCLUSIVE, "latency", "only 0 of 5 processes"),
        ),
        (crashed_in_turn, None, ChangeKind.INCONCLUSIVE, "latency", "it fell"),
        (
            lambda job: right(job) if of_base(job) else failed(job.case, Status.CRASHED),
            None,
            *(ChangeKind.REGRESSED, "status", "crashed now"),
        ),
        (one_byte_more, None, ChangeKind.REGRESSED, "peak memory", "8 before, 9 now"),
    ],
    ids=["faster", "not confirmed", "crash again", "crash in turn", "crash", "memory"],
)
def test_the_change_of_a_case(
    script: Script, fresh: Script | None, kind: ChangeKind, metric: str, fact: str
) -> None:
    change = only(script, fresh)
    assert (change.kind, change.metric) == (kind, metric)
    assert fact in change.reason


def test_results_that_head_caches_are_detected_when_it_is_timed() -> None:
    def script(job: Job) -> Record:
        wrong = job.function is time_against_base
        return replace(right(job), status=Status.WRONG, reason="stale") if wrong else right(job)

    change = only(script)
    assert (change.kind, change.metric) == (ChangeKind.REGRESSED, "status")
    assert "stale" in change.reason


def test_results_that_both_revisions_cache_are_not_a_change() -> None:
    def script(job: Job) -> Record:
        timed = Measurement.LATENCY in job.measurements
        return replace(right(job), status=Status.WRONG, reason="stale") if timed else right(job)

    assert only(script).kind is ChangeKind.UNCHANGED


def test_suspects_in_all_implementations_are_timed_again() -> None:
    cases = make_cases(36)
    names = {case.implementation for case in cases}
    found, _, again = compared(lambda job: right(job, 1.5), *cases, fresh=right)
    assert len(names) > 1
    assert again.starts == 1  # refuted by the first process
    assert not found.failed


# --- cases without a pair ------------------------------------------------------------------------


def test_a_case_only_in_head_is_run_and_never_fails() -> None:
    lone = replace(THREE, implementation="mine")

    def script(job: Job) -> Record:
        return failed(job.case, Status.WRONG, "why") if job.case == lone else right(job)

    found, machine, _ = compared(script, ONE, lone, lacks={"mine"})
    assert [job.case for job in machine.asked[0] if job.case.shape == THREE.shape] == [lone]
    (change,) = (change for change in found.changes if change.kind is ChangeKind.NEW)
    assert change.reason == "in new only, wrong there: why"
    assert not found.failed


def test_without_a_measured_case_the_comparison_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="unsupported: not here"):
        compared(lambda job: failed(job.case, Status.UNSUPPORTED, "not here"))

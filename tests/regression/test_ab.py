"""Two revisions side by side: the requests to the processes, and the changes of their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories.compared_runs import (
    ScriptedFleet,
    failed,
    make_case,
    make_record,
    with_memory,
)

from harness.cases import Planned
from harness.records import Case, Measurement, Record, Status
from harness.regression import BASE, Bench, ChangeKind, Checkout, Comparison, ab, time_against_base

ASKED = (Measurement.ERRORS, Measurement.LATENCY, Measurement.MEMORY)
ONE, TWO = (make_case(rows=rows) for rows in (1, 2))
CHECKOUT = Checkout(
    repository=Path("/here"), folder=Path("/there"), commit="abc", operators=frozenset()
)
Job = Any
Script = Callable[[Job], Record]


class Scripted(ScriptedFleet):
    """A fleet that answers by a script and notes its jobs."""

    def __init__(self, script: Script) -> None:
        super().__init__({})
        self.answer = lambda job: replace(script(job), case=job.case)  # type: ignore[method-assign]


def is_base(job: Job) -> bool:
    return job.case.implementation.startswith(BASE)


def is_head(job: Job) -> bool:
    return not is_base(job)


def is_in_turn(job: Job) -> bool:
    return job.function is time_against_base


def right(job: Job, ratio: float = 1.0, **changes: Any) -> Record:
    """Answer as a right implementation does."""
    same = replace(job.case, implementation="two_pass")  # errors are made up by the name
    ratios = (ratio,) if Measurement.LATENCY in job.measurements else None
    return make_record(same, ratios, **changes)


def wrong(job: Job, is_wrong: Callable[[Job], bool]) -> Record:
    """Answer with a right result, but for some jobs."""
    return right(job, status=Status.WRONG, reason="stale") if is_wrong(job) else right(job)


def fallen(job: Job, is_fallen: Callable[[Job], bool]) -> Record:
    return failed(status=Status.CRASHED, reason="it fell") if is_fallen(job) else right(job)


def one_byte_more(job: Job) -> Record:
    return with_memory(right(job), peak_extra_bytes=8 if is_base(job) else 9)


def compared(
    script: Script, *cases: Case, fresh: Script | None = None, **more: Any
) -> tuple[Comparison, Any, Any]:
    """Compare cases with a base of the same names; return the fleets, too."""
    machine: Any = Scripted(script)
    again: Any = Scripted(fresh or script)
    bench = Bench(fleet=machine, make_fleet=lambda: again, checkout=CHECKOUT, timeout_s=1, **more)
    planned = [Planned(case, ASKED) for case in cases]
    return ab(planned, (), bench, ("old", "new")), machine, again


# --- requests ------------------------------------------------------------------------------------


def test_base_and_head_run_one_after_the_other_and_then_in_turn() -> None:
    found, machine, again = compared(right, ONE, TWO)
    exact, timed = machine.asked
    assert [job.case.implementation for job in exact] == ["base@two_pass", "two_pass"] * 2
    assert {job.measurements for job in exact} == {(Measurement.ERRORS, Measurement.MEMORY)}
    assert [job.case for job in timed if is_in_turn(job)] == [ONE, TWO]
    assert again.asked == []
    assert (found.counts, found.failed, found.notes) == ({ChangeKind.UNCHANGED: 2}, False, ())


def test_base_and_head_swap_roles_in_two_of_five_fresh_processes() -> None:
    def favours_the_first(job: Job) -> Record:
        is_swapped = is_in_turn(job) and job.options[1]
        return right(job, ratio=1 / 1.03 if is_swapped else 1.03)

    found, _, again = compared(favours_the_first, ONE)
    assert [job.options[1] for (job,) in again.asked] == [False, True]  # refuted
    assert found.counts == {ChangeKind.INCONCLUSIVE: 1}
    _, _, again = compared(partial(right, ratio=1.1), ONE)
    swapped = [job.options[1] for (job,) in again.asked]
    assert swapped == [False, True, False, True, False]


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "fresh", "kind", "metric", "fact"),
    [
        (partial(right, ratio=0.5), None, "faster", "latency", "50 % faster"),
        (partial(right, ratio=1.2), right, "inconclusive", "latency", "20 % slower"),
        (partial(fallen, is_fallen=is_in_turn), None, "inconclusive", "latency", "it fell"),
        (partial(fallen, is_fallen=is_head), None, "regressed", "status", "crashed now"),
        (one_byte_more, None, "regressed", "peak memory", "8 before, 9 now"),
        # results of earlier calls, returned again: seen when a case is timed
        (partial(wrong, is_wrong=is_in_turn), None, "regressed", "status", "stale"),
    ],
)
def test_the_change_of_a_case(
    script: Script, fresh: Script | None, kind: str, metric: str | None, fact: str
) -> None:
    found, _, _ = compared(
        lambda job: (right if job.case.shape == TWO.shape else script)(job), ONE, TWO, fresh=fresh
    )
    (change,) = (change for change in found.changes if change.case == ONE)
    assert (change.kind, change.metric) == (kind, metric)
    assert fact in change.reason


@pytest.mark.parametrize(
    ("base", "head", "kind", "metric"),
    [
        (10_000, 10_000, "unchanged", None),
        (10_000, 10_200, "regressed", "instructions"),
        (10_000, "it fell", "inconclusive", "latency"),
    ],
)
def test_instructions_decide_where_times_cannot_tell(
    base: int | str, head: int | str, kind: str, metric: str | None
) -> None:
    def counted(cases: Sequence[Case]) -> Iterator[tuple[Case, int | str]]:
        return ((case, base if case.implementation.startswith(BASE) else head) for case in cases)

    found, _, _ = compared(partial(right, ratio=1.2), ONE, fresh=right, count=counted)
    (change,) = found.changes
    assert (change.kind, change.metric) == (kind, metric)
    assert found.notes == (
        ("instructions of 1 case are not compared: it fell",) * (head == "it fell")
    )


def test_a_case_that_is_wrong_in_a_revision_is_not_timed() -> None:
    found, machine, _ = compared(partial(wrong, is_wrong=is_base), ONE)
    assert machine.asked[1] == []
    assert found.counts == {ChangeKind.IMPROVED: 1}

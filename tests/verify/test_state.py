"""Cases are counted by how they ended, and by what explains those beyond the first bound."""

from __future__ import annotations

from dataclasses import replace

import running_sums
from torch.nn import functional

from harness.records import Case, Status
from harness.verify import undeclared
from harness.verify.cases.catalogue import QUICK
from harness.verify.findings import Count, Extent
from harness.verify.state import State
from harness.verify.trial import Trial
from implementations import Algorithm, adopt

CASE = Case(implementation="target", shape=(3, 1000))
PLAIN = adopt(running_sums.two_passes, "plain")
CLAIMS = undeclared.running_sums(PLAIN)
GROUP = QUICK[0]


def trial(status: Status, dtype: str = "float32", **axes: int) -> Trial:
    shape = (axes.get("rows", 3), 1000)
    return Trial(case=replace(CASE, dtype=dtype, shape=shape), status=status, reason="so it is")


def wrong(dtype: str = "float32", **again: Status) -> Trial:
    """A case that is wrong, with how it would have ended had the target declared a claim."""
    case = replace(CASE, dtype=dtype)
    by = {Algorithm(name): Trial(case=case, status=status) for name, status in again.items()}
    return Trial(case=case, status=Status.WRONG, reason="far off", again=by)


def state(*trials: Trial) -> State:
    made = State(claims=CLAIMS)
    for each in trials:
        made.add(each, GROUP)
    return made


def test_cases_are_counted_by_how_they_ended() -> None:
    found = state(
        trial(Status.OK), trial(Status.OUT_OF_GUARANTEE), trial(Status.WRONG), trial(Status.ERROR)
    )
    assert (found.ok_count(), found.out_of_guarantee_count()) == (1, 1)
    assert found.counts() == (Count(dtype="float32", cases=3, failed=1),)
    assert found.extents(("float32", "float64")) == (
        Extent(dtype="float32", answered=3, declined=1),
        Extent(dtype="float64", answered=0, declined=0),
    )


def test_what_raises_is_declined_with_whether_it_says_so() -> None:
    found = state(trial(Status.ERROR), trial(Status.UNSUPPORTED), trial(Status.OUT_OF_MEMORY))
    assert [each.raised for each in found.declined] == [True, False, False]
    assert found.failed == []


def test_a_crash_is_a_failure() -> None:
    assert [each.status for each in state(trial(Status.CRASHED)).failures()] == [Status.CRASHED]


def test_a_dtype_in_which_all_is_wrong_is_not_answered() -> None:
    found = state(trial(Status.OK), trial(Status.WRONG, "float64"), trial(Status.ERROR, "float16"))
    assert found.answered == ("float32",)


def test_the_smallest_failures_come_first_with_what_they_catch() -> None:
    found = state(*(trial(Status.WRONG, rows=rows) for rows in (64, 2, 8))).failures()
    assert [each.case.rows for each in found] == [2, 8, 64]
    assert {each.catches for each in found} == {GROUP.catches}


def test_not_more_failures_are_told_than_a_message_holds() -> None:
    many = state(*(trial(Status.WRONG, rows=rows) for rows in range(1, 300)))
    assert len(many.failures()) == 200
    assert many.counts()[0].failed == 299


# --- running sums --------------------------------------------------------------------------------


def test_nothing_failed_is_no_running_sum() -> None:
    assert state(trial(Status.OK)).running_sums() is None


def test_what_running_sums_promise_nothing_of_is_out_of_guarantee() -> None:
    both = {"two_pass": Status.OUT_OF_GUARANTEE, "welford": Status.OUT_OF_GUARANTEE}
    found = state(wrong(**both), wrong(two_pass=Status.OK, welford=Status.OK))
    assert (found.ok_count(), found.out_of_guarantee_count(), found.unexplained) == (1, 1, [])
    assert found.answered == ("float32",)


def test_the_strictest_claim_that_explains_all_is_taken() -> None:
    both = wrong(two_pass=Status.OK, welford=Status.OK)
    found = state(both, wrong("float64", welford=Status.OK), both)
    sums = found.running_sums()
    assert sums is not None
    assert (sums.algorithm, sums.dtypes, sums.cases) == ("welford", ("float32", "float64"), 3)
    assert {found.held(each, PLAIN).algorithm for each in sums.dtypes} == {Algorithm.WELFORD}


def test_a_dtype_in_which_nothing_failed_is_held_to_the_first_bound() -> None:
    found = state(wrong(two_pass=Status.OK), trial(Status.OK, "float64"))
    assert found.held("float64", PLAIN) is PLAIN
    assert found.held("float32", PLAIN).algorithm is Algorithm.TWO_PASS


def test_one_case_that_no_claim_explains_leaves_all_of_its_dtype_failed() -> None:
    found = state(wrong(two_pass=Status.OK, welford=Status.OK), wrong())
    assert (found.running_sums(), found.ok_count(), len(found.unexplained)) == (None, 0, 2)
    assert found.counts() == (Count(dtype="float32", cases=2, failed=2),)
    assert found.answered == ()


def test_what_declares_is_not_excused() -> None:
    torchs = adopt(functional.layer_norm, "torchs")
    assert undeclared.running_sums(replace(torchs, declared=True)) == ()
    unclaimed = State()
    unclaimed.add(wrong(), GROUP)
    assert len(unclaimed.unexplained) == 1

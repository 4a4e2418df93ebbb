"""Cases are counted by how they ended, and by whether running sums explain the failures."""

from __future__ import annotations

from dataclasses import replace

import running_sums

from harness.records import Case, Status
from harness.verify.case_results import CaseResults
from harness.verify.findings import Count, Extent
from harness.verify.running_sums import running_sum_claims
from harness.verify.trial import Trial
from implementations import Algorithm, adopt

CASE = Case(implementation="target", shape=(3, 1000))
PLAIN = adopt(running_sums.two_passes, "plain")
CLAIMS = running_sum_claims(PLAIN)
CATCHES = "a mistake"


def trial(status: Status, dtype: str = "float32", **axes: int) -> Trial:
    shape = (axes.get("rows", 3), 1000)
    return Trial(case=replace(CASE, dtype=dtype, shape=shape), status=status, reason="so it is")


def wrong(dtype: str = "float32", **again: Status) -> Trial:
    """A wrong case, with its status by the bounds of other claims."""
    case = replace(CASE, dtype=dtype)
    by = {Algorithm(name): Trial(case=case, status=status) for name, status in again.items()}
    return Trial(case=case, status=Status.WRONG, reason="far off", again=by)


def results(*trials: Trial) -> CaseResults:
    made = CaseResults(claims=CLAIMS)
    for each in trials:
        made.add(each, CATCHES)
    return made


def test_cases_are_counted_by_how_they_ended() -> None:
    found = results(
        trial(Status.OK), trial(Status.OUT_OF_GUARANTEE), trial(Status.WRONG), trial(Status.ERROR)
    )
    assert (found.count(Status.OK), found.count(Status.OUT_OF_GUARANTEE)) == (1, 1)
    assert found.counts() == (Count(dtype="float32", cases=3, failed=1),)
    assert found.running_sums() is None
    assert found.extents(("float32", "float64")) == (
        Extent(dtype="float32", answered=3, declined=1),
        Extent(dtype="float64", answered=0, declined=0),
    )


def test_a_case_that_raises_is_declined() -> None:
    found = results(trial(Status.ERROR), trial(Status.UNSUPPORTED), trial(Status.OUT_OF_MEMORY))
    assert [each.raised for each in found.declined()] == [True, False, False]
    assert found.failed == []


def test_a_crash_is_a_failure() -> None:
    assert [each.status for each in results(trial(Status.CRASHED)).failures()] == [Status.CRASHED]


def test_the_smallest_200_failures_are_kept_with_what_they_catch() -> None:
    many = results(*(trial(Status.WRONG, rows=rows) for rows in range(299, 0, -1)))
    assert [each.case.rows for each in many.failures()] == list(range(1, 201))
    assert {each.catches for each in many.failures()} == {CATCHES}
    assert many.counts()[0].failed == 299


def test_a_case_without_a_bound_for_running_sums_is_out_of_guarantee() -> None:
    both = {"two_pass": Status.OUT_OF_GUARANTEE, "welford": Status.OUT_OF_GUARANTEE}
    found = results(wrong(**both), wrong(two_pass=Status.OK, welford=Status.OK))
    assert (found.count(Status.OK), found.count(Status.OUT_OF_GUARANTEE), found.unexplained) == (
        1,
        1,
        [],
    )
    assert found.right_dtypes == ("float32",)


def test_the_strictest_claim_that_explains_all_is_taken() -> None:
    both = wrong(two_pass=Status.OK, welford=Status.OK)
    found = results(both, wrong("float64", welford=Status.OK), both)
    sums = found.running_sums()
    assert sums is not None
    assert (sums.algorithm, sums.dtypes, sums.cases) == ("welford", ("float32", "float64"), 3)
    assert {found.claim_for(each, PLAIN).algorithm for each in sums.dtypes} == {Algorithm.WELFORD}


def test_a_dtype_without_failures_is_held_to_the_declaration() -> None:
    found = results(wrong(two_pass=Status.OK), trial(Status.OK, "float64"))
    assert found.claim_for("float64", PLAIN) is PLAIN
    assert found.claim_for("float32", PLAIN).algorithm is Algorithm.TWO_PASS


def test_one_case_that_no_claim_explains_leaves_all_of_its_dtype_failed() -> None:
    explained = wrong("float64", two_pass=Status.OK)
    found = results(wrong(two_pass=Status.OK, welford=Status.OK), wrong(), explained)
    sums = found.running_sums()
    assert sums is not None
    assert (sums.dtypes, found.count(Status.OK), len(found.unexplained)) == (("float64",), 1, 2)
    assert found.counts() == (
        Count(dtype="float32", cases=2, failed=2),
        Count(dtype="float64", cases=1, failed=0),
    )
    assert found.right_dtypes == ("float64",)


def test_a_declaration_leaves_no_other_claims() -> None:
    assert running_sum_claims(replace(PLAIN, declared=True)) == ()

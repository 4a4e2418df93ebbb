"""Cases are counted by how they ended, and by whether running sums explain the failures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import running_sums

from harness.records import Case, Status
from harness.records.finding import Severity
from harness.run.attempt import Judged
from harness.verify.case_results import CaseResults, running_sum_declarations
from implementations import Algorithm, adopt

CASE = Case(implementation="target", shape=(3, 1000))
PLAIN = adopt(running_sums.two_passes, "plain")
DECLARATIONS = running_sum_declarations(PLAIN)
CATCHES = "a mistake"


@dataclass
class Again:
    """A wrong case, and its outputs judged by other declarations."""

    judged: Judged
    by: dict[Algorithm, Judged]


def trial(status: Status, dtype: str = "float32", **axes: int) -> Judged:
    shape = (axes.get("rows", 3), 1000)
    return Judged(case=replace(CASE, dtype=dtype, shape=shape), status=status, reason="so it is")


def wrong(dtype: str = "float32", **again: Status) -> Again:
    """A wrong case, with its status by the bounds of other declarations."""
    case = replace(CASE, dtype=dtype)
    by = {Algorithm(name): Judged(case=case, status=status) for name, status in again.items()}
    return Again(Judged(case=case, status=Status.WRONG, reason="far off"), by)


def results(*trials: Judged | Again) -> CaseResults:
    made = CaseResults(declarations=DECLARATIONS)
    for number, trial in enumerate(trials):
        judged = trial if isinstance(trial, Judged) else trial.judged
        case = replace(judged.case, seed=number)
        made.add(replace(judged, case=case), CATCHES)
        if isinstance(trial, Again):
            made.again[case] = trial.by
    return made


def ended(found: CaseResults, *dtypes: str) -> list[tuple[int, int, int, int]]:
    counts = found.counts(dtypes)
    return [(own.ok, own.out_of_guarantee, own.failed, own.declined) for own in counts]


def test_cases_are_counted_by_how_they_ended() -> None:
    found = results(
        trial(Status.OK), trial(Status.OUT_OF_GUARANTEE), trial(Status.WRONG), trial(Status.ERROR)
    )
    assert ended(found, "float32", "float64") == [(1, 1, 1, 1), (0, 0, 0, 0)]


def test_a_case_that_raises_is_declined() -> None:
    found = results(trial(Status.ERROR), trial(Status.UNSUPPORTED), trial(Status.OUT_OF_MEMORY))
    assert [finding.kind for finding in found.findings()][:3] == ["raised", "declined", "declined"]
    assert found.unexplained == []


def test_a_crash_is_a_failure() -> None:
    (finding,) = results(trial(Status.CRASHED)).findings()
    assert (finding.kind, finding.severity) == (Status.CRASHED, Severity.WRONG)


def test_the_smallest_200_failures_are_kept_with_what_they_catch() -> None:
    many = results(*(trial(Status.WRONG, rows=rows) for rows in range(299, 0, -1)))
    assert [finding.evidence.case.rows for finding in many.findings()] == list(range(1, 201))
    assert {finding.evidence.catches for finding in many.findings()} == {CATCHES}
    assert ended(many, "float32") == [(0, 0, 299, 0)]


def test_a_case_without_a_bound_for_running_sums_is_out_of_guarantee() -> None:
    both = {"two_pass": Status.OUT_OF_GUARANTEE, "welford": Status.OUT_OF_GUARANTEE}
    found = results(wrong(**both), wrong(two_pass=Status.OK, welford=Status.OK))
    assert (ended(found, "float32"), found.unexplained) == ([(1, 1, 0, 0)], [])
    assert found.right_dtypes == ("float32",)


def test_the_strictest_declaration_that_explains_all_is_taken() -> None:
    both = wrong(two_pass=Status.OK, welford=Status.OK)
    found = results(both, wrong("float64", welford=Status.OK), both)
    dtypes = ("float32", "float64")
    assert [finding.dtypes for finding in found.findings()] == [dtypes]
    assert {found.declaration_for(PLAIN, dtype).algorithm for dtype in dtypes} == {
        Algorithm.WELFORD
    }


def test_a_dtype_without_failures_is_held_to_the_declaration() -> None:
    found = results(wrong(two_pass=Status.OK), trial(Status.OK, "float64"))
    assert found.declaration_for(PLAIN, "float64") is PLAIN
    assert found.declaration_for(PLAIN, "float32").algorithm is Algorithm.TWO_PASS


def test_one_case_that_no_declaration_explains_leaves_all_of_its_dtype_failed() -> None:
    explained = wrong("float64", two_pass=Status.OK)
    found = results(wrong(two_pass=Status.OK, welford=Status.OK), wrong(), explained)
    assert [finding.dtypes for finding in found.findings()][-1] == ("float64",)
    assert len(found.unexplained) == 2
    assert ended(found, "float32", "float64") == [(0, 0, 2, 0), (1, 0, 0, 0)]
    assert found.right_dtypes == ("float64",)


def test_a_declaration_leaves_no_other_bounds() -> None:
    assert running_sum_declarations(replace(PLAIN, declared=True)) == ()

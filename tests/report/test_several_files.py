"""Several results files on one page, and the environments of their records."""

from __future__ import annotations

from dataclasses import replace

from factories.results_factory import make_environment
from factories.small_results import FAILED, SMALL

from harness.records import Status
from harness.report import build_page
from harness.report.frame import gather
from harness.store import Results

# --- what the page holds -------------------------------------------------------------------------


# --- several files -------------------------------------------------------------------------------


def test_the_later_of_two_measurements_in_one_environment_counts() -> None:
    later = replace(FAILED, status=Status.WRONG, reason="worse since")
    findings = gather([SMALL, replace(SMALL, records=(later,))])
    assert [record.reason for record in findings.records] == ["worse since"]
    assert findings.cases["device"].tolist() == ["cpu"]


def test_measurements_from_two_environments_are_kept_apart() -> None:
    here, there = make_environment(), make_environment(cpu="Another CPU")
    both = [
        Results(
            records=(replace(FAILED, environment=own.fingerprint),),
            runs=(),
            environments={own.fingerprint: own},
        )
        for own in (here, there)
    ]
    expected = ["cpu, environment A", "cpu, environment B"]
    assert gather(both).cases["device"].tolist() == expected
    page = build_page(both)
    assert "Environment B, fingerprint" in page
    assert "Another CPU" in page


def test_two_revisions_on_one_machine_are_kept_apart() -> None:
    before, after = make_environment(git_dirty=False), make_environment(git_commit="f" * 40)
    assert before.fingerprint == after.fingerprint
    both = [
        Results(
            records=(replace(FAILED, environment=own.fingerprint),),
            runs=(),
            environments={own.fingerprint: own},
        )
        for own in (before, after)
    ]
    findings = gather(both)
    assert findings.cases["device"].tolist() == [
        "cpu, environment A",
        "cpu, environment B",
    ]
    assert list(findings.environments.values()) == [before, after]

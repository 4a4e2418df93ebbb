"""A target that crashes or hangs its worker process still gets a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.records import Case, Direction, Status
from harness.run.fleet import EndedError
from harness.verify import (
    INTERRUPTED,
    Outcome,
    Verdict,
    VerifyOptions,
    verdicts_of,
    verify_in_worker,
)
from harness.verify import workers as verdicts
from harness.verify.case_results import Count
from harness.verify.workers import why_unverifiable

OPTIONS = VerifyOptions(quick=True, dtypes=("float32",), directions=(Direction.FORWARD,))
FIRST, SECOND, THIRD = (Case(implementation="t", shape=(rows, 8)) for rows in (1, 2, 3))

Request = tuple[str, VerifyOptions, dict[Case, str]]
Report = Callable[[Case | Verdict], None]
Worker = Callable[[Request, Report], Verdict]


def verdict(ok: int = 3) -> Verdict:
    counts = (Count(dtype="float32", ok=ok),)
    return Verdict(target="t", handle="'t'", bound="welford", counts=counts)


def crash(timed_out: bool = False) -> EndedError:
    return EndedError("took its process down, which was ended by SIGSEGV", timed_out=timed_out)


@dataclass
class FakeFleet:
    """A fleet with scripted workers; each answers one request."""

    workers: list[Worker]
    requests: list[Request] = field(default_factory=list)

    @property
    def info(self) -> Any:
        return _Info()

    def unresolved(self, targets: object, init: object, resolve: object) -> list[str]:
        assert resolve is why_unverifiable
        return []

    def call(self, function: Any, request: Request, timeout_s: float, report: Any) -> object:
        assert function is verify_in_worker
        self.requests.append(request)
        return self.workers.pop(0)(request, report)

    def __enter__(self) -> FakeFleet:
        return self

    def __exit__(self, *ended: object) -> None:
        pass


@dataclass(frozen=True)
class _Info:
    device_counts: dict[str, int] = field(default_factory=lambda: {"cpu": 1})
    unavailable: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> FakeFleet:
    made = FakeFleet([])
    monkeypatch.setattr(verdicts, "Fleet", lambda: made)
    return made


def one_verdict(timeout_s: float = 600) -> Verdict:
    ((target, found),) = verdicts_of(["t"], OPTIONS, timeout_s)
    assert target == "t"
    return found


def dies_over(case: Case, so_far: Verdict | None = None) -> Worker:
    def worker(request: Request, report: Report) -> Verdict:
        if so_far is not None:
            report(so_far)
        report(case)
        raise crash()

    return worker


def finishes(request: Request, report: Report) -> Verdict:
    return verdict()


def test_the_next_worker_gets_the_cases_that_crashed(fleet: FakeFleet) -> None:
    fleet.workers = [dies_over(FIRST), dies_over(SECOND), finishes]
    assert one_verdict() == verdict()
    assert [crashed for _, _, crashed in fleet.requests] == [
        {},
        {FIRST: str(crash())},
        {FIRST: str(crash()), SECOND: str(crash())},
    ]


def test_the_third_crash_ends_the_verification(fleet: FakeFleet) -> None:
    fleet.workers = [dies_over(FIRST), dies_over(SECOND, verdict(ok=7)), dies_over(THIRD)]
    found = one_verdict()
    assert found.outcome is Outcome.WRONG
    assert found.ended.endswith("for the third time")
    assert [finding.evidence.case for finding in found.failures] == [FIRST, SECOND, THIRD]
    assert {finding.kind for finding in found.failures} == {Status.CRASHED}
    assert (found.ok, found.failed) == (7, 3)


def test_a_second_crash_in_the_same_case_ends_the_verification(fleet: FakeFleet) -> None:
    fleet.workers = [dies_over(FIRST), dies_over(FIRST)]
    found = one_verdict()
    assert found.ended == str(crash())
    assert [finding.evidence.case for finding in found.failures] == [FIRST]


def test_a_crash_before_any_case_ends_the_verification(fleet: FakeFleet) -> None:
    def dies_at_once(request: Request, report: object) -> Verdict:
        raise crash()

    fleet.workers = [dies_at_once]
    found = one_verdict()
    assert (found.ended, found.failures) == (str(crash()), ())
    assert found.outcome is Outcome.NOT_VERIFIED


def test_the_verdict_of_a_hanging_target_keeps_its_earlier_findings(fleet: FakeFleet) -> None:
    def hangs(request: Request, report: Report) -> Verdict:
        report(verdict(ok=5))
        report(FIRST)
        raise crash(timed_out=True)

    fleet.workers = [hangs]
    found = one_verdict(timeout_s=2)
    assert (found.ok, found.ended) == (5, f"was not done after 2 s; its last case was {FIRST.id}")


def test_an_interruption_keeps_earlier_findings_and_skips_the_other_targets(
    fleet: FakeFleet,
) -> None:
    def interrupted(request: Request, report: Report) -> Verdict:
        report(verdict(ok=5))
        raise KeyboardInterrupt

    fleet.workers = [finishes, interrupted, finishes]
    found = dict(verdicts_of(["a", "b", "c"], OPTIONS, 600))
    assert list(found) == ["a", "b"]
    assert (found["b"].ok, found["b"].ended) == (5, INTERRUPTED)


def test_a_smaller_verdict_of_a_second_worker_does_not_replace_the_first(
    fleet: FakeFleet,
) -> None:
    """A second worker begins again, so its verdict so far holds less at first."""

    def interrupted(request: Request, report: Report) -> Verdict:
        report(verdict(ok=1))
        raise KeyboardInterrupt

    fleet.workers = [dies_over(FIRST, verdict(ok=9)), interrupted]
    found = one_verdict()
    assert (found.ok, found.failed) == (9, 1)


def test_every_worker_gets_the_same_settings(fleet: FakeFleet) -> None:
    fleet.workers = [dies_over(FIRST), finishes, finishes]
    list(verdicts_of(["a", "b"], OPTIONS, 600))
    assert [target for target, _, _ in fleet.requests] == ["a", "a", "b"]
    assert all(options is OPTIONS for _, options, _ in fleet.requests)

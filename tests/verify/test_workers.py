"""A target that crashes or hangs its worker process still gets a verdict."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from harness.records import Case, Direction, Status
from harness.run import EndedError
from harness.verify import (
    INTERRUPTED,
    Count,
    Outcome,
    Verdict,
    VerifyOptions,
    verdicts_of,
    verify_in_worker,
    workers,
)

OPTIONS = VerifyOptions(quick=True, dtypes=("float32",), directions=(Direction.FORWARD,))
FIRST, SECOND, THIRD = (Case(implementation="t", shape=(rows, 8)) for rows in (1, 2, 3))
SIGNAL = "took its process down, which was ended by SIGSEGV"


def verdict(ok: int = 3) -> Verdict:
    counts = (Count(dtype="float32", ok=ok),)
    return Verdict(target="t", handle="'t'", bound="welford", counts=counts)


CRASH, HANG = EndedError(SIGNAL, timed_out=False), EndedError(SIGNAL, timed_out=True)
INTERRUPT = KeyboardInterrupt()
DONE = [verdict()]
Worker = list[Any]
"""What it reports, and its result at the end, which may be an exception."""


@dataclass
class FakeFleet(AbstractContextManager["FakeFleet"]):
    """A fleet with scripted workers; each answers one request."""

    workers: list[Worker]
    requests: list[tuple[str, VerifyOptions, dict[Case, str]]] = field(default_factory=list)
    info = SimpleNamespace(device_counts={"cpu": 1}, unavailable={})

    def unresolved(self, targets: object, init: object, resolve: object) -> list[str]:
        assert resolve is workers.why_unverifiable
        return []

    def call(self, function: Any, request: Any, timeout_s: float, report: Any) -> object:
        assert function is verify_in_worker
        self.requests.append(request)
        *reports, end = self.workers.pop(0)
        for update in reports:
            report(update)
        if isinstance(end, BaseException):
            raise end
        return end

    def __exit__(self, *ended: object) -> None:
        pass


def verdicts(
    monkeypatch: pytest.MonkeyPatch, script: list[Worker], *targets: str
) -> tuple[dict[str, Verdict], FakeFleet]:
    fleet = FakeFleet([*script])
    monkeypatch.setattr(workers, "Fleet", lambda: fleet)
    return dict(verdicts_of(targets, OPTIONS, 2)), fleet


HUNG = f"was not done after 2 s; its last case was {FIRST.id}"


@pytest.mark.parametrize(
    ("script", "ended", "ok", "crashed", "outcome"),
    [
        ([[FIRST, CRASH], [SECOND, CRASH], DONE], "", 3, [], Outcome.RIGHT),
        (
            [[FIRST, CRASH], [verdict(ok=7), SECOND, CRASH], [THIRD, CRASH]],
            f"{SIGNAL}, for the third time",
            7,
            [FIRST, SECOND, THIRD],
            Outcome.WRONG,
        ),
        ([[FIRST, CRASH], [FIRST, CRASH]], SIGNAL, 0, [FIRST], Outcome.WRONG),
        ([[verdict(ok=5), FIRST, HANG]], HUNG, 5, [], Outcome.NOT_VERIFIED),
        # a second worker begins again, so its verdict so far holds less at first
        (
            [[verdict(ok=9), FIRST, CRASH], [verdict(ok=1), INTERRUPT]],
            INTERRUPTED,
            9,
            [FIRST],
            Outcome.WRONG,
        ),
    ],
    ids=["two crashes", "three", "same case", "hang", "second worker"],
)
def test_what_was_found_before_a_process_ended_is_kept(
    script: list[Worker],
    ended: str,
    ok: int,
    crashed: list[Case],
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = verdicts(monkeypatch, script, "t")[0]["t"]
    assert (found.ended, found.outcome) == (ended, outcome)
    crashes = [own.evidence.case for own in found.failures if own.kind == Status.CRASHED]
    assert crashes == crashed
    assert (found.ok, found.failed) == (ok, len(crashed))


def test_the_next_worker_gets_the_cases_that_crashed_and_the_same_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [[FIRST, CRASH], [SECOND, CRASH], DONE, DONE]
    found, fleet = verdicts(monkeypatch, script, "a", "b")
    assert [*found] == ["a", "b"]
    assert [(target, crashed) for target, _, crashed in fleet.requests] == [
        ("a", {}),
        ("a", {FIRST: SIGNAL}),
        ("a", {FIRST: SIGNAL, SECOND: SIGNAL}),
        ("b", {}),
    ]
    assert all(options is OPTIONS for _, options, _ in fleet.requests)

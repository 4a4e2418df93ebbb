"""Requests to a worker: every setting of a request reaches what answers it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.records import Allocation, Case, Direction
from harness.run.case import CaseRunner
from harness.run.integrity import Trusted
from harness.verify import messages
from harness.verify.messages import VerifyProgress, VerifySettings, VerifyTarget

CASE = Case(implementation="t", shape=(1, 8))
SETTINGS = VerifySettings(
    strength=2,
    dtypes=("float64",),
    directions=(Direction.BACKWARD,),
    device="cpu",
    eps=0.5,
    normalized_dims=2,
    channels_first=True,
    init=(("depth", 3),),
    time_budget_s=60.0,
)


def test_every_setting_reaches_the_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    updates: list[VerifyProgress] = []
    monkeypatch.setattr(messages, "verify", lambda target, **named: seen.update(named))
    request = VerifyTarget("t", SETTINGS, ((CASE, "fell"),))
    runner = CaseRunner("here", Allocation.DEFAULT, Trusted())
    request.answer(runner, updates.append)
    for name in ("strength", "dtypes", "directions", "device", "eps", "normalized_dims"):
        assert seen[name] == getattr(SETTINGS, name)
    assert (seen["channels_first"], seen["time_budget_s"]) == (True, 60.0)
    assert (seen["init"], seen["crashed"]) == ({"depth": 3}, {CASE: "fell"})
    assert seen["huge_bytes"] is None
    assert seen["trusted"] is runner.trusted
    seen["on_case"](CASE)
    assert updates == [VerifyProgress(case=CASE)]

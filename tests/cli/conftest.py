"""Each test of the command has a folder, a fleet and an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from factories.compared_runs import ScriptedFleet
from factories.fake_device import LocalFleet, use_fleets

from harness.run import Fleet

Install = Callable[[ScriptedFleet], ScriptedFleet]
"""Gives the command its fleet."""


@pytest.fixture(autouse=True)
def _elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, outside of any GitHub job; files need not outlast a power cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> LocalFleet:
    """The fleet of the command: none of its cases leaves this process."""
    made = LocalFleet()
    use_fleets(monkeypatch, lambda: made)
    return made


@pytest.fixture
def install(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that gives the command its fleet; without it, timing fails the test."""

    def give(machine: ScriptedFleet) -> ScriptedFleet:
        use_fleets(monkeypatch, lambda: machine)
        return machine

    use_fleets(monkeypatch, lambda: pytest.fail("something was timed"))
    return give


@pytest.fixture(scope="session")
def _worker() -> Iterator[Fleet]:
    """One worker process for all tests, replaced if a target ends it."""
    with Fleet() as real:
        yield real


@pytest.fixture
def worker(fleet: LocalFleet, _worker: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Give the command a worker process."""
    use_fleets(monkeypatch, lambda: nullcontext(_worker))
    return _worker

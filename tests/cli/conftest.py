"""Each test of the command has a folder, a fleet and an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from factories.checked_runs import Install
from factories.compared_runs import ScriptedFleet
from factories.fake_device import LocalFleet

from harness.run import fleet as fleet_module


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, outside of any GitHub job; files need not outlast a power cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> LocalFleet:
    """The fleet of the command: none of its cases leaves this process."""
    made = LocalFleet()
    monkeypatch.setattr(fleet_module, "Fleet", lambda: made)
    return made


@pytest.fixture
def install(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that gives the command its fleet; without it, timing fails the test."""

    def give(machine: ScriptedFleet) -> ScriptedFleet:
        monkeypatch.setattr(fleet_module, "Fleet", lambda: machine)
        return machine

    monkeypatch.setattr(fleet_module, "Fleet", lambda: pytest.fail("something was timed"))
    return give

"""Each test of the command has a folder, a fleet and an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from factories.compared_runs import ScriptedFleet
from factories.fake_device import LocalFleet

from harness.run import Fleet

Install = Callable[[ScriptedFleet], ScriptedFleet]
"""Gives the command its fleet."""


@pytest.fixture(autouse=True)
def _elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, outside of any GitHub job; files need not outlast a power cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Return a function that replaces the fleets of all commands."""

    def use(make: Callable[[], Any]) -> None:
        for module in ("harness.run.fleet", "harness.verify.workers"):
            monkeypatch.setattr(f"{module}.Fleet", make)

    return use


@pytest.fixture(autouse=True)
def fleet(_use: Callable[[Callable[[], Any]], None]) -> LocalFleet:
    """The fleet of the command: none of its cases leaves this process."""
    made = LocalFleet()
    _use(lambda: made)
    return made


@pytest.fixture
def install(fleet: LocalFleet, _use: Callable[[Callable[[], Any]], None]) -> Install:
    """Return a function that gives the command its fleet; without it, timing fails the test."""

    def give(machine: ScriptedFleet) -> ScriptedFleet:
        _use(lambda: machine)
        return machine

    _use(lambda: pytest.fail("something was timed"))
    return give


@pytest.fixture(scope="session")
def _worker() -> Iterator[Fleet]:
    """One worker process for all tests, replaced if a target ends it."""
    with Fleet() as real:
        yield real


@pytest.fixture
def worker(fleet: LocalFleet, _worker: Fleet, _use: Callable[[Callable[[], Any]], None]) -> Fleet:
    """Give the command a worker process."""
    _use(lambda: nullcontext(_worker))
    return _worker

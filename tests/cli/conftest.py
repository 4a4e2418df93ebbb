"""Each test of the command has a folder and a fleet of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_device import LocalFleet

from harness.run import fleet as fleet_module


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to a folder of their own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> LocalFleet:
    """The fleet of the command: none of its cases leaves this process."""
    made = LocalFleet()
    monkeypatch.setattr(fleet_module, "Fleet", lambda: made)
    return made

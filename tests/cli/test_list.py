"""The command list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories.commanding import call
from factories.golden import assert_golden

import implementations
from harness.cases import preset_names
from harness.cases.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS
from harness.cli import list as list_module
from harness.measure.devices import DEVICES
from harness.selection.workload import workload_names

NAMES = {
    "implementations": {each.name for each in implementations.ALL + implementations.PEERS},
    "presets": set(preset_names()),
    "workloads": set(workload_names()),
    "distributions": set(DISTRIBUTIONS),
    "layouts": set(LAYOUTS),
    "grad_outputs": set(GRAD_OUTPUTS),
    "parameters": set(PARAMETERS),
    "devices": set(DEVICES),
}


def test_every_name_of_every_kind_is_listed_with_a_description() -> None:
    found = json.loads(call("list", "--json").stdout)
    assert {kind: set(entries) for kind, entries in found.items()} == NAMES
    assert all(text for entries in found.values() for text in entries.values())


def test_an_implementation_for_other_devices_than_the_cpu_names_them() -> None:
    found = json.loads(call("list", "implementations", "--json").stdout)["implementations"]
    assert found["triton_welford"].endswith("(CUDA only)")
    assert "only)" not in found["native"]


@pytest.mark.parametrize("kind", ["all", "presets"])
def test_names_and_descriptions_are_in_columns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    presets = {"ci": "what a CI job runs", "conditioning": "errors"}
    fake = {"presets": lambda: presets, "devices": lambda: {"cpu": "available"}}
    monkeypatch.setattr(list_module, "CATALOGUE", fake)
    found = call("list", kind)
    assert found.exit_code == 0
    assert_golden(found.stdout, Path(__file__).parent / "golden" / f"list_{kind}.txt")

"""What exists, by name, each with a line of its own about itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is imported only for the implementations' own list
    from implementations import Implementation

__all__ = ["CATALOGUE"]

_DEVICE_NAMES = {"cpu": "CPU", "cuda": "CUDA"}  # as people write them


def _implementations() -> dict[str, str]:
    import implementations

    plugins = entry_points(group=implementations.ENTRY_POINT_GROUP)
    return (
        {each.name: _summary(each) for each in implementations.ALL}
        | {each.name: f"plug-in: {each.value}" for each in plugins}
        | {each.name: _of_peer(each) for each in implementations.PEERS}
    )


def _summary(implementation: Implementation) -> str:
    """What it says of itself, and the devices it is written for unless the CPU is among them."""
    devices = " and ".join(_DEVICE_NAMES.get(each, each) for each in sorted(implementation.devices))
    return implementation.summary + (
        "" if "cpu" in implementation.devices else f" ({devices} only)"
    )


def _of_peer(peer: Implementation) -> str:
    """What a peer says of itself, and whether what it needs is there."""
    (needed,) = peer.requires
    there = "" if find_spec(needed) else ", not installed"
    return f"peer, needs {needed}{there}: {_summary(peer)}"


def _presets() -> dict[str, str]:
    from harness.sweep import load_preset, preset_names

    return {name: load_preset(name).description for name in preset_names()}


def _workloads() -> dict[str, str]:
    from harness.selection.workload import find_workload, workload_names

    return {name: find_workload(name).description for name in workload_names()}


def _distributions() -> dict[str, str]:
    from harness.inputs import DISTRIBUTIONS, describe

    return {name: describe(each) for name, each in DISTRIBUTIONS.items()}


def _layouts() -> dict[str, str]:
    from harness.inputs import LAYOUTS, describe

    return {name: describe(each) for name, each in LAYOUTS.items()}


def _grad_outputs() -> dict[str, str]:
    from harness.inputs import GRAD_OUTPUTS, describe

    return {name: describe(each) for name, each in GRAD_OUTPUTS.items()}


def _parameters() -> dict[str, str]:
    from harness.inputs import PARAMETERS, describe

    return {name: describe(each) for name, each in PARAMETERS.items()}


def _devices() -> dict[str, str]:
    from harness.measure.devices import DEVICES

    found = {kind: make().unavailable() for kind, make in DEVICES.items()}
    return {kind: f"unavailable: {why}" if why else "available" for kind, why in found.items()}


CATALOGUE: dict[str, Callable[[], dict[str, str]]] = {
    "implementations": _implementations,
    "presets": _presets,
    "workloads": _workloads,
    "distributions": _distributions,
    "layouts": _layouts,
    "grad_outputs": _grad_outputs,
    "parameters": _parameters,
    "devices": _devices,
}

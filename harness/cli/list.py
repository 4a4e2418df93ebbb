"""The command ``list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from harness import cases, selection  # what needs pydantic is imported when it is first used
from harness.cases import AXES
from harness.cli.options import json_option, print_as

if TYPE_CHECKING:  # torch is imported only when implementations are listed
    from harness.cases import Sweep
    from harness.selection import Workload
    from implementations import Implementation


def _implementations() -> dict[str, str]:
    import implementations

    plugins = entry_points(group=implementations.ENTRY_POINT_GROUP)
    return (
        {own.name: _summary(own) for own in implementations.ALL}
        | {plugin.name: f"plug-in: {plugin.value}" for plugin in plugins}
        | {peer.name: _peer_summary(peer) for peer in implementations.PEERS}
    )


def _summary(implementation: Implementation) -> str:
    """Return the summary of an implementation, and its devices unless the CPU is one of them."""
    devices = " and ".join(map(str.upper, sorted(implementation.devices)))
    return implementation.summary + (f" ({devices} only)" if "CPU" not in devices else "")


def _peer_summary(peer: Implementation) -> str:
    (needed,) = peer.requires
    installed = "" if find_spec(needed) else ", not installed"
    return f"peer, needs {needed}{installed}: {_summary(peer)}"


def _described(names: Iterable[str], load: Callable[[str], Sweep | Workload]) -> dict[str, str]:
    return {name: load(name).description for name in names}


def _inputs(axis: str) -> dict[str, str]:
    from harness.cases.inputs import NAMED, describe

    named = NAMED[axis]
    families = {f"{family}_NUMBER": maker for family, maker in named.families.items()}
    return {name: describe(maker) for name, maker in (named | families).items()}


def _devices() -> dict[str, str]:
    from harness.measure import DEVICES

    reasons = {kind: make().unavailable() for kind, make in DEVICES.items()}
    return {kind: f"unavailable: {why}" if why else "available" for kind, why in reasons.items()}


CATALOGUE: dict[str, Callable[[], dict[str, str]]] = {
    "implementations": _implementations,
    "presets": lambda: _described(cases.preset_names(), cases.load_preset),
    "workloads": lambda: _described(selection.workload_names(), selection.find_workload),
    **{
        axis.key: partial(_inputs, axis.name)
        for axis in AXES.values()
        if axis.is_registered and axis.name != "device"
    },
    "devices": _devices,
}
"""What can be listed: for each kind, a function that returns names and descriptions."""


@click.command(name="list")
@click.argument("kind", default="all", type=click.Choice(["all", *CATALOGUE]), metavar="[KIND]")
@json_option
def list_(kind: str, as_json: bool) -> None:
    """What can be run: implementations, presets, distributions, ...

    KIND is all, implementations, presets, workloads, distributions, layouts, grad_outputs,
    parameters or devices  [default: all].
    """
    kinds = CATALOGUE if kind == "all" else {kind: CATALOGUE[kind]}
    catalogue = {name: entries() for name, entries in kinds.items()}
    from harness.report import Facts

    document = [
        Facts(f"{name}:" if kind == "all" else "", tuple(entries.items()))
        for name, entries in catalogue.items()
    ]
    print_as(as_json, lambda: document, lambda: catalogue)

"""Which cases of a sweep exist on the machines of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.run.machines import Machines
from harness.run.messages import WorkerInfo
from harness.store import prepare
from harness.sweep import EVERY, PEERS, Planned, Sweep, SweepError, expand, in_shard, mistake_lines

__all__ = ["cases_on", "plan"]


def plan(
    sweep: Sweep, fleet: Machines, shard: tuple[int, int] | None = None
) -> tuple[Planned, ...]:
    """Return the cases of a sweep that a shard, or the whole run, has on the machines of ``fleet``.

    Raises:
        SweepError: a name does not exist there.
    """
    prepare()  # while the worker still imports torch
    info = fleet.info
    places = {name: place for place, name in reversed([*sweep.written("implementations")])}
    unresolved = [
        (places[name], why)
        for name in sorted(places.keys() - {EVERY, PEERS})
        for why in fleet.unresolved([name])
    ]
    if unresolved:
        raise SweepError("\n".join(mistake_lines(unresolved)))
    planned = cases_on(sweep, info, info.implementations, info.peers)
    if shard is None:
        return planned
    return tuple(each for each in planned if in_shard(each.case, *shard))


def cases_on(
    sweep: Sweep,
    info: WorkerInfo,
    everything: Mapping[str, Collection[str]],
    peers: Mapping[str, Collection[str]],
) -> tuple[Planned, ...]:
    """Return the cases of a sweep on one machine.

    Args:
        sweep: its implementations must have been found before.
        info: what exists on the machine.
        everything: names that "all" stands for, each with its kinds of device.
        peers: names that "peers" stands for, each with its kinds of device.

    Raises:
        SweepError: another name of the sweep does not exist on the machine.
    """
    devices = {
        kind: info.unavailable.get(kind) for kind in (*info.device_counts, *info.unavailable)
    }
    return expand(
        sweep,
        implementations=everything,
        distributions=info.distributions,
        layouts=info.layouts,
        grad_outputs=info.grad_outputs,
        parameters=info.parameters,
        devices=devices,
        peers=peers,
    )

"""What a worker process may use of its machine: a GPU, or the CPUs of a socket."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.records import Environment
from harness.records.refusal import Refusal

__all__ = ["Place", "gpu_places", "socket_places", "visible_gpus"]

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/physical_package_id"


@dataclass(frozen=True, slots=True)
class Place:
    """The device of a worker process; without any field it is the CPU of the machine."""

    cuda_device: str | None = None
    """The only CUDA device that it sees, as CUDA_VISIBLE_DEVICES names it."""
    cpus: frozenset[int] | None = None
    """The only CPUs that it runs on."""


def visible_gpus(count: int) -> list[str]:
    """Return the names of the GPUs, ``count`` as torch sees them, for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(count)]


def gpu_places(names: Sequence[str], environment: Environment) -> list[Place]:
    """Return a place for each GPU that may be used; only one if the GPUs are of several models.

    A record does not name its GPU, so latencies of different models could be compared.

    Args:
        names: of the GPUs, for CUDA_VISIBLE_DEVICES.
        environment: of the machine, which describes its GPUs.
    """
    models = {(each.name, each.memory_bytes, each.power_limit_w) for each in environment.gpus}
    return [Place(cuda_device=name) for name in (names if len(models) <= 1 else names[:1])]


def socket_places() -> list[Place]:
    """Return a place for each CPU socket that this process may run on.

    Raises:
        Refusal: the sockets cannot be told, or are of different size.
    """
    sockets: dict[str, set[int]] = {}
    try:
        for cpu in os.sched_getaffinity(0):
            name = Path(_TOPOLOGY.format(cpu)).read_text().strip()
            sockets.setdefault(name, set()).add(cpu)
    except (AttributeError, OSError) as error:
        raise Refusal(
            "the CPU sockets of this machine are not known; run without --per-socket"
        ) from error
    sizes = sorted(map(len, sockets.values()))
    if sizes[0] != sizes[-1]:
        raise Refusal(
            f"the sockets have {' and '.join(map(str, sizes))} CPUs for this process, so their "
            "latencies would not be comparable; give it whole sockets, or run without --per-socket"
        )
    return [Place(cpus=frozenset(cpus)) for _, cpus in sorted(sockets.items())]

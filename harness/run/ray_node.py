"""A device of a node of a Ray cluster: the actor that runs its cases, and how it is started."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.records import Record
from harness.run.fleet import Fleet
from harness.run.messages import RunCase, WorkerInfo

__all__ = ["RayWorker", "start_actor"]


class RayNode:
    """The actor: a fleet of one machine, which runs the cases of one device."""

    def __init__(self, folder: str) -> None:
        # else each worker process would import Ray, as a part of the actor's main module
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray hides the GPUs from an actor that uses none, but the plan needs to know of them
        if not os.environ.get("CUDA_VISIBLE_DEVICES"):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        with suppress(OSError):  # relative paths of targets, where this folder exists
            os.chdir(folder)
        self._fleet = Fleet().__enter__()

    def describe(self) -> tuple[str, WorkerInfo]:
        return version("layernorm-bench"), self._fleet.info

    def unresolved(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        return self._fleet.unresolved(targets)

    def run(self, job: RunCase, timeout_s: float) -> Record:
        (record,) = self._fleet.run([job], timeout_s)
        return record

    def close(self) -> None:
        self._fleet.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class RayWorker:
    """An actor, and where it is."""

    actor: Any
    node: str
    """Ray's id of the node."""
    address: str
    info: WorkerInfo

    @property
    def environment(self) -> str:
        return self.info.environment.fingerprint


def start_actor(node: str, **resources: float) -> Any:
    """Start an actor on a node, with resources of it: ``num_cpus`` or ``num_gpus``."""
    return (
        ray
        .remote(RayNode)
        .options(
            **resources,
            max_restarts=-1,
            max_task_retries=1,  # needed for calls to wait until an actor has been restarted
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(os.getcwd())
    )

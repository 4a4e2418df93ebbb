"""The machines of a Ray cluster: on each, the worker processes of :mod:`harness.run.fleet`.

A Ray actor per device starts the same worker processes as a run on one machine, so a crash or a
hang costs one case there too. Ray places the actors, restarts those that are killed, and tells
which nodes have died.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.records import Case, Record, Status
from harness.records.text import count, grouped
from harness.run.fleet import START_S, Fleet, HarnessError, Job, WorkerInfo, usable_gpus
from harness.run.session import JobQueue

_ATTEMPTS = 3
"""A case that ends this many actors is recorded as crashed: nodes may die of it."""

_ANSWER_S = 10.0
"""Until the head of a cluster accepts a connection; a network answers within a second."""


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

    def run(self, job: Job, timeout_s: float) -> Record:
        (record,) = self._fleet.run([job], timeout_s)
        return record


@dataclass(frozen=True, slots=True)
class RayWorker:
    """An actor, and where it is."""

    actor: Any
    node: str
    """Ray's id of the node."""
    address: str
    info: WorkerInfo
    environment: str


def _start_actor(node: str, **resources: float) -> Any:
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


class RayFleet:
    """The machines of a Ray cluster. Use as a context manager.

    A CPU case has the CPUs of a whole node, and a CUDA case has a GPU. A queue chooses the
    environment of each case (:mod:`harness.run.session`).
    """

    def __init__(self, address: str | None = None) -> None:
        """Choose a cluster.

        Args:
            address: of its head, such as ``10.0.0.1:6379``; None for the one that RAY_ADDRESS or
                a running cluster on this machine names, else for a new one on this machine.
        """
        self._address = address
        self._starting: dict[Any, tuple[Any, str, str]] = {}
        """Actors with their nodes and addresses, by what will describe the node."""
        self.lost: list[str] = []
        """What happened to nodes that cannot be used any more."""

    def __enter__(self) -> RayFleet:
        before = signal.getsignal(signal.SIGTERM)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            _check_that_it_answers(self._address)
            ray.init(self._address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise HarnessError(
                f"no Ray cluster at {self._address or 'this machine'}: "
                f"{_first_line(error)}; start one with `ray start --head`"
            ) from error
        if current_thread() is main_thread():  # Ray replaces the handler
            signal.signal(signal.SIGTERM, before)
        for node in ray.nodes():
            if node["Alive"] and (cpus := node["Resources"].get("CPU")):
                actor = _start_actor(node["NodeID"], num_cpus=cpus)
                where = node["NodeID"], node["NodeManagerAddress"]
                self._starting[actor.describe.remote()] = actor, *where
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()  # ends the actors, and they their worker processes

    @cached_property
    def _workers(self) -> list[RayWorker]:
        """The actors for CPU cases, one per node; waited for when first read.

        Raises:
            HarnessError: there is none, or a node has another version of the program.
        """
        begun = self._starting
        ready, late = (
            ray.wait([*begun], num_returns=len(begun), timeout=START_S) if begun else ([], [])
        )
        workers = []
        for answer in ready:
            actor, node, address = begun[answer]
            try:
                its_version, info = ray.get(answer)
            except RayError as error:
                self.lost.append(f"node {address} is not used: {_first_line(error)}")
                continue
            if its_version != version("layernorm-bench"):
                raise HarnessError(
                    f"node {address} has layernorm-bench {its_version}, this machine "
                    f"{version('layernorm-bench')}; install the same version everywhere"
                )
            workers.append(RayWorker(actor, node, address, info, info.environment.fingerprint))
        for answer in late:
            actor, _, address = begun[answer]
            ray.kill(actor)
            self.lost.append(f"node {address} is not used: not all of its CPUs were free")
        if not workers:
            raise HarnessError(
                f"no node of the Ray cluster can be used: {'; '.join(self.lost) or 'none has CPUs'}"
            )
        return workers

    @property
    def nodes(self) -> tuple[WorkerInfo, ...]:
        """What exists on each node."""
        return tuple(worker.info for worker in self._workers)

    @property
    def info(self) -> WorkerInfo:
        """What exists in the cluster: the first node's names, and the devices of all."""
        counts: Counter[str] = Counter()
        unavailable: dict[str, str] = {}
        for node in self.nodes:
            counts.update(node.device_counts)
            unavailable |= node.unavailable
        return replace(
            self.nodes[0],
            device_counts=dict(counts),
            unavailable={kind: why for kind, why in unavailable.items() if kind not in counts},
        )

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Return why targets cannot be found: a message per target and node that lacks it."""
        names = tuple(targets)
        whys = ray.get([worker.actor.unresolved.remote(names) for worker in self._workers])
        if all(own == whys[0] for own in whys):
            return tuple(whys[0])
        return tuple(
            f"{why} (on node {worker.address})"
            for worker, own in zip(self._workers, whys, strict=True)
            for why in own
        )

    def run(
        self, jobs: Iterable[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        """Yield a record for each job as it is done; one case at a time on each device.

        One kind of device runs after the other, as on one machine. A case whose node dies is run
        on another one. No case starts after ``stop_at``, by the monotonic clock.

        Raises:
            HarnessError: the harness itself failed, or no node is left for some cases.
        """
        for kind, own in grouped((job.case.device, job) for job in jobs).items():
            workers = self._workers if kind == "cpu" else self._gpu_workers(kind)
            yield from self._run_on(workers, JobQueue(own), timeout_s, stop_at)

    def _run_on(
        self, workers: Sequence[RayWorker], queue: JobQueue, timeout_s: float, stop_at: float
    ) -> Iterator[Record]:
        idle = [*workers]
        finished: list[Record] = []
        busy: dict[Any, tuple[RayWorker, Job | None]] = {}
        attempts: Counter[Case] = Counter()
        while True:
            for worker in [*idle] if monotonic() < stop_at else ():
                if (job := queue.take(worker.environment)) is not None:
                    idle.remove(worker)
                    busy[worker.actor.run.remote(job, timeout_s)] = worker, job
            # only now, so that the nodes work while these are written
            yield from finished
            finished.clear()
            is_over = not len(queue) or monotonic() >= stop_at
            if not busy or (is_over and not any(job for _, job in busy.values())):
                break
            (done,), _ = ray.wait([*busy], num_returns=1)
            worker, job = busy.pop(done)
            try:
                found = ray.get(done)
            except RayTaskError as error:
                raise HarnessError(str(error.cause)) from error
            except RayError as error:  # the actor or its node has ended
                if job is not None:
                    attempts[job.case] += 1
                    if attempts[job.case] < _ATTEMPTS:
                        queue.give_back(job)
                    else:
                        finished.append(_crashed(job, worker, error))
                if worker.node in _alive():
                    # answers once the actor has been restarted; fails once the node is known dead
                    busy[worker.actor.describe.remote()] = worker, None
                    continue
                self._workers[:] = [other for other in self._workers if other.node != worker.node]
                self.lost.append(f"node {worker.address} died; its case was run on another one")
                idle = [other for other in idle if other.node != worker.node]
                left = [*idle, *(other for other, _ in busy.values())]
                if worker.environment not in {other.environment for other in left}:
                    queue.leave(worker.environment)
            else:
                idle.append(worker)
                if job is not None:
                    finished.append(found)
        if len(queue) and monotonic() < stop_at:
            raise HarnessError(
                f"no node is left that can run {count(len(queue), 'case')}; what was measured "
                "is kept, continue with --resume"
            )

    def _gpu_workers(self, kind: str) -> list[RayWorker]:
        """Return an actor for each GPU that Ray knows of."""
        gpus = {
            node["NodeID"]: [str(index) for index in range(int(node["Resources"].get("GPU", 0)))]
            for node in ray.nodes()
        }
        return [
            replace(worker, actor=_start_actor(worker.node, num_cpus=0, num_gpus=1))
            for worker in self._workers
            if kind in worker.info.device_counts
            for _ in usable_gpus(gpus[worker.node], worker.info.environment)
        ]


def _check_that_it_answers(address: str | None) -> None:
    """Raise OSError if nothing answers at an address; Ray would try it for minutes."""
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal() and "/" not in host:  # not ray://
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


def _alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _crashed(job: Job, worker: RayWorker, error: Exception) -> Record:
    return Record(
        case=job.case,
        environment=worker.environment,
        status=Status.CRASHED,
        reason=f"ended the Ray actor that ran it {_ATTEMPTS} times: {_first_line(error)}",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]

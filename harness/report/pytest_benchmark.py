"""Files of pytest-benchmark that the project's plugin wrote, read as records.

``extra_info`` of each benchmark holds under KEY the record as the journal stores it, without its
times, and ``machine_info`` of the file the environment. Every
latency that is read names pytest-benchmark and its clock as the timer. It has no ratio to a
reference or a copy, since nothing was timed in turn. Consecutive rounds are taken as an epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

from harness.measure import epoch_values, estimate, has_converged
from harness.records import (
    Allocation,
    Arm,
    ArmRole,
    Budget,
    Cache,
    Clock,
    Environment,
    Latency,
    Record,
    Run,
)
from harness.records.refusal import NotMeasuredError, Refusal, refusing
from harness.store import Results, from_plain, to_plain

__all__ = ["KEY", "MODEL_BYTES", "extra_info_of", "import_benchmarks", "machine_info_of"]

KEY = "layernorm_bench"
"""Name of the project's entry in ``extra_info`` and in ``machine_info``."""
MODEL_BYTES = "model_bytes"
"""In ``extra_info``: bytes that any implementation must read and write, as in ``Latency``."""


def extra_info_of(record: Record, *, model_bytes: int) -> dict[str, Any]:
    """Return the entry to add to ``extra_info``: ``{KEY: ...}``, as JSON can hold it.

    Args:
        record: of the verified case; its times are left out.
        model_bytes: bytes that any implementation must read and write for the case.
    """
    return {KEY: to_plain(replace(record, latency=None, cold=None)) | {MODEL_BYTES: model_bytes}}


def machine_info_of(environment: Environment) -> dict[str, Any]:
    """Return the entry to add to ``machine_info``: ``{KEY: ...}``."""
    return {KEY: to_plain(environment)}


# by value of pytest-benchmark's --benchmark-timer
_CLOCKS = {
    "perf_counter": Clock.WALL,
    "monotonic": Clock.WALL,
    "time": Clock.WALL,
    "thread_time": Clock.THREAD_CPU,
    "process_time": Clock.PROCESS_CPU,
}
_EPOCHS = Budget().max_epochs


def import_benchmarks(path: Path, command: str) -> Results:
    """Return the records of a pytest-benchmark file.

    Args:
        path: written by ``--benchmark-json`` or, with ``--benchmark-save-data``, in its storage.
        command: stored with the run.

    Raises:
        Refusal: it cannot be read, or was not written with the project's plugin.
        NotMeasuredError: it holds no benchmark.
    """
    try:
        with refusing(path, "read"):
            content: Any = json.loads(path.read_bytes())
        environment = from_plain(Environment, content["machine_info"][KEY])
        records = tuple(_record(benchmark, environment) for benchmark in content["benchmarks"])
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"missing: {error}" if isinstance(error, KeyError) else error
        raise Refusal(
            f"{path}: is damaged, or is not JSON that `pytest --layernorm-sweep ci "
            f"--benchmark-json FILE` writes: {what}"
        ) from error
    if not records:
        raise NotMeasuredError(f"{path}: holds no benchmark: no case was both right and timed")
    arms = [arm for record in records if record.latency for arm in record.latency.arms]
    run = Run(
        name=path.stem,
        started_utc=str(content.get("datetime", "")),
        command=command,
        planned=len(records),
        version=metadata.version("layernorm-bench"),
        environment=environment.fingerprint,
        # of all rounds: pytest-benchmark stores no time of the session
        wall_s=sum(sum(arm.wall_s) * arm.calls_per_sample for arm in arms),
    )
    environments = {environment.fingerprint: environment}
    return Results(records=records, runs=(run,), environments=environments)


def _record(benchmark: Mapping[str, Any], environment: Environment) -> Record:
    carried = benchmark["extra_info"][KEY]
    record: Record = from_plain(Record, carried)  # it has no times
    if record.environment != environment.fingerprint:
        raise ValueError(
            f"{record.case.id} is of environment {record.environment}, but the file is of "
            f"{environment.fingerprint}: it is put together from two files"
        )
    return replace(record, latency=_latency(record, benchmark, carried[MODEL_BYTES]))


def _latency(record: Record, benchmark: Mapping[str, Any], model_bytes: int) -> Latency:
    timer, stats = benchmark["options"]["timer"], benchmark["stats"]
    clock = _CLOCKS.get(timer)
    if clock is None:
        raise ValueError(
            f"timed by {timer}, which is not a known clock; choose another with "
            f"--benchmark-timer: {', '.join(_CLOCKS)}"
        )
    if not stats.get("data"):
        raise ValueError(
            "holds no raw times; write it with --benchmark-json, or with --benchmark-save-data"
        )
    samples = tuple(map(float, stats["data"]))
    if not all(0 < time_s < inf for time_s in samples):
        raise ValueError(
            f"{record.case.id} has times that are not positive numbers; measure it again"
        )
    epochs = min(_EPOCHS, len(samples))
    arm = Arm(
        role=ArmRole.SUBJECT,
        name=record.case.implementation,
        calls_per_sample=int(stats["iterations"]),
        wall_s=samples,
        cpu_s=samples if clock.is_cpu else None,
        epochs=tuple(index * epochs // len(samples) for index in range(len(samples))),
    )
    per_call = estimate(epoch_values(arm, cpu=clock.is_cpu))
    return Latency(
        clock=clock,
        timer=f"pytest-benchmark:{timer}",
        cache=Cache.WARM,
        allocation=Allocation.DEFAULT,
        per_call_s=per_call,
        reference_ratio=None,
        ceiling_ratio=None,
        model_bytes=int(model_bytes),
        converged=has_converged(per_call, None, Budget()),
        processes=1,
        process_of_epoch=(0,) * epochs,
        minor_faults_ratio=None,
        compile_s=None,
        arms=(arm,),
    )

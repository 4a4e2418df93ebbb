"""A file that pytest-benchmark wrote of our sweep, as records: its times, our verification.

Every latency names pytest-benchmark and its clock as the timer. There is no reference and no copy
beside it, since nothing was timed in turn; rounds that follow each other are taken for an epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.exports.benchmark_json import EXPORTED_BY, KEY, MODEL_BYTES, record_from
from harness.measure.sample_statistics import epoch_values, estimate
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
from harness.records.refusal import Refusal
from harness.store import Results
from harness.store.plain import from_plain

__all__ = ["BenchmarkFileError", "NothingTimedError", "import_benchmarks"]

# pytest-benchmark's --benchmark-timer: which of our clocks it reads
_CLOCKS = {
    "perf_counter": Clock.WALL,
    "monotonic": Clock.WALL,
    "time": Clock.WALL,
    "thread_time": Clock.THREAD_CPU,
    "process_time": Clock.PROCESS_CPU,
}
_EPOCHS = Budget().max_epochs


class BenchmarkFileError(Refusal):
    """A file that is not what our plugin makes pytest-benchmark write; says why."""


class NothingTimedError(Refusal):
    """There is no benchmark in it."""

    exit_code = 3


def import_benchmarks(path: Path, command: str) -> Results:
    """Read a file of pytest-benchmark's.

    Args:
        path: written by ``--benchmark-json`` or, with ``--benchmark-save-data``, in its storage.
        command: for the record of the run.

    Raises:
        BenchmarkFileError: see there.
        NothingTimedError: see there.
    """
    found = _load(path)
    benchmarks, info = found.get("benchmarks"), found.get("machine_info")
    if not isinstance(benchmarks, list) or not isinstance(info, dict):
        raise BenchmarkFileError(f"{path}: is JSON, but not a file of pytest-benchmark's")
    if not benchmarks:
        raise NothingTimedError(f"{path}: holds no benchmark: no case was right and timed")
    records = tuple(_record(path, each) for each in benchmarks)
    try:
        environment = from_plain(Environment, info[KEY])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BenchmarkFileError(f"{path}: does not say on which machine: {error!r}") from error
    strangers = [each for each in records if each.environment != environment.fingerprint]
    if strangers:
        raise BenchmarkFileError(
            f"{path}: {strangers[0].case.id} is of environment {strangers[0].environment}, and the "
            f"file is of {environment.fingerprint}: parts of two files"
        )
    run = Run(
        name=path.stem,
        started_utc=str(found.get("datetime", "")),
        command=command,
        planned=len(records),
        version=metadata.version("layernorm-bench"),
        environment=environment.fingerprint,
        wall_s=sum(map(_timed_s, records)),  # of the session pytest-benchmark says nothing
    )
    return Results(
        records=records, runs=(run,), environments={environment.fingerprint: environment}
    )


def _timed_s(record: Record) -> float:
    """Seconds of all rounds."""
    arms = record.latency.arms if record.latency else ()
    return sum(sum(each.wall_s) * each.calls_per_sample for each in arms)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BenchmarkFileError(
            f"{path}: no such file; make one with `pytest --layernorm-sweep ci --benchmark-json "
            f"{path}`"
        ) from error
    except OSError as error:
        raise BenchmarkFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BenchmarkFileError(f"{path}: is not JSON, or was cut off: {error}") from error
    if not isinstance(found, dict):
        raise BenchmarkFileError(f"{path}: is JSON, but not a file of pytest-benchmark's")
    return found


def _record(path: Path, benchmark: Mapping[str, Any]) -> Record:
    try:
        name, carried = benchmark["fullname"], benchmark["extra_info"].get(KEY)
        if carried is None:
            raise BenchmarkFileError(
                f"{path}: {name} is not one of ours: nothing says which case it timed, or whether "
                "the result was right; only files of `pytest --layernorm-sweep` are imported"
            )
        if EXPORTED_BY in carried:
            raise BenchmarkFileError(
                f"{path}: was exported from a results file, which holds all of it: use that one"
            )
        record = record_from(carried)
        latency = _latency(path, record, benchmark, carried[MODEL_BYTES])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BenchmarkFileError(
            f"{path}: a benchmark in it is damaged, or of another version: {error!r}"
        ) from error
    return replace(record, latency=latency)


def _latency(path: Path, record: Record, benchmark: Mapping[str, Any], model_bytes: int) -> Latency:
    """Return the rounds of a benchmark as a latency."""
    timer, stats = benchmark["options"]["timer"], benchmark["stats"]
    clock = _CLOCKS.get(timer)
    if clock is None:
        raise BenchmarkFileError(
            f"{path}: timed by {timer}, which none of our clocks is; import one timed by "
            f"{', '.join(_CLOCKS)}"
        )
    if not stats.get("data"):
        raise BenchmarkFileError(
            f"{path}: holds no raw times; write it by --benchmark-json, or with "
            "--benchmark-save-data"
        )
    samples = tuple(map(float, stats["data"]))
    if not all(0 < each < float("inf") for each in samples):
        raise BenchmarkFileError(
            f"{path}: {record.case.id} has times that are not positive numbers; measure it again"
        )
    epochs = min(_EPOCHS, len(samples))
    arm = Arm(
        role=ArmRole.SUBJECT,
        name=record.case.implementation,
        calls_per_sample=int(stats["iterations"]),
        wall_s=samples,
        cpu_s=samples if clock.is_cpu else None,
        epochs=tuple(place * epochs // len(samples) for place in range(len(samples))),
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
        converged=per_call.high / per_call.value - 1 < Budget().target_ratio,
        processes=1,
        process_of_epoch=(0,) * epochs,
        minor_faults_ratio=None,
        compile_s=None,
        arms=(arm,),
    )

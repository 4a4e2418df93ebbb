"""Read a file that pytest-benchmark wrote with the project's plugin, as verified records.

Every latency names pytest-benchmark and its clock as the timer. It has no ratio to a reference or a
copy, since nothing was timed in turn. Consecutive rounds are taken as an epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

from harness.exports.benchmark_json import EXPORTED_BY, KEY, MODEL_BYTES, record_from
from harness.measure.sample_statistics import epoch_values, estimate, has_converged
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

# by value of pytest-benchmark's --benchmark-timer
_CLOCKS = {
    "perf_counter": Clock.WALL,
    "monotonic": Clock.WALL,
    "time": Clock.WALL,
    "thread_time": Clock.THREAD_CPU,
    "process_time": Clock.PROCESS_CPU,
}
_EPOCHS = Budget().max_epochs
_DAMAGE = (KeyError, ValueError, TypeError, AttributeError)  # raised for a damaged record
_NOT_A_BENCHMARK_FILE = "is JSON, but not a pytest-benchmark file"


class BenchmarkFileError(Refusal):
    """A file that was not written with the project's plugin; the message says why."""


class NothingTimedError(Refusal):
    """The file holds no benchmark."""

    exit_code = 3


def import_benchmarks(path: Path, command: str) -> Results:
    """Return the records of a pytest-benchmark file.

    Args:
        path: written by ``--benchmark-json`` or, with ``--benchmark-save-data``, in its storage.
        command: stored with the run.

    Raises:
        BenchmarkFileError: it cannot be read, or was not written with the project's plugin.
        NothingTimedError: it holds no benchmark.
    """
    try:
        return _results(path, command)
    except (BenchmarkFileError, NothingTimedError) as error:
        raise type(error)(f"{path}: {error}") from error


def _results(path: Path, command: str) -> Results:
    content = _load(path)
    benchmarks, info = content.get("benchmarks"), content.get("machine_info")
    if not isinstance(benchmarks, list) or not isinstance(info, dict):
        raise BenchmarkFileError(_NOT_A_BENCHMARK_FILE)
    if not benchmarks:
        raise NothingTimedError("holds no benchmark: no case was both right and timed")
    records = tuple(map(_record, benchmarks))
    try:
        environment = from_plain(Environment, info[KEY])
    except _DAMAGE as error:
        raise BenchmarkFileError(f"does not name the machine: {error!r}") from error
    for record in records:
        if record.environment != environment.fingerprint:
            raise BenchmarkFileError(
                f"{record.case.id} is of environment {record.environment}, but the file is of "
                f"{environment.fingerprint}: it is put together from two files"
            )
    run = Run(
        name=path.stem,
        started_utc=str(content.get("datetime", "")),
        command=command,
        planned=len(records),
        version=metadata.version("layernorm-bench"),
        environment=environment.fingerprint,
        wall_s=sum(map(_timed_s, records)),  # pytest-benchmark stores no time of the session
    )
    return Results(
        records=records, runs=(run,), environments={environment.fingerprint: environment}
    )


def _timed_s(record: Record) -> float:
    """Return the seconds of all rounds."""
    arms = record.latency.arms if record.latency else ()
    return sum(sum(arm.wall_s) * arm.calls_per_sample for arm in arms)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        how = f"pytest --layernorm-sweep ci --benchmark-json {path}"
        raise BenchmarkFileError(f"no such file; make one with `{how}`") from error
    except OSError as error:
        raise BenchmarkFileError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BenchmarkFileError(f"is not JSON, or is truncated: {error}") from error
    if not isinstance(content, dict):
        raise BenchmarkFileError(_NOT_A_BENCHMARK_FILE)
    return content


def _record(benchmark: Mapping[str, Any]) -> Record:
    try:
        name, carried = benchmark["fullname"], benchmark["extra_info"].get(KEY)
        if carried is None:
            raise BenchmarkFileError(
                f"{name} does not say which case it timed, or whether the result was right; only "
                "files of `pytest --layernorm-sweep` can be imported"
            )
        if EXPORTED_BY in carried:
            raise BenchmarkFileError(
                "was exported from a results file; use that file, which holds more"
            )
        record = record_from(carried)
        return replace(record, latency=_latency(record, benchmark, carried[MODEL_BYTES]))
    except _DAMAGE as error:
        raise BenchmarkFileError(
            f"holds a benchmark that is damaged or of another version: {error!r}"
        ) from error


def _latency(record: Record, benchmark: Mapping[str, Any], model_bytes: int) -> Latency:
    timer, stats = benchmark["options"]["timer"], benchmark["stats"]
    clock = _CLOCKS.get(timer)
    if clock is None:
        raise BenchmarkFileError(
            f"timed by {timer}, which is not a known clock; choose another with "
            f"--benchmark-timer: {', '.join(_CLOCKS)}"
        )
    if not stats.get("data"):
        raise BenchmarkFileError(
            "holds no raw times; write it with --benchmark-json, or with --benchmark-save-data"
        )
    samples = tuple(map(float, stats["data"]))
    if not all(0 < time_s < inf for time_s in samples):
        raise BenchmarkFileError(
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

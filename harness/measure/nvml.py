"""What a GPU is going through, as its driver's management library (NVML) tells it.

It is asked and never told: no clock, limit or mode is ever set here.
"""

from __future__ import annotations

import os
import weakref
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pynvml

from harness.records import Condition

__all__ = ["keep_open", "read_condition"]

# Bits that mean: slower than it would choose to run (nvml.h, nvmlClocksEventReasons; bindings name
# them in two ways). Left out are what others chose, which is the same for everything timed
# (application clocks, sync boost, display clocks), and an idle GPU: it had nothing to do.
_SLOWED_BY = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}


def read_condition(uuid: str | None) -> Condition:
    """Read the state of one GPU; what cannot be read is None, all of it where NVML is missing.

    Args:
        uuid: of the GPU, as torch gives it or with NVML's "GPU-" before it; None where it is not
            known. An index would not do: NVML counts all GPUs, CUDA those it is shown.
    """
    if uuid is None:
        return Condition()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Condition()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        return _condition(handle)
    except pynvml.NVMLError:  # no such GPU: a slice of one (MIG) has a UUID of another kind
        return Condition()
    finally:
        pynvml.nvmlShutdown()


def keep_open(owner: object) -> None:
    """Keep NVML open for as long as ``owner`` lives, so that a reading need not open it anew."""
    try:
        pynvml.nvmlInit()  # it counts: a later one, and its shutdown, then cost nothing
    except pynvml.NVMLError:
        return
    weakref.finalize(owner, pynvml.nvmlShutdown)


def _condition(handle: object) -> Condition:
    def ask(*names: str, of: tuple[object, ...] = ()) -> Any:
        return _answer(handle, names, of)

    multiprocessor, memory = (pynvml.NVML_CLOCK_SM,), (pynvml.NVML_CLOCK_MEM,)
    return Condition(
        clock_hz=_scaled(ask("nvmlDeviceGetClockInfo", of=multiprocessor), 1e6),
        clock_max_hz=_scaled(ask("nvmlDeviceGetMaxClockInfo", of=multiprocessor), 1e6),
        memory_clock_hz=_scaled(ask("nvmlDeviceGetClockInfo", of=memory), 1e6),
        power_w=_scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
        power_limit_w=_scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        temperature_c=_scaled(
            ask(
                "nvmlDeviceGetTemperatureV",
                "nvmlDeviceGetTemperature",  # older
                of=(pynvml.NVML_TEMPERATURE_GPU,),
            ),
            1.0,
        ),
        throttled_by=_slowed_by(
            ask(
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons",  # older
            )
        ),
        # by version, since the name without one raises what is no NVMLError on older drivers
        other_processes=_others(
            ask(
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetComputeRunningProcesses_v2",
            )
        ),
    )


def _answer(handle: object, names: tuple[str, ...], arguments: tuple[object, ...]) -> Any:
    """What the first of the functions says that binding, driver and GPU all know; else None."""
    for name in names:
        function = getattr(pynvml, name, None)
        if function is None:  # an older binding
            continue
        try:
            return function(handle, *arguments)
        except pynvml.NVMLError:
            continue
    return None


def _scaled(value: int | None, unit: float) -> float | None:
    """NVML gives MHz, milliwatts and degrees."""
    return None if value is None else value * unit


def _slowed_by(reasons: int | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    return tuple(words for bit, words in _SLOWED_BY.items() if reasons & bit)


def _others(processes: list[Any] | None) -> int | None:
    """How many of the processes are not this one, nor workers of the same run.

    None if this one is not listed: in a container it goes by another number, or only some are
    listed. Then it cannot be told which of them are others.
    """
    if processes is None:
        return None
    numbers = {each.pid for each in processes}  # each once for every slice of the GPU it uses
    if os.getpid() not in numbers:
        return None
    return sum(not _is_ours(each) for each in numbers)


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or, of a worker, another of the same parent: it waits."""
    if pid == os.getpid():
        return True
    parent = parent_process()
    try:
        # the name, in parentheses, may hold anything; then come the state and the parent
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return parent is not None and fields[1:2] == [str(parent.pid)]

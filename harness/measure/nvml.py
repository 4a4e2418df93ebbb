"""Read the condition of a GPU from its driver's management library, NVML.

Nothing is ever set here: no clock, limit or mode.
"""

from __future__ import annotations

import os
import weakref
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pynvml

from harness.measure.device import POWER_CAP
from harness.records import Condition

__all__ = ["keep_open", "read_condition"]

# Bits for reasons why the GPU is slowed down (nvml.h, nvmlClocksEventReasons; bindings name them in
# two ways). Settings (application clocks, sync boost, display clocks) are not listed, because they
# are the same for everything timed; nor is an idle GPU.
_SLOWED_BY = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}


def read_condition(uuid: str | None) -> Condition:
    """Read the condition of one GPU; what cannot be read is None, and all of it without NVML.

    Args:
        uuid: of the GPU, with or without NVML's prefix "GPU-"; None where it is unknown. An index
            would be ambiguous: NVML counts all GPUs, but CUDA only the visible ones.
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
    except pynvml.NVMLError:  # no such GPU: a slice of a GPU (MIG) has another kind of UUID
        return Condition()
    finally:
        pynvml.nvmlShutdown()


def keep_open(owner: object) -> None:
    """Keep NVML open as long as ``owner`` lives, so that a reading does not initialise it."""
    try:
        pynvml.nvmlInit()  # NVML counts: later initialisations and shutdowns then cost nothing
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
        # by version: on older drivers the unversioned name raises something else than NVMLError
        other_processes=_others(
            ask(
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetComputeRunningProcesses_v2",
            )
        ),
    )


def _answer(handle: object, names: tuple[str, ...], arguments: tuple[object, ...]) -> Any:
    """Return the answer of the first function that binding, driver and GPU support, or None."""
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
    """Convert NVML's MHz, milliwatts and degrees to SI units."""
    return None if value is None else value * unit


def _slowed_by(reasons: int | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    return tuple(words for bit, words in _SLOWED_BY.items() if reasons & bit)


def _others(processes: list[Any] | None) -> int | None:
    """Return how many of the processes are neither this one nor workers of the same run.

    None if this process is not listed. In a container its number may differ, or not all processes
    may be listed, so it is unknown which of them are others.
    """
    if processes is None:
        return None
    numbers = {each.pid for each in processes}  # one process may be listed per slice of the GPU
    if os.getpid() not in numbers:
        return None
    return sum(not _is_of_this_run(pid) for pid in numbers)


def _is_of_this_run(pid: int) -> bool:
    """Whether a process is this one or another worker of the same parent, which is idle now."""
    if pid == os.getpid():
        return True
    parent = parent_process()
    try:
        # the name in parentheses may hold anything; after it come the state and the parent
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return parent is not None and fields[1:2] == [str(parent.pid)]

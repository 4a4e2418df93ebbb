"""The devices that can be measured, by kind. A new one needs its class and its name here."""

from __future__ import annotations

from collections.abc import Callable

from harness.measure.cpu import CpuDevice
from harness.measure.cuda import CudaDevice
from harness.measure.device import Device

DEVICES: dict[str, Callable[[], Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}


def device_of(kind: str, threads: int) -> Device:
    """Return the device of that kind, for calls that use ``threads`` CPU threads."""
    return CpuDevice(threads) if kind == "cpu" else DEVICES[kind]()

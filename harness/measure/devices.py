"""The devices that can be measured, by kind. A new one needs its class and its name here."""

from __future__ import annotations

from harness.measure.cpu import CpuDevice
from harness.measure.cuda import CudaDevice

Device = CpuDevice | CudaDevice
DEVICES: dict[str, type[Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}


def device_of(kind: str, threads: int) -> Device:
    """Return the device of that kind, for calls that use ``threads`` CPU threads."""
    return CpuDevice(threads) if kind == "cpu" else DEVICES[kind]()

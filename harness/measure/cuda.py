"""The current CUDA device, timed by events on its stream."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.measure.device import Reading
from harness.records import Clock, Condition

__all__ = ["CudaDevice"]


class CudaDevice:
    """The current CUDA device, timed by events on its stream."""

    kind = "cuda"
    clock = Clock.CUDA_EVENT

    def unavailable(self) -> str | None:
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA"
        return None if torch.cuda.is_available() else "torch sees no CUDA device"

    def free_bytes(self) -> int | None:
        free, _ = torch.cuda.mem_get_info()
        return int(free)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(calls):
            call()
        after.record()
        after.synchronize()
        return Reading(before.elapsed_time(after) / 1e3, None)  # it gives milliseconds

    def cache_bytes(self) -> int:
        return int(torch.cuda.get_device_properties().L2_cache_size)

    def resolution_s(self) -> float:
        return 0.5e-6

    def evict(self) -> None:
        raise NotImplementedError

    def replayed(self, call: Callable[[], object]) -> Callable[[], object] | None:
        raise NotImplementedError

    def condition(self) -> Condition:
        return Condition()

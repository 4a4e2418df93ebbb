"""Compile a fused kernel with a layout for a GPU, which need not be there.

The package's own launch is called on small tensors, with a driver that only names the GPU. Triton
therefore compiles exactly what a call on that GPU needs, and keeps it in its cache.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from implementations.triton import arguments, launch
from implementations.triton import layout as layouts
from implementations.triton.layout import Layout

DIRECTIONS = ("forward", "backward")
# Bytes of shared memory that a program may have: CUDA C++ Programming Guide, "Compute Capabilities"
SHARED_BYTES = {
    capability: kib << 10
    for capability, kib in {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}.items()
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout for a kind of call."""

    direction: str
    dtype: str
    hidden: int
    layout: Layout
    statistic: str = "recentred"

    @property
    def itemsize(self) -> int:
        return getattr(torch, self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a program needs: registers and stack of a thread, shared memory, and barriers."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    barriers: int


def present(direction: str, dtype: str, hidden: int) -> Layout | None:
    """Return the layout in use; None if no program can hold such a row."""
    return getattr(layouts, direction)(hidden, getattr(torch, dtype).itemsize)


@contextmanager
def using(direction: str, layout: Layout) -> Iterator[None]:
    """Let every call of one direction have a layout."""
    launch.forget_plans()
    try:
        with patch.object(layouts, direction, lambda hidden, itemsize: layout):
            yield
    finally:
        launch.forget_plans()


def compile_for(candidate: Candidate, capability: int) -> Compiled:
    """Compile for a GPU of a compute capability, such as 90, from sizes that are multiples of 16.

    Raises what the compiler raises.
    """
    from triton import JITFunction
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    made: dict[str, Any] = {}
    run = JITFunction.run

    def compile_only(kernel: Any, *tensors: Any, grid: Any, warmup: bool, **given: Any) -> None:
        made[kernel.__name__] = run(kernel, *tensors, grid=grid, warmup=True, **given)

    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            get_current_device=lambda: capability,  # the key of what is compiled already
            get_current_stream=lambda device: 0,
        )
    )
    found = arguments.imported
    x = torch.zeros(16, candidate.hidden, dtype=getattr(torch, candidate.dtype))
    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(arguments, "imported", lambda name: (found(name)[0], True)),
        using(candidate.direction, candidate.layout),
    ):
        if candidate.direction == "forward":
            launch.forward(x, x[0], x[0], candidate.hidden, 1e-5, candidate.statistic, saves=True)
        else:
            moments = torch.zeros(launch.moments_of(candidate.statistic), 16)
            launch.backward(x, x, x[0], moments, candidate.hidden, True, x.dtype, x.dtype)
    kernel = made[f"{candidate.direction}_of_tiles"]
    package = Path(import_module("triton").__file__ or "").parent
    with TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cubin").write_bytes(kernel.asm["cubin"])
        reader = package / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.check_output(
            [reader, "--dump-resource-usage", "kernel.cubin"], cwd=folder, text=True
        )
    numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", usage)}
    barriers = len(re.findall(r"bar\.sync|barrier\.sync", kernel.asm["ptx"]))
    return Compiled(numbers["REG"], numbers["STACK"], kernel.metadata.shared, barriers)

"""Workloads: TOML files of calls, and how often each occurs.

The package has some in ``harness/selection/workloads/``; a workload has the name of its file.

    [[calls]]
    shape = "4096x1024"
    dtype = "bfloat16"
    direction = "forward"
    count = 24

All mistakes of a file are reported together, each with its line.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.records import Affine, Direction
from harness.records.refusal import Refusal
from harness.records.text import shape_text, suggest
from harness.sweep.grid import Dtype, Eps, Positive, Shape, Threads
from harness.sweep.strict_toml import StrictTable, TomlFile, read_toml, validated

__all__ = [
    "Call",
    "Workload",
    "WorkloadError",
    "find_workload",
    "load_workload",
    "workload_names",
]

_Count = Annotated[int, Field(strict=True, ge=1, le=1 << 53)]  # larger ones are not exact as floats

_WORKLOADS = resources.files("harness.selection").joinpath("workloads")


class WorkloadError(Refusal):
    """A workload that cannot be used; the message has a line for each mistake."""


class Call(StrictTable):
    """One kind of call. An axis that is None has the value of the run, if the run has only one."""

    shape: Shape
    """Of x."""
    dtype: Dtype
    """Of x."""
    direction: Direction
    count: _Count = 1
    """How often it occurs."""
    device: str | None = None
    """Kind of device; None is every device of the run, each with its own choice."""
    normalized_dims: Positive | None = None
    param_dtype: Dtype | None = None
    layout: str | None = None
    affine: Affine | None = None
    eps: Eps | None = None
    threads: Threads | None = None

    @property
    def text(self) -> str:
        """The call in one line, without its count."""
        given = self.model_dump(exclude={"shape", "dtype", "direction", "count", "device"})
        return " ".join([
            shape_text(self.shape),
            self.dtype,
            *([self.device] if self.device else []),
            self.direction,
            *(f"{name}={value}" for name, value in given.items() if value is not None),
        ])


class Workload(StrictTable):
    """The contents of a workload file."""

    description: str = ""
    calls: tuple[Call, ...]


def workload_names() -> tuple[str, ...]:
    """Return the names of the package's workloads, in alphabetical order."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in _WORKLOADS.iterdir()))


def find_workload(named: str) -> Workload:
    """Load the workload file at a path, or the package's workload of that name.

    Raises:
        WorkloadError: neither exists; or as :func:`load_workload`.
    """
    path = Path(named)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return load_workload(path)
    if named not in workload_names():
        raise WorkloadError(
            f"no workload named {named!r}; workloads: {', '.join(workload_names())}"
            f"{suggest(named, workload_names())} (or give a file, such as mine.toml)"
        )
    text = _WORKLOADS.joinpath(f"{named}.toml").read_text(encoding="utf-8")
    return _workload_in(TomlFile(named, text, "calls", WorkloadError))


def load_workload(path: Path) -> Workload:
    """Load a workload file.

    Raises:
        WorkloadError: it cannot be read, is not TOML, or has mistakes.
    """
    return _workload_in(read_toml(path, "calls", WorkloadError))


def _workload_in(file: TomlFile) -> Workload:
    if not file.plain.get("calls"):
        raise WorkloadError(
            f"{file.name}: holds no calls; write, for each kind of call, a table [[calls]] with "
            "shape, dtype, direction and count"
        )
    return validated(Workload, file.plain, file.place_of, WorkloadError)

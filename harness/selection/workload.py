"""A workload as it is written: a TOML file of calls, each so many times.

Some come with the package, in ``harness/selection/workloads/``, named after their files.

    [[calls]]
    shape = "4096x1024"
    dtype = "bfloat16"
    direction = "forward"
    count = 24

Every mistake of a file is reported at once, with its line.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.records import Affine, Direction
from harness.records.refusal import Refusal
from harness.sweep.grid import Dtype, Eps, Positive, Shape, Threads
from harness.sweep.strict_toml import StrictTable, TomlFile, read_toml, suggest, validated

__all__ = [
    "Call",
    "Workload",
    "WorkloadError",
    "find_workload",
    "load_workload",
    "workload_names",
]

_Count = Annotated[int, Field(strict=True, ge=1, le=1 << 53)]  # what a float counts exactly

_WORKLOADS = resources.files("harness.selection").joinpath("workloads")


class WorkloadError(Refusal):
    """A workload that cannot be used; the message has a line for each mistake."""


class Call(StrictTable):
    """One kind of call. An axis that is None is whatever the run has, if it has but one."""

    shape: Shape
    """Of x."""
    dtype: Dtype
    """Of x."""
    direction: Direction
    count: _Count = 1
    """How often it occurs."""
    device: str | None = None
    """Kind; None is every device that the run has, each by itself."""
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
            "x".join(map(str, self.shape)),
            self.dtype,
            *([self.device] if self.device else []),
            self.direction,
            *(f"{name}={value}" for name, value in given.items() if value is not None),
        ])


class Workload(StrictTable):
    """What a workload file holds."""

    description: str = ""
    calls: tuple[Call, ...]


def workload_names() -> tuple[str, ...]:
    """Names of the workloads that come with the package, in alphabetical order."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in _WORKLOADS.iterdir()))


def find_workload(named: str) -> Workload:
    """Load the workload file at a path, or the workload of that name that comes with the package.

    Raises:
        WorkloadError: there is none; or as :func:`load_workload`.
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

"""Sweeps as they are written: TOML files, presets, and the same axes on the command line.

A sweep is a list of grids; a grid is the product of its axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from harness.records import Affine, Autograd, Direction, Measurement, Mode
from harness.records.refusal import Refusal
from harness.records.text import suggest
from harness.sweep.shapes import check_holdable, check_list_of_shapes, parse_shape
from harness.sweep.strict_toml import (
    Location,
    StrictTable,
    TomlFile,
    not_one_of,
    read_toml,
    validated,
)

__all__ = [
    "DTYPES",
    "EVERY",
    "PEERS",
    "SAME",
    "Grid",
    "Sweep",
    "SweepError",
    "load_preset",
    "load_sweep",
    "preset_names",
]

DTYPES = ("float16", "bfloat16", "float32", "float64")
SAME = "same"  # param_dtypes: the dtype of x
EVERY = "all"  # implementations: the package's own, written for the device
PEERS = "peers"  # implementations: other packages', written for the device


_PRESETS = resources.files("harness.sweep").joinpath("presets")


class SweepError(Refusal):
    """A sweep that cannot be run; the message has a line for each mistake."""


def _shape(value: object) -> object:
    return parse_shape(value) if isinstance(value, str) else value


def _dtype(value: object) -> object:
    if value not in DTYPES:
        raise ValueError(not_one_of(value, DTYPES))
    return value


def _param_dtype(value: object) -> object:
    if value not in (*DTYPES, SAME):
        raise ValueError(not_one_of(value, (*DTYPES, SAME)))
    return value


Size = Annotated[int, Field(strict=True, ge=0)]
Shape = Annotated[
    tuple[Size, ...], Field(min_length=1), BeforeValidator(_shape), AfterValidator(check_holdable)
]
Dtype = Annotated[str, BeforeValidator(_dtype)]
ParamDtype = Annotated[str, BeforeValidator(_param_dtype)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Threads = Annotated[int, Field(strict=True, ge=1, le=4096)]  # more than any machine has cores
Seed = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]  # an int64 in the results file
Seconds = Annotated[float, Field(strict=True, gt=0, le=7 * 86400)]  # over a week is a mistake
Eps = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Axis = Field(min_length=1)


class Grid(StrictTable):
    """A product of axes, and the measurements of each of its cases."""

    implementations: Annotated[tuple[str, ...], Axis] = (EVERY,)
    """Names or targets. "all" is every implementation of the package that is written for the
    device; "peers" is every implementation of other packages."""
    modes: Annotated[tuple[Mode, ...], Axis] = (Mode.EAGER,)
    shapes: Annotated[tuple[Shape, ...], Axis, BeforeValidator(check_list_of_shapes)] = (
        (64, 768),
        (512, 768),
        (2048, 1024),
    )
    normalized_dims: Annotated[tuple[Positive, ...], Axis] = (1,)
    dtypes: Annotated[tuple[Dtype, ...], Axis] = ("float32",)
    param_dtypes: Annotated[tuple[ParamDtype, ...], Axis] = (SAME,)
    devices: Annotated[tuple[str, ...], Axis] = ("cpu",)
    distributions: Annotated[tuple[str, ...], Axis] = ("normal",)
    layouts: Annotated[tuple[str, ...], Axis] = ("contiguous",)
    directions: Annotated[tuple[Direction, ...], Axis] = (Direction.FORWARD,)
    autograd: Annotated[tuple[Autograd, ...], Axis] = (Autograd.DEFAULT,)
    grad_outputs: Annotated[tuple[str, ...], Axis] = ("shifted_normal",)
    affines: Annotated[tuple[Affine, ...], Axis] = (Affine.BOTH,)
    parameters: Annotated[tuple[str, ...], Axis] = ("normal",)
    eps: Annotated[tuple[Eps, ...], Axis] = (1e-5,)
    threads: Annotated[tuple[Threads, ...], Axis] = (1,)
    seeds: Annotated[tuple[Seed, ...], Axis] = (0,)
    measure: Annotated[tuple[Measurement, ...], Axis] = (
        Measurement.ERRORS,
        Measurement.LATENCY,
        Measurement.MEMORY,
    )
    """Errors are measured in any case: nothing is timed before it is verified."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the values of a sweep were written. No field is compared: equal sweeps are equal."""

    file: TomlFile | None = field(default=None, compare=False)
    """The user's sweep file, if there is one."""
    preset: str = field(default="", compare=False)
    """Name of the preset in messages. They do not name its keys, since users do not edit it."""
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Axes whose values came from command-line options, and those options."""

    def name_of(self, axis: str) -> str:
        """Return what the user calls an axis: ``--dtype``, or ``dtypes`` in a file."""
        return self.options.get(axis, axis)

    def place_of(self, location: Location) -> str:
        """Return where a value was written; empty for a sweep that was made in Python."""
        if len(location) > 2 and location[2] in self.options:
            return self.options[str(location[2])]
        return self.preset if self.file is None else self.file.place_of(location)


class Sweep(StrictTable):
    """The contents of a sweep file."""

    description: str = ""
    timeout_s: Seconds = 120.0
    """A case that takes longer is ended."""
    seconds_per_case: Seconds = 2.0
    """No further epoch of samples starts after this time."""
    min_epochs: Positive = 4
    """Least number of epochs, of 25 ms each, that are sampled."""
    max_epochs: Positive = 12
    """Largest number of epochs that are sampled."""
    processes: Annotated[int, Field(strict=True, ge=1, le=40)] = 1
    """Processes that each case is timed in. An interval within one process does not cover the
    differences between processes."""
    grids: Annotated[tuple[Grid, ...], Axis] = (Grid(),)

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Where its values were written."""
        return self._origin

    def with_axes(
        self, axes: Mapping[str, tuple[Any, ...]], options: Mapping[str, str] | None = None
    ) -> Sweep:
        """Return the sweep with axes of every grid replaced.

        Args:
            axes: their values.
            options: the command-line options that the values came from, for messages.

        Raises:
            SweepError: a value does not fit its axis.
        """
        options = {axis: name for axis, name in (options or {}).items() if axis in axes}
        place_of = Origin(options=options).place_of
        (given,) = validated(Sweep, {"grids": [axes]}, place_of, SweepError).grids
        update = {axis: getattr(given, axis) for axis in axes}
        sweep = self.model_copy(
            update={"grids": tuple(grid.model_copy(update=update) for grid in self.grids)}
        )
        sweep._origin = replace(self.origin, options={**self.origin.options, **options})
        return sweep

    def written(self, axis: str) -> Iterator[tuple[str, Any]]:
        """Yield the place and the value of each value of an axis, grid by grid."""
        for number, grid in enumerate(self.grids):
            for index, value in enumerate(getattr(grid, axis)):
                yield self.place_of(axis, number, index), value

    def place_of(self, axis: str, grid: int, index: int) -> str:
        """Return where the value at ``index`` of an axis was written; empty for a default."""
        is_default = axis not in self.grids[grid].model_fields_set
        return "" if is_default else self.origin.place_of(("grids", grid, axis, index))


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets, in alphabetical order."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in _PRESETS.iterdir()))


def load_preset(name: str) -> Sweep:
    """Load a preset.

    Raises:
        SweepError: no preset has that name.
    """
    if name not in preset_names():
        raise SweepError(
            f"no preset named {name!r}; presets: {', '.join(preset_names())}"
            f"{suggest(name, preset_names())}"
        )
    text = _PRESETS.joinpath(f"{name}.toml").read_text(encoding="utf-8")
    source = f"preset {name}"
    return _sweep_in(TomlFile(source, text, "grids", SweepError), Origin(preset=source))


def load_sweep(path: Path) -> Sweep:
    """Load a sweep file.

    Raises:
        SweepError: it cannot be read, is not TOML, or has mistakes.
    """
    file = read_toml(path, "grids", SweepError)
    return _sweep_in(file, Origin(file=file))


def _sweep_in(file: TomlFile, origin: Origin) -> Sweep:
    sweep = validated(Sweep, file.plain, file.place_of, SweepError)
    if "grids" not in file.plain:
        raise SweepError(
            f"{file.name}: has no [[grids]] table, so there is nothing to run: add one; an "
            "empty [[grids]] runs the default axes"
        )
    sweep._origin = origin
    return sweep

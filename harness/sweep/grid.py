"""Sweeps as they are written: TOML files, presets, and the same axes on the command line.

A sweep is a list of grids; a grid is the product of its axes. Every mistake of a file is
reported at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from harness.records import Affine, Direction, Measurement, Mode
from harness.records.refusal import Refusal
from harness.sweep.origin import Origin
from harness.sweep.shapes import check_holdable, check_list_of_shapes, parse_shape

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
    "suggest",
]

DTYPES = ("float16", "bfloat16", "float32", "float64")
SAME = "same"  # param_dtypes: that of x
EVERY = "all"  # implementations: those written for the device
PEERS = "peers"  # implementations: other people's, written for the device


class SweepError(Refusal):
    """A sweep that cannot be run; the message has a line for each mistake."""


def _shape(value: object) -> object:
    return parse_shape(value) if isinstance(value, str) else value


def _dtype(value: object) -> object:
    if value not in DTYPES:
        raise ValueError(_none_of(value, DTYPES))
    return value


def _param_dtype(value: object) -> object:
    if value not in (*DTYPES, SAME):
        raise ValueError(_none_of(value, (*DTYPES, SAME)))
    return value


Size = Annotated[int, Field(strict=True, ge=0)]
Shape = Annotated[
    tuple[Size, ...], Field(min_length=1), BeforeValidator(_shape), AfterValidator(check_holdable)
]
Dtype = Annotated[str, BeforeValidator(_dtype)]
ParamDtype = Annotated[str, BeforeValidator(_param_dtype)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Threads = Annotated[int, Field(strict=True, ge=1, le=4096)]  # ours: beyond any machine there is
Seed = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]  # what a results file can hold
Time = Annotated[float, Field(strict=True, gt=0, le=7 * 86400)]  # ours: a week is no limit
Eps = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Axis = Field(min_length=1)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Grid(_Strict):
    """A product of axes, and what to measure at each of its points."""

    implementations: Annotated[tuple[str, ...], Axis] = (EVERY,)
    """Names or targets; "all" is every implementation of the package written for the device, and
    "peers" is everybody else's."""
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
    """Errors are always measured, since nothing is timed before it is verified."""


class Sweep(_Strict):
    """What a sweep file holds."""

    description: str = ""
    timeout_s: Time = 120.0
    """A case that takes longer is ended."""
    seconds_per_case: Time = 2.0
    """No further epoch of samples starts after this."""
    min_epochs: Positive = 4
    """Epochs of 25 ms that are sampled at least."""
    max_epochs: Positive = 12
    """Epochs that are sampled at most."""
    processes: Annotated[int, Field(strict=True, ge=1, le=40)] = 1
    """Processes that each case is timed in; an interval over one does not cover the differences
    between processes."""
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
        (given,) = _validated({"grids": [axes]}, Origin(options=options)).grids
        update = {axis: getattr(given, axis) for axis in axes}
        sweep = self.model_copy(
            update={"grids": tuple(each.model_copy(update=update) for each in self.grids)}
        )
        sweep._origin = replace(self.origin, options={**self.origin.options, **options})
        return sweep

    def written(self, axis: str) -> Iterator[tuple[str, Any]]:
        """Yield the place and the value of each value of an axis, grid by grid."""
        for number, grid in enumerate(self.grids):
            for index, value in enumerate(getattr(grid, axis)):
                yield self.place_of(axis, number, index), value

    def place_of(self, axis: str, grid: int, index: int) -> str:
        """Where the value at ``index`` of an axis was written; empty for a default."""
        is_default = axis not in self.grids[grid].model_fields_set
        return "" if is_default else self.origin.place_of(axis, grid, index)


def preset_names() -> tuple[str, ...]:
    """Names of the presets, in alphabetical order."""
    files = resources.files("harness.sweep.presets").iterdir()
    return tuple(sorted(each.name[:-5] for each in files if each.name.endswith(".toml")))


def load_preset(name: str) -> Sweep:
    """Load a preset.

    Raises:
        SweepError: there is none of that name.
    """
    if name not in preset_names():
        raise SweepError(
            f"no preset named {name!r}; presets: {', '.join(preset_names())}"
            f"{suggest(name, preset_names())}"
        )
    text = resources.files("harness.sweep.presets").joinpath(f"{name}.toml").read_text()
    return _parse(text, Origin(source=f"preset {name}"))


def load_sweep(path: Path) -> Sweep:
    """Load a sweep file.

    Raises:
        SweepError: it cannot be read, is not TOML, or has mistakes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SweepError(f"{path}: cannot be read: {why}") from error
    return _parse(text, Origin(source=str(path), is_file=True))


def _parse(text: str, origin: Origin) -> Sweep:
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{origin.source}: not TOML: {error}") from error
    sweep = _validated(plain, origin)
    if "grids" not in plain:
        raise SweepError(
            f"{origin.source}: has no [[grids]] table, so there is nothing to run: add one; an "
            "empty [[grids]] runs the default axes"
        )
    return sweep


def _validated(plain: Mapping[str, Any], origin: Origin) -> Sweep:
    try:
        sweep = Sweep.model_validate(plain)
    except ValidationError as error:
        found = error.errors()
        # an axis whose only value is bad is reported as empty too
        places = [each["loc"] for each in found]
        lines = [
            _mistake(each, origin)
            for each in found
            if not any(place[: len(each["loc"])] == each["loc"] != place for place in places)
        ]
        raise SweepError("\n".join(lines)) from error
    sweep._origin = origin
    return sweep


def _mistake(error: ErrorDetails, origin: Origin) -> str:
    """Return one line: where, what was expected, what was found."""
    where = f"{_place(error['loc'], origin)}: "
    value = error["input"]
    if error["type"] == "extra_forbidden":
        owner: type[BaseModel] = Grid if error["loc"][0] == "grids" else Sweep
        key = str(error["loc"][-1])
        return f"{where}unknown key{suggest(key, tuple(owner.model_fields))}"
    if error["type"] == "enum":
        known = tuple(error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", "))
        return f"{where}{_none_of(value, known)}"
    plain_words = {"too_short": "needs at least one value", "tuple_type": "must be a list"}
    message = plain_words.get(
        error["type"],
        error["msg"].removeprefix("Value error, ").replace("Input should be", "must be"),
    )
    return where + message + ("" if error["type"] == "value_error" else f" (found {value!r})")


def _place(place: tuple[int | str, ...], origin: Origin) -> str:
    """Name the option that a value came from, or the file and the place in it."""
    if place[0] == "grids" and len(place) > 2 and str(place[2]) in origin.options:
        return origin.options[str(place[2])]
    path = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)
    return f"{origin.source}: {path.lstrip('.')}".removeprefix(": ")


def _none_of(value: object, known: tuple[str, ...]) -> str:
    return f"{value!r} is not one of {', '.join(known)}{suggest(str(value), known)}"


def suggest(name: str, known: tuple[str, ...]) -> str:
    """Return a question after the known name nearest to ``name``, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

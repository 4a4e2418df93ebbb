"""Sweeps as they are written: TOML files, presets, and the same axes on the command line.

A sweep is a list of grids; a grid is the product of its axes. Every mistake of a file is
reported at once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from harness.records import Affine, Direction, Measurement, Mode
from harness.refusal import Refusal

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
    "parse_shape",
    "preset_names",
    "suggest",
]

DTYPES = ("float16", "bfloat16", "float32", "float64")
COMMAND_LINE = "command line"
SAME = "same"  # param_dtypes: that of x
EVERY = "all"  # implementations: those written for the device
PEERS = "peers"  # implementations: other people's, written for the device

_SHAPE = re.compile(r"\d+(x\d+)*")
_MOST_ELEMENTS = 1 << 40  # ours: 4 TiB in float32, beyond any device there is


class SweepError(Refusal):
    """A sweep that cannot be run; the message has a line for each mistake."""


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in ``4096x1024``; a size may be 0.

    Raises:
        ValueError: the text is not sizes joined by x, or no machine could hold it.
    """
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"{text!r} is not a shape: write sizes joined by x, such as 4096x1024")
    return _holdable(tuple(int(size) for size in text.split("x")))


def _holdable(shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > _MOST_ELEMENTS:
        name = "x".join(map(str, shape))
        raise ValueError(f"{name!r} has {prod(shape):.3g} elements, more than any device holds")
    return shape


def _shape(value: object) -> object:
    return parse_shape(value) if isinstance(value, str) else value


def _dtype(value: object) -> object:
    if value not in DTYPES:
        hint = suggest(str(value), DTYPES)
        raise ValueError(f"{value!r} is not one of {', '.join(DTYPES)}{hint}")
    return value


def _param_dtype(value: object) -> object:
    return value if value == SAME else _dtype(value)


Size = Annotated[int, Field(strict=True, ge=0)]
Shape = Annotated[
    tuple[Size, ...], Field(min_length=1), BeforeValidator(_shape), AfterValidator(_holdable)
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
    shapes: Annotated[tuple[Shape, ...], Axis] = ((64, 768), (512, 768), (2048, 1024))
    normalized_dims: Annotated[tuple[Positive, ...], Axis] = (1,)
    dtypes: Annotated[tuple[Dtype, ...], Axis] = ("float32",)
    param_dtypes: Annotated[tuple[ParamDtype, ...], Axis] = (SAME,)
    devices: Annotated[tuple[str, ...], Axis] = ("cpu",)
    distributions: Annotated[tuple[str, ...], Axis] = ("normal",)
    layouts: Annotated[tuple[str, ...], Axis] = ("contiguous",)
    directions: Annotated[tuple[Direction, ...], Axis] = (Direction.FORWARD,)
    upstreams: Annotated[tuple[str, ...], Axis] = ("shifted_normal",)
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
    """Processes that a case is timed in; an interval over several holds, over one it does not."""
    grids: Annotated[tuple[Grid, ...], Axis] = (Grid(),)

    def with_axes(self, axes: Mapping[str, tuple[Any, ...]]) -> Sweep:
        """Return the sweep with axes of every grid replaced.

        Raises:
            SweepError: a value does not fit its axis.
        """
        _validated({"grids": [axes]}, COMMAND_LINE)
        plain = self.model_dump()
        for grid in plain["grids"]:
            grid.update(axes)
        return Sweep.model_validate(plain)


def preset_names() -> tuple[str, ...]:
    """Names of the presets, in alphabetical order."""
    files = resources.files("harness.presets").iterdir()
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
    return _parse(resources.files("harness.presets").joinpath(f"{name}.toml").read_text(), name)


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
    return _parse(text, str(path))


def _parse(text: str, source: str) -> Sweep:
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{source}: not TOML: {error}") from error
    sweep = _validated(plain, source)
    if "grids" not in plain:
        raise SweepError(
            f"{source}: has no [[grids]], and so no case: an empty one is the usual sweep"
        )
    return sweep


def _validated(plain: Mapping[str, Any], source: str) -> Sweep:
    try:
        return Sweep.model_validate(plain)
    except ValidationError as error:
        found = error.errors()
        # an axis whose only value is bad is reported as empty too
        places = [each["loc"] for each in found]
        lines = [
            _mistake(each)
            for each in found
            if not any(place[: len(each["loc"])] == each["loc"] != place for place in places)
        ]
        if source == COMMAND_LINE:  # one grid, which it never names
            lines = [line.removeprefix("grids[0].") for line in lines]
        raise SweepError("\n".join(f"{source}: {line}" for line in lines)) from error


def _mistake(error: ErrorDetails) -> str:
    """Return one line: where, what was expected, what was found."""
    where = "".join(
        f"[{each}]" if isinstance(each, int) else f".{each}" for each in error["loc"]
    ).lstrip(".")
    if error["type"] == "extra_forbidden":
        owner: type[BaseModel] = Grid if error["loc"][0] == "grids" else Sweep
        key = str(error["loc"][-1])
        return f"{where}: unknown key{suggest(key, tuple(owner.model_fields))}"
    plain_words = {"too_short": "needs at least one value", "tuple_type": "must be a list"}
    message = plain_words.get(error["type"], error["msg"].removeprefix("Value error, "))
    found = "" if error["type"] == "value_error" else f" (found {error['input']!r})"
    return f"{where}: {message}{found}"


def suggest(name: str, known: tuple[str, ...]) -> str:
    """Return a question after the known name nearest to ``name``, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

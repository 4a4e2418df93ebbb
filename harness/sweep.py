"""From axes to cases: sweep files in TOML, presets, and the same axes on the command line.

A sweep is a list of grids; a grid is the product of its axes, in a fixed order in which
neighbours share their inputs. Every mistake of a file is reported at once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from harness.records import Affine, Case, Direction, Measurement, Mode
from harness.refusal import Refusal

__all__ = [
    "DTYPES",
    "Grid",
    "Planned",
    "Sweep",
    "SweepError",
    "expand",
    "in_shard",
    "load_preset",
    "load_sweep",
    "parse_shape",
    "preset_names",
]

DTYPES = ("float16", "bfloat16", "float32", "float64")
COMMAND_LINE = "command line"
SAME = "same"  # param_dtypes: that of x

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


def _dtype(value: str) -> str:
    if value not in (*DTYPES, SAME):
        raise ValueError(f"{value!r} is not one of {', '.join(DTYPES)}{_suggest(value, DTYPES)}")
    return value


Size = Annotated[int, Field(strict=True, ge=0)]
Shape = Annotated[
    tuple[Size, ...], Field(min_length=1), BeforeValidator(_shape), AfterValidator(_holdable)
]
Dtype = Annotated[str, BeforeValidator(_dtype)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Eps = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Axis = Field(min_length=1)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Grid(_Strict):
    """A product of axes, and what to measure at each of its points."""

    implementations: Annotated[tuple[str, ...], Axis] = ("all",)
    """Names or targets; "all" is every implementation of the package."""
    modes: Annotated[tuple[Mode, ...], Axis] = (Mode.EAGER,)
    shapes: Annotated[tuple[Shape, ...], Axis] = ((64, 768), (512, 768), (2048, 1024))
    normalized_dims: Annotated[tuple[Positive, ...], Axis] = (1,)
    dtypes: Annotated[tuple[Dtype, ...], Axis] = ("float32",)
    param_dtypes: Annotated[tuple[Dtype, ...], Axis] = (SAME,)
    devices: Annotated[tuple[str, ...], Axis] = ("cpu",)
    distributions: Annotated[tuple[str, ...], Axis] = ("normal",)
    layouts: Annotated[tuple[str, ...], Axis] = ("contiguous",)
    directions: Annotated[tuple[Direction, ...], Axis] = (Direction.FORWARD,)
    affines: Annotated[tuple[Affine, ...], Axis] = (Affine.BOTH,)
    eps: Annotated[tuple[Eps, ...], Axis] = (1e-5,)
    threads: Annotated[tuple[Positive, ...], Axis] = (1,)
    seeds: Annotated[tuple[Annotated[int, Field(strict=True)], ...], Axis] = (0,)
    measure: Annotated[tuple[Measurement, ...], Axis] = tuple(Measurement)
    """Errors are always measured, since nothing is timed before it is verified."""


class Sweep(_Strict):
    """What a sweep file holds."""

    description: str = ""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """A case that takes longer is ended."""
    seconds_per_case: Annotated[float, Field(gt=0)] = 2.0
    """No further epoch of samples starts after this."""
    min_epochs: Positive = 4
    """Epochs of 25 ms that are sampled at least."""
    max_epochs: Positive = 12
    """Epochs that are sampled at most."""
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


@dataclass(frozen=True, slots=True)
class Planned:
    """A case and what to measure of it."""

    case: Case
    measurements: tuple[Measurement, ...]


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
            f"{_suggest(name, preset_names())}"
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


def expand(
    sweep: Sweep,
    *,
    implementations: Iterable[str],
    distributions: Iterable[str],
    layouts: Iterable[str],
    devices: Mapping[str, str | None],
) -> tuple[Planned, ...]:
    """Return the cases of a sweep in order, each once, given what exists where it will run.

    Args:
        sweep: what is asked for.
        implementations: what "all" stands for.
        distributions: names that exist.
        layouts: names that exist.
        devices: kinds that exist, each with why it cannot be used, or None.

    Raises:
        SweepError: a name does not exist, or a shape has too few axes to normalise over.
    """
    mistakes = []
    for grid in sweep.grids:
        mistakes += _unknown("distribution", grid.distributions, tuple(distributions))
        mistakes += _unknown("layout", grid.layouts, tuple(layouts))
        mistakes += _unknown("device", grid.devices, tuple(devices))
        mistakes += [
            f"device {each!r} cannot be used: {devices[each]}"
            for each in grid.devices
            if devices.get(each)
        ]
        mistakes += [
            f"shape {'x'.join(map(str, shape))} has fewer than {dims} axes to normalise over"
            for shape, dims in product(grid.shapes, grid.normalized_dims)
            if len(shape) < dims
        ]
    if mistakes:
        raise SweepError("\n".join(dict.fromkeys(mistakes)))
    planned: dict[Case, dict[Measurement, None]] = {}
    for grid in sweep.grids:
        for case in _cases(grid, tuple(implementations)):
            # dicts keep the order of first mention and drop repeats
            planned.setdefault(case, {}).update(dict.fromkeys(grid.measure))
    return tuple(Planned(case, tuple(measure)) for case, measure in planned.items())


def in_shard(case: Case, index: int, count: int) -> bool:
    """Whether ``case`` belongs to shard ``index`` (from 1) of ``count``; each is in exactly one."""
    digest = sha256(case.id.encode()).digest()
    return int.from_bytes(digest[:8]) % count == index - 1


# A case's fields and the axes of a grid they come from. Neighbours share their inputs: what
# changes those varies slowest, and the implementation fastest.
_AXES = {
    "device": "devices",
    "threads": "threads",
    "shape": "shapes",
    "normalized_dims": "normalized_dims",
    "dtype": "dtypes",
    "param_dtype": "param_dtypes",
    "layout": "layouts",
    "affine": "affines",
    "eps": "eps",
    "seed": "seeds",
    "distribution": "distributions",
    "direction": "directions",
    "mode": "modes",
    "implementation": "implementations",
}


def _cases(grid: Grid, everything: tuple[str, ...]) -> Iterable[Case]:
    axes = {field: getattr(grid, axis) for field, axis in _AXES.items()}
    axes["implementation"] = tuple(
        name for each in grid.implementations for name in (everything if each == "all" else (each,))
    )
    for values in product(*axes.values()):
        point: dict[str, Any] = dict(zip(axes, values, strict=True))
        if point["param_dtype"] == SAME:
            point["param_dtype"] = point["dtype"]
        yield Case(**point)


def _unknown(what: str, names: Iterable[str], known: tuple[str, ...]) -> list[str]:
    return [
        f"no {what} named {name!r}{_suggest(name, known)}; known: {', '.join(known)}"
        for name in names
        if name not in known
    ]


def _parse(text: str, source: str) -> Sweep:
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{source}: not TOML: {error}") from error
    return _validated(plain, source)


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
        return f"{where}: unknown key{_suggest(key, tuple(owner.model_fields))}"
    plain_words = {"too_short": "needs at least one value", "tuple_type": "must be a list"}
    message = plain_words.get(error["type"], error["msg"].removeprefix("Value error, "))
    found = "" if error["type"] == "value_error" else f" (found {error['input']!r})"
    return f"{where}: {message}{found}"


def _suggest(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

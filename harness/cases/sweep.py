"""Sweeps: TOML files, presets, and the same axes on the command line; and the cases of a sweep.

A sweep is a list of grids; a grid is the product of its axes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, create_model

from harness.cases.axes import (
    AXES,
    EVERY,
    PEERS,
    Axis,
    case_of,
    ordered,
    sweep_axes,
)
from harness.cases.strict_toml import (
    Location,
    StrictTable,
    TomlFile,
    not_one_of,
    read_toml,
    validated,
)
from harness.records import Case, Measurement
from harness.records.refusal import Refusal
from harness.records.text import count, shape_text, suggest

__all__ = [
    "Grid",
    "Planned",
    "Sweep",
    "SweepError",
    "expand",
    "in_shard",
    "load_preset",
    "load_sweep",
    "mistake_lines",
    "parse_shape",
    "parse_shapes",
    "preset_names",
]

_PRESETS = resources.files("harness.cases").joinpath("presets")
_SHAPE = re.compile(r"\d+(x\d+)*")
# sizes joined by another character than x, or a tuple or list as Python prints it
_ALMOST_A_SHAPE = re.compile(r"[\[(]?\s*\d+(\s*[xX*×,]\s*\d+)+\s*,?\s*[\])]?", re.ASCII)
_MOST_ELEMENTS = 1 << 40  # 4 TiB in float32, more than any device has


class SweepError(Refusal):
    """A sweep that cannot be run; the message has a line for each mistake."""


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in ``4096x1024``; a size may be 0.

    Raises:
        ValueError: the text is not sizes joined by x, or no device holds so many elements.
    """
    if not _SHAPE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a shape: write sizes joined by x, such as {_example(text)}"
        )
    return check_holdable(tuple(int(size) for size in text.split("x")))


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes in ``64x768,8x1024``, or the one shape in ``64x768`` or ``768``.

    A shape of one axis is accepted only by itself: ``64,768`` is more often meant as one shape.

    Raises:
        ValueError: a part is no shape, or one of several shapes has a single axis.
    """
    if text.lstrip().startswith(("(", "[")):
        return (parse_shape(text),)  # refuses it, with the shape that was meant
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r} has an empty shape: remove the extra comma")
    shapes = tuple(parse_shape(part) for part in parts)
    if len(shapes) > 1 and any(len(shape) == 1 for shape in shapes):
        options = " ".join(f"--shape {part}" for part in parts)
        if all(len(shape) == 1 for shape in shapes):
            raise ValueError(
                f"{text!r} is ambiguous: write {'x'.join(parts)} for one shape of {len(parts)} "
                f"axes, or {options} for {len(parts)} shapes of one axis; several shapes of more "
                "axes are written 64x768,8x1024"
            )
        raise ValueError(
            f"{text!r} has a shape of one axis among others: if that is meant, write {options}; "
            "otherwise join the sizes of each shape by x, such as 64x768,8x1024"
        )
    return shapes


def check_holdable(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``shape``.

    Raises:
        ValueError: it has more elements than any device holds.
    """
    if prod(shape) > _MOST_ELEMENTS:
        raise ValueError(
            f"'{shape_text(shape)}' has {prod(shape):.3g} elements, more than any device holds"
        )
    return shape


def check_list_of_shapes(value: object) -> object:
    """Return the value of a sweep file's ``shapes``.

    Raises:
        ValueError: it is a list of numbers, that is the sizes of a single shape.
    """
    if isinstance(value, list | tuple) and value and all(type(size) is int for size in value):
        sizes = list(value)
        apart = ", ".join(f"[{size}]" for size in sizes)
        one_axis = "" if len(sizes) == 1 else f", or [{apart}] for {len(sizes)} shapes of one axis"
        raise ValueError(
            f"{sizes} is a list of sizes, not of shapes: "
            f'write ["{shape_text(sizes)}"] for one shape{one_axis}'
        )
    return value


def _example(text: str) -> str:
    """Return the shape that was probably meant, or any shape."""
    if _ALMOST_A_SHAPE.fullmatch(text.strip()):
        return "x".join(re.findall(r"\d+", text))
    return "4096x1024"


def _shape(value: object) -> object:
    return parse_shape(value) if isinstance(value, str) else value


def _one_of(known: tuple[str, ...], value: object) -> object:
    if value not in known:
        raise ValueError(not_one_of(value, known))
    return value


Size = Annotated[int, Field(strict=True, ge=0)]
Shape = Annotated[
    tuple[Size, ...], Field(min_length=1), BeforeValidator(_shape), AfterValidator(check_holdable)
]
Positive = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=7 * 86400)]  # over a week is a mistake
Several = Field(min_length=1)


def type_of(axis: Axis) -> Any:
    """Return the type of a value of an axis in a file."""
    if axis.kind is tuple:
        return Shape
    if axis.kind in {int, float}:
        return Annotated[axis.kind, Field(strict=True, **axis.limits)]
    if axis.known and not axis.is_registered:
        return Annotated[str, BeforeValidator(partial(_one_of, axis.known))]
    return axis.kind


def _of_grid(axis: Axis) -> tuple[Any, tuple[Any, ...]]:
    """Return the type and the default of an axis in a grid."""
    several: Any = Annotated[tuple[type_of(axis), ...], Several]  # type: ignore[misc]
    if axis.kind is tuple:
        several = Annotated[several, BeforeValidator(check_list_of_shapes)]
    return several, axis.default


if TYPE_CHECKING:

    class Grid(StrictTable):
        """A product of axes, and the measurements of each of its cases."""

        def __init__(self, **axes: tuple[Any, ...]) -> None: ...
        def __getattr__(self, axis: str) -> tuple[Any, ...]: ...

else:
    Grid = create_model(
        "Grid",
        __base__=StrictTable,
        __module__=__name__,
        __doc__="A product of axes, and the measurements of each of its cases.",
        **{axis.key: _of_grid(axis) for axis in sweep_axes()},
    )


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
    grids: Annotated[tuple[Grid, ...], Several] = (Grid(),)

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


# --- the cases of a sweep -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """A case and its measurements."""

    case: Case
    measurements: tuple[Measurement, ...]


def expand(
    sweep: Sweep,
    *,
    implementations: Mapping[str, Collection[str]],
    devices: Mapping[str, str | None],
    names: Mapping[str, Collection[str]] = MappingProxyType({}),
    peers: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[Planned, ...]:
    """Return the cases of a sweep in order, each once.

    All arguments but ``sweep`` describe the machine that runs the sweep.

    Args:
        sweep: the grids.
        implementations: what "all" stands for: names, each with the kinds of device that it is
            written for. A case gets those written for its device.
        devices: known kinds, each with the reason why it cannot be used, or None.
        names: those that exist of the distributions and other inputs, by axis; by default the usual
            ones.
        peers: what "peers" stands for, as ``implementations``.

    Raises:
        SweepError: a name does not exist, or a shape has too few axes to normalise over.
    """
    mistakes = [*_unknown(sweep, {**names, "device": devices}), *_too_few_axes(sweep)]
    mistakes += [
        (place, f"device {kind!r} cannot be used: {devices[kind]}")
        for place, kind in sweep.written("devices")
        if devices.get(kind)
    ]
    if mistakes:
        raise SweepError("\n".join(mistake_lines(mistakes)))
    planned: dict[Case, dict[Measurement, None]] = {}
    for grid in sweep.grids:
        for case in _cases(grid, {EVERY: implementations, PEERS: peers}):
            # dicts keep the order of first mention and drop repeats
            planned.setdefault(case, {}).update(dict.fromkeys(grid.measure))
    return tuple(Planned(case, tuple(measure)) for case, measure in planned.items())


def mistake_lines(mistakes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line per message: the first place that has the mistake, and how many others do.

    Args:
        mistakes: places and messages; a place may be empty.
    """
    places: dict[str, dict[str, None]] = {}
    for place, message in mistakes:
        places.setdefault(message, {})[place] = None
    lines = []
    for message, (first, *others) in places.items():
        more = f" (and in {count(len(others), 'other place')})" if others else ""
        lines.append(f"{first}: {message}{more}" if first else message)
    return lines


def in_shard(case: Case, index: int, shards: int) -> bool:
    """Whether ``case`` is in shard ``index`` (from 1) of ``shards``; each is in exactly one."""
    digest = sha256(case.id.encode()).digest()
    return int.from_bytes(digest[:8]) % shards == index - 1


# in this order the implementation varies fastest, so that consecutive cases share their inputs
_NESTING = (
    "device", "threads", "shape", "normalized_dims", "dtype", "param_dtype", "layout", "affine",
    "parameters", "eps", "seed", "distribution", "autograd", "grad_output", "direction", "mode",
    "implementation",
)  # fmt: skip


def _cases(grid: Grid, groups: Mapping[str, Mapping[str, Collection[str]]]) -> Iterable[Case]:
    axes = {axis.name: getattr(grid, axis.key) for axis in ordered(_NESTING) if axis.key}
    axes["implementation"] = tuple(
        name for entry in grid.implementations for name in groups.get(entry, (entry,))
    )
    written_for = {name: kinds for group in groups.values() for name, kinds in group.items()}
    named = set(grid.implementations)
    for values in product(*axes.values()):
        point: dict[str, Any] = dict(zip(axes, values, strict=True))
        name = point["implementation"]
        if name not in named and point["device"] not in written_for[name]:
            continue
        yield case_of(point)


def _unknown(sweep: Sweep, names: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    for axis in AXES.values():
        known = tuple(names.get(axis.name, axis.default)) if axis.is_registered else ()
        for place, name in sweep.written(axis.key) if known else ():
            if name not in known:
                suggested = f"{suggest(name, known)}; known: {', '.join(known)}"
                yield place, f"no {axis.name} named {name!r}{suggested}"


def _too_few_axes(sweep: Sweep) -> Iterator[tuple[str, str]]:
    name = sweep.origin.name_of("normalized_dims")
    for number, grid in enumerate(sweep.grids):
        for shape, dims in product(grid.shapes, grid.normalized_dims):
            if len(shape) < dims:
                index = grid.shapes.index(shape)
                yield (
                    sweep.place_of("shapes", number, index),
                    f"shape {shape_text(shape)} has fewer than {dims} axes to normalise "
                    f"over ({name} {dims})",
                )

"""Sweeps: TOML files, presets, and the same axes on the command line; and the cases of a sweep.

A sweep is a list of grids; a grid is the product of its axes. Files are read strictly: an unknown
key or a value of the wrong type is a mistake. All mistakes of a file are reported at once, each
with its key and what was expected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails

from harness.cases.axes import (
    AXES,
    EVERY,
    PEERS,
    Axis,
    case_of,
    ordered,
    sweep_axes,
)
from harness.records import Case, Measurement
from harness.records.refusal import Refusal
from harness.records.text import shape_text, suggest

_PRESETS = resources.files("harness.cases").joinpath("presets")
_MOST_ELEMENTS = 1 << 40  # 4 TiB in float32, more than any device has


# --- shapes ---------------------------------------------------------------------------------------


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in ``4096x1024``; a size may be 0.

    Raises:
        ValueError: the text is not sizes joined by x, or no device holds so many elements.
    """
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise ValueError(f"{text!r} is not a shape: write sizes joined by x, such as 4096x1024")
    return _holdable(tuple(int(size) for size in text.split("x")))


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes in ``64x768,8x1024``, or the one shape in ``64x768`` or ``768``.

    A shape of one axis is accepted only by itself: ``64,768`` is more often meant as one shape.

    Raises:
        ValueError: a part is no shape, or one of several shapes has a single axis.
    """
    shapes = tuple(parse_shape(part.strip()) for part in text.split(","))
    if len(shapes) > 1 and any(len(shape) == 1 for shape in shapes):
        raise ValueError(
            f"{text!r} has a shape of one axis among several: write 64x768 for one shape of two "
            "axes, or --shape 64 --shape 768 for two shapes of one axis"
        )
    return shapes


def _holdable(shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > _MOST_ELEMENTS:
        raise ValueError(
            f"'{shape_text(shape)}' has {prod(shape):.3g} elements, more than any device holds"
        )
    return shape


# --- files ----------------------------------------------------------------------------------------

Location = tuple[int | str, ...]
"""Keys and indices that lead to a value, such as ``("grids", 0, "shapes", 1)``."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the values of a table were written. No field is compared: equal tables are equal."""

    source: str = field(default="", compare=False)
    """What messages call the file or preset; empty for a table that was made in Python."""
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Axes whose values came from command-line options, and those options."""

    def place_of(self, axis: str, path: str = "") -> str:
        """Return ``--shape: ``, or ``mine.toml: grids[0].shapes[1]: ``."""
        if axis in self.options:
            return f"{self.options[axis]}: "
        return f"{self.source}: {path or axis}: " if self.source else path and f"{path}: "


class StrictTable(BaseModel):
    """A table without unknown keys, frozen once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


TableT = TypeVar("TableT", bound=StrictTable)


def read_table(model: type[TableT], file: Traversable, name: str) -> TableT:
    """Read a TOML file.

    Args:
        model: the type of the whole file.
        file: a path, or a file of the package.
        name: what messages call it.

    Raises:
        Refusal: it cannot be read, is not TOML, or has mistakes.
    """
    try:
        plain = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as failure:
        raise Refusal(f"{name}: cannot be read: {failure.strerror}") from failure
    except UnicodeDecodeError as failure:
        raise Refusal(f"{name}: cannot be read: not UTF-8 text") from failure
    except tomllib.TOMLDecodeError as failure:
        raise Refusal(f"{name}: not TOML: {failure}") from failure
    return _validated(model, plain, Origin(name))


def _validated(model: type[TableT], plain: Mapping[str, object], origin: Origin) -> TableT:
    try:
        return model.model_validate(plain)
    except ValidationError as invalid:
        mistakes = invalid.errors()
        locations = [mistake["loc"] for mistake in mistakes]
        lines = [
            f"{origin.place_of(*_key_of(mistake['loc']))}{_message(model, mistake)}"
            for mistake in mistakes
            # pydantic reports a list whose only value is bad as too short, too
            if not any(
                known[: len(mistake["loc"])] == mistake["loc"] != known for known in locations
            )
        ]
        raise Refusal("\n".join(lines)) from invalid


def _key_of(location: Location) -> tuple[str, str]:
    """Return the axis or key of a value, and the path to it: ``grids[0].shapes[1]``."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)
    return str(location[2] if len(location) > 2 else location[0]), "".join(keys)[1:]


_EXPECTED = {
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "too_short": "needs at least one value",
}


def _message(model: type[StrictTable], mistake: ErrorDetails) -> str:
    """Return the expected and the found value in words."""
    location, kind = mistake["loc"], mistake["type"]
    if kind == "extra_forbidden":
        in_array = len(location) > 2
        owner = get_args(model.model_fields[str(location[0])].annotation)[0] if in_array else model
        key = str(location[-1])
        axis = suggest(key, tuple(Grid.model_fields) if owner is Sweep else ())
        in_grids = axis.replace("?", " in a [[grids]] table?")
        return f"unknown key{suggest(key, tuple(owner.model_fields)) or in_grids}"
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return mistake["msg"].removeprefix("Value error, ")
    expected = _EXPECTED.get(kind, mistake["msg"].replace("Input should be", "must be"))
    return f"{expected} (found {mistake['input']!r})"


# --- sweeps ---------------------------------------------------------------------------------------


def _shape(value: object) -> object:
    return parse_shape(value) if isinstance(value, str) else value


Size = Annotated[int, Field(strict=True, ge=0)]
Shape = Annotated[
    tuple[Size, ...], Field(min_length=1), BeforeValidator(_shape), AfterValidator(_holdable)
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
        return Literal[axis.known]
    return axis.kind


def _of_grid(axis: Axis) -> tuple[Any, tuple[Any, ...]]:
    """Return the type and the default of an axis in a grid."""
    return Annotated[tuple[type_of(axis), ...], Several], axis.default  # type: ignore[misc]


def table_of(fields: Mapping[str, Any]) -> Any:
    """Return a class of strict tables with these keys, each with its type and default."""
    return create_model("_Table", __base__=StrictTable, **fields)


_OfAxes: Any = table_of({axis.key: _of_grid(axis) for axis in sweep_axes()})


class Grid(_OfAxes):  # type: ignore[misc] # type checkers do not know the fields, one per axis
    """A product of axes, and the measurements of each of its cases."""


class Sweep(StrictTable):
    """The contents of a sweep file."""

    description: str = ""
    timeout_s: Seconds = 120.0
    """A case that takes longer is ended."""
    seconds_per_case: Seconds = 2.0
    """No further epoch of samples starts after this time."""
    min_epochs: Positive = 4
    """Least number of epochs that are sampled, of about 8 ms per arm."""
    max_epochs: Positive = 12
    """Largest number of epochs that are sampled."""
    processes: Annotated[int, Field(strict=True, ge=1, le=40)] = 1
    """Processes that each case is timed in. An interval within one process does not cover the
    differences between processes."""
    grids: Annotated[tuple[Grid, ...], Several] = (Grid(),)

    _origin: Origin = PrivateAttr(default_factory=Origin)

    def with_axes(
        self, axes: Mapping[str, tuple[Any, ...]], options: Mapping[str, str] | None = None
    ) -> Sweep:
        """Return the sweep with axes of every grid replaced.

        Args:
            axes: their values.
            options: the command-line options that the values came from, for messages.

        Raises:
            Refusal: a value does not fit its axis.
        """
        options = {axis: name for axis, name in (options or {}).items() if axis in axes}
        (given,) = _validated(Sweep, {"grids": [axes]}, Origin(options=options)).grids
        update = {axis: getattr(given, axis) for axis in axes}
        sweep = self.model_copy(
            update={"grids": tuple(grid.model_copy(update=update) for grid in self.grids)}
        )
        sweep._origin = replace(self._origin, options={**self._origin.options, **options})
        return sweep

    def values_of(self, axis: str) -> dict[Any, None]:
        """Return the different values of an axis in all grids, in order."""
        return {value: None for grid in self.grids for value in getattr(grid, axis)}

    def refuse(self, mistakes: Iterable[tuple[str, str]]) -> None:
        """Refuse the sweep if it has mistakes, each the key of an axis and a message.

        Raises:
            Refusal: has a line per mistake, which begins with an option, or with a file and a key.
        """
        lines = {f"{self._origin.place_of(axis)}{message}": None for axis, message in mistakes}
        if lines:
            raise Refusal("\n".join(lines))


def tables_in(folder: Traversable) -> tuple[str, ...]:
    """Return the names of the TOML files in a folder of the package, in alphabetical order."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in folder.iterdir()))


def table_in(folder: Traversable, kind: str, name: str, more: str = "") -> Traversable:
    """Return the TOML file of that name in a folder of the package.

    Args:
        folder: of the files.
        kind: what messages call one: preset, workload.
        name: of the file.
        more: what else a message says.

    Raises:
        Refusal: there is none.
    """
    known = tables_in(folder)
    if name not in known:
        listed = f"{', '.join(known)}{suggest(name, known)}"
        raise Refusal(f"no {kind} named {name!r}; {kind}s: {listed}{more}")
    return folder.joinpath(f"{name}.toml")


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets, in alphabetical order."""
    return tables_in(_PRESETS)


def load_preset(name: str) -> Sweep:
    """Load a preset.

    Raises:
        Refusal: no preset has that name.
    """
    return _sweep_in(table_in(_PRESETS, "preset", name), f"preset {name}")


def load_sweep(path: Path) -> Sweep:
    """Load a sweep file.

    Raises:
        Refusal: it cannot be read, is not TOML, or has mistakes.
    """
    return _sweep_in(path, str(path))


def _sweep_in(file: Traversable, name: str) -> Sweep:
    sweep = read_table(Sweep, file, name)
    if "grids" not in sweep.model_fields_set:
        raise Refusal(
            f"{name}: has no [[grids]] table, so there is nothing to run: add one; an "
            "empty [[grids]] runs the default axes"
        )
    sweep._origin = Origin(name)
    return sweep


# --- the cases of a sweep -------------------------------------------------------------------------


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
        Refusal: a name does not exist, or a shape has too few axes to normalise over.
    """
    mistakes = [*_unknown(sweep, {**names, "device": devices})]
    mistakes += [
        ("shapes", f"shape {shape_text(shape)} has fewer than {dims} axes to normalise over")
        for grid in sweep.grids
        for shape, dims in product(grid.shapes, grid.normalized_dims)
        if len(shape) < dims
    ]
    mistakes += [
        ("devices", f"device {kind!r} cannot be used: {devices[kind]}")
        for kind in sweep.values_of("devices")
        if devices.get(kind)
    ]
    sweep.refuse(mistakes)
    planned: dict[Case, dict[Measurement, None]] = {}
    for grid in sweep.grids:
        for case in _cases(grid, {EVERY: implementations, PEERS: peers}):
            # dicts keep the order of first mention and drop repeats
            planned.setdefault(case, {}).update(dict.fromkeys(grid.measure))
    return tuple(Planned(case, tuple(measure)) for case, measure in planned.items())


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
    for values in product(*axes.values()):
        point: dict[str, Any] = dict(zip(axes, values, strict=True))
        name = point["implementation"]
        if name in grid.implementations or point["device"] in written_for[name]:
            yield case_of(point)


def _unknown(sweep: Sweep, names: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    for axis in AXES.values():
        known = tuple(names.get(axis.name, axis.default)) if axis.is_registered else ()
        for name in sweep.values_of(axis.key) if known else ():
            if name not in known and not axis.is_of_family(name):
                suggested = f"{suggest(name, known)}; known: {', '.join(known)}"
                yield axis.key, f"no {axis.name} named {name!r}{suggested}"

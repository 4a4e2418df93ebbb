"""The cases of a sweep, in a fixed order in which consecutive cases share their inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

from harness.records import Case, Measurement
from harness.records.text import count, shape_text, suggest
from harness.sweep.grid import EVERY, PEERS, SAME, Grid, Sweep, SweepError

__all__ = ["AXIS_OF_FIELD", "Planned", "expand", "in_shard", "mistake_lines"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A case and its measurements."""

    case: Case
    measurements: tuple[Measurement, ...]


def expand(
    sweep: Sweep,
    *,
    implementations: Mapping[str, Collection[str]],
    distributions: Iterable[str],
    layouts: Iterable[str],
    grad_outputs: Iterable[str],
    parameters: Iterable[str],
    devices: Mapping[str, str | None],
    peers: Mapping[str, Collection[str]] | None = None,
) -> tuple[Planned, ...]:
    """Return the cases of a sweep in order, each once.

    All arguments but ``sweep`` describe the machine that runs the sweep.

    Args:
        sweep: the grids.
        implementations: what "all" stands for: names, each with the kinds of device that it is
            written for. A case gets those written for its device.
        distributions: known names.
        layouts: known names.
        grad_outputs: known names.
        parameters: known names.
        devices: known kinds, each with the reason why it cannot be used, or None.
        peers: what "peers" stands for, as ``implementations``.

    Raises:
        SweepError: a name does not exist, or a shape has too few axes to normalise over.
    """
    mistakes = [
        *_unknown(sweep, "distributions", "distribution", tuple(distributions)),
        *_unknown(sweep, "layouts", "layout", tuple(layouts)),
        *_unknown(sweep, "grad_outputs", "grad_output", tuple(grad_outputs)),
        *_unknown(sweep, "parameters", "parameters", tuple(parameters)),
        *_unknown(sweep, "devices", "device", tuple(devices)),
        *(
            (place, f"device {kind!r} cannot be used: {devices[kind]}")
            for place, kind in sweep.written("devices")
            if devices.get(kind)
        ),
        *_too_few_axes(sweep),
    ]
    if mistakes:
        raise SweepError("\n".join(mistake_lines(mistakes)))
    planned: dict[Case, dict[Measurement, None]] = {}
    for grid in sweep.grids:
        for case in _cases(grid, {EVERY: implementations, PEERS: peers or {}}):
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


# In this order the implementation varies fastest, so that consecutive cases share their inputs.
AXIS_OF_FIELD = {
    "device": "devices",
    "threads": "threads",
    "shape": "shapes",
    "normalized_dims": "normalized_dims",
    "dtype": "dtypes",
    "param_dtype": "param_dtypes",
    "layout": "layouts",
    "affine": "affines",
    "parameters": "parameters",
    "eps": "eps",
    "seed": "seeds",
    "distribution": "distributions",
    "autograd": "autograd",
    "grad_output": "grad_outputs",
    "direction": "directions",
    "mode": "modes",
    "implementation": "implementations",
}
"""The fields of a case, and the axes of a grid that they come from."""


def _cases(grid: Grid, groups: Mapping[str, Mapping[str, Collection[str]]]) -> Iterable[Case]:
    axes = {field: getattr(grid, axis) for field, axis in AXIS_OF_FIELD.items()}
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
        if point["param_dtype"] == SAME:
            point["param_dtype"] = point["dtype"]
        yield Case(**point)


def _unknown(
    sweep: Sweep, axis: str, what: str, known: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for place, name in sweep.written(axis):
        if name not in known:
            message = f"no {what} named {name!r}{suggest(name, known)}; known: {', '.join(known)}"
            yield place, message


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

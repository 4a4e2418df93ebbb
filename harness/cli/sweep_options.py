"""The options that choose a sweep: a preset, a sweep file, and one option per axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cases.axes import Axis, sweep_axes
from harness.cli.arguments import SHAPES, Parsed, Words
from harness.cli.run_files import PATH

if TYPE_CHECKING:
    from harness.cases import Sweep

__all__ = ["SweepChoice", "axis_options", "sweep_options", "type_of"]


def type_of(axis: Axis) -> Parsed:
    """Return the type of an axis' option."""
    if axis.kind is tuple:
        return SHAPES
    if issubclass(axis.kind, StrEnum):
        return Words(tuple(axis.kind))
    return Words(axis.known, axis.kind)


@dataclass(frozen=True, slots=True)
class SweepChoice:
    """The sweep that the options of a command choose."""

    axes: Mapping[str, tuple[object, ...]]
    """Values of the axes that were given as options."""
    preset: str | None = None
    file: Path | None = None
    default_preset: str = ""
    """The preset where no option is given."""

    @classmethod
    def of_axes(cls, values: Mapping[str, tuple[Any, ...]], **others: Any) -> SweepChoice:
        """Join the values of options that were given several times, and drop empty axes."""
        return cls({axis: sum(given, ()) for axis, given in values.items() if given}, **others)

    @property
    def name(self) -> str:
        """A name for files: the name of the preset or sweep file, else "sweep"."""
        if self.file:
            return self.file.stem
        return self.preset or ("sweep" if self.axes else self.default_preset)

    def load(self) -> Sweep:
        """Return the sweep.

        Raises:
            Refusal: it does not exist, cannot be read, or has mistakes.
        """
        from harness.cases import Sweep, load_preset, load_sweep

        if self.file:
            sweep = load_sweep(self.file)
        elif self.preset or not self.axes:
            sweep = load_preset(self.preset or self.default_preset)
        else:
            sweep = Sweep()
        return sweep.with_axes(
            self.axes, {axis.key: axis.flag or axis.option for axis in sweep_axes()}
        )


def axis_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of all axes or, for a single case, of some.

    An option that is given twice, or with commas, has several values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for axis in reversed(sweep_axes()):
            if not names or axis.name in names:
                default = ",".join(map(axis.text, axis.default))
                command = click.option(
                    *((axis.flag,) if axis.flag else ()),
                    axis.option,
                    axis.key,
                    type=type_of(axis),
                    # one of the values makes a single case
                    metavar=type_of(axis).name.partition("[")[0] if names else None,
                    multiple=True,
                    help=f"{axis.help}  [default: {default}]",
                )(command)
        return command

    return decorate


def sweep_options(default_preset: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of sweeps; the command takes them as ``choice``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--preset",
            metavar="NAME",
            help="a sweep that comes with the package; see `list presets`  "
            f"[default: {default_preset}, if no axis is given]",
        )
        @click.option(
            "--sweep", "sweep_file", type=PATH, metavar="FILE.toml", help="a sweep file of your own"
        )
        @axis_options()
        @wraps(command)
        def with_choice(preset: str | None, sweep_file: Path | None, **others: Any) -> None:
            if preset and sweep_file:
                raise click.UsageError("give --preset or --sweep, not both")
            choice = SweepChoice.of_axes(
                {axis.key: others.pop(axis.key) for axis in sweep_axes()},
                preset=preset,
                file=sweep_file,
                default_preset=default_preset,
            )
            command(choice=choice, **others)

        return with_choice

    return decorate

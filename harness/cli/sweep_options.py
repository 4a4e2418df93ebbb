"""The options that choose a sweep: a preset, a sweep file, and one option per axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.arguments import DTYPES, Numbers, ParamType, ShapeText, Words
from harness.cli.run_files import PATH
from harness.records import Affine, Autograd, Direction, Measurement, Mode

if TYPE_CHECKING:
    from harness.sweep import Sweep

__all__ = ["AXIS_OPTIONS", "AxisOption", "SweepChoice", "axis_options", "sweep_options"]


@dataclass(frozen=True, slots=True)
class AxisOption:
    """The option that sets an axis of a sweep."""

    flags: tuple[str, ...]
    """The option; the first flag is the one that messages name."""
    axis: str
    """The axis of a :class:`harness.sweep.Grid`."""
    type: ParamType
    default: str
    """The value of the axis if neither the option nor a sweep sets it, as one would type it."""
    help: str


def _choice(known: type[Affine | Autograd | Direction | Measurement | Mode]) -> Words:
    return Words(tuple(member.value for member in known))


AXIS_OPTIONS = (
    AxisOption(
        ("-i", "--implementation"), "implementations", Words(), "all",
        "implementation: a name (see `list implementations`), all, peers, "
        "package.module:function or path/to/file.py:function",
    ),
    AxisOption(
        ("--shape",), "shapes", ShapeText(), "64x768,512x768,2048x1024",
        "shape of x; the last axis is normalised. Several shapes of one axis are given one by one: "
        "--shape 64 --shape 768",
    ),
    AxisOption(
        ("--normalized-dims",), "normalized_dims", Numbers(int), "1",
        "number of trailing axes to normalise over",
    ),
    AxisOption(
        ("--dtype",), "dtypes", Words(DTYPES), "float32", f"dtype of x: {', '.join(DTYPES)}"
    ),
    AxisOption(
        ("--param-dtype",), "param_dtypes", Words((*DTYPES, "same")), "same",
        'dtype of weight and bias; "same" is the dtype of x',
    ),
    AxisOption(
        ("--device",), "devices", Words(("cpu", "cuda")), "cpu", "kind of device: cpu, cuda"
    ),
    AxisOption(
        ("--distribution",), "distributions", Words(), "normal",
        "input distribution; see `list distributions`",
    ),
    AxisOption(
        ("--layout",), "layouts", Words(), "contiguous",
        "layout of x in memory; see `list layouts`",
    ),
    AxisOption(
        ("--grad-output",), "grad_outputs", Words(), "shifted_normal",
        "gradient of y, from which a backward pass starts; see `list grad_outputs`",
    ),
    AxisOption(
        ("--direction",), "directions", _choice(Direction), "forward",
        f"pass to run: {', '.join(Direction)}",
    ),
    AxisOption(
        ("--autograd",), "autograd", _choice(Autograd), "default",
        f"how the call takes part in autograd: {', '.join(Autograd)}",
    ),
    AxisOption(
        ("--mode",), "modes", _choice(Mode), "eager", "eager, or compiled with torch.compile"
    ),
    AxisOption(
        ("--affine",), "affines", _choice(Affine), "both",
        f"parameters to give: {', '.join(Affine)}",
    ),
    AxisOption(
        ("--parameters",), "parameters", Words(), "normal",
        "values of weight and bias; see `list parameters`",
    ),
    AxisOption(
        ("--eps",), "eps", Numbers(float), "1e-05", "eps, which is added to the variance"
    ),
    AxisOption(
        ("--threads",), "threads", Numbers(int), "1", "number of CPU threads that torch may use"
    ),
    AxisOption(("--seed",), "seeds", Numbers(int), "0", "seed of the random inputs"),
    AxisOption(
        ("--measure",), "measure", _choice(Measurement), "errors,latency,memory",
        "what to measure: errors (always), latency, cold (latency with inputs in no cache), memory",
    ),
)  # fmt: skip
"""The options of all axes, in the order of --help."""


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
            SweepError: it does not exist, cannot be read, or has mistakes.
        """
        from harness.sweep import Sweep, load_preset, load_sweep

        if self.file:
            sweep = load_sweep(self.file)
        elif self.preset or not self.axes:
            sweep = load_preset(self.preset or self.default_preset)
        else:
            sweep = Sweep()
        return sweep.with_axes(self.axes, {option.axis: option.flags[0] for option in AXIS_OPTIONS})


def axis_options(*axes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of all axes or, for a single case, of some.

    An option that is given twice, or with commas, has several values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(AXIS_OPTIONS):
            if not axes or option.axis in axes:
                # click would print the type's name in capitals: 4096X1024 is no shape
                metavar = option.type.name.partition("[")[0] if axes else option.type.name
                command = click.option(
                    *option.flags,
                    option.axis,
                    type=option.type,
                    metavar=metavar,
                    multiple=True,
                    help=f"{option.help}  [default: {option.default}]",
                )(command)
        return command

    return decorate


def sweep_options(default_preset: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of sweeps; the command takes them as ``choice``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_choice(preset: str | None, sweep_file: Path | None, **others: Any) -> None:
            if preset and sweep_file:
                raise click.UsageError("give --preset or --sweep, not both")
            choice = SweepChoice.of_axes(
                {option.axis: others.pop(option.axis) for option in AXIS_OPTIONS},
                preset=preset,
                file=sweep_file,
                default_preset=default_preset,
            )
            command(choice=choice, **others)

        decorated = axis_options()(with_choice)
        decorated = click.option(
            "--sweep", "sweep_file", type=PATH, metavar="FILE.toml", help="a sweep file of your own"
        )(decorated)
        return click.option(
            "--preset",
            metavar="NAME",
            help="a sweep that comes with the package; see `list presets`  "
            f"[default: {default_preset}, if no axis is given]",
        )(decorated)

    return decorate

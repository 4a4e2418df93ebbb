"""Types of command-line arguments, and the options that several commands share."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from harness.cli.run_files import PATH
from harness.records import Affine, Direction, Measurement, Mode

if TYPE_CHECKING:
    from harness.sweep import Sweep

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic at run time only from click 8.4.0 on

__all__ = [
    "AXES",
    "DTYPES",
    "Assignment",
    "AxisOption",
    "ChosenWords",
    "Duration",
    "Numbers",
    "Shape",
    "ShapeText",
    "Shard",
    "SweepChoice",
    "Words",
    "sweep_options",
]

DTYPES = ("float32", "bfloat16", "float16", "float64")  # harness.sweep, which is slow to import


class Words(ParamType):
    """Values joined by commas; those of ``completions`` are completed by the shell."""

    name = "name[,name...]"

    def __init__(self, completions: tuple[str, ...] = ()) -> None:
        self._completions = completions

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        words = tuple(word.strip() for word in value.split(","))
        if not all(words):
            self.fail(f"{value!r} has an empty value: remove the extra comma", param, ctx)
        return words

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(f"{done}{comma}{word}")
            for word in self._completions
            if word.startswith(last)
        ]


class ChosenWords(Words):
    """Values from a closed list, joined by commas."""

    def __init__(self, known: tuple[str, ...]) -> None:
        super().__init__(known)
        self.name = f"{known[0]}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        words = super().convert(value, param, ctx)
        for word in words:
            if word not in self._completions:
                self.fail(f"{word!r} is not one of {', '.join(self._completions)}", param, ctx)
        return words


class Numbers(Words):
    """Numbers joined by commas."""

    def __init__(self, kind: type[int | float]) -> None:
        super().__init__()
        self._kind = kind
        self.name = f"{kind.__name__}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:  # numbers, where Words has texts
        try:
            return tuple(self._kind(word) for word in super().convert(value, param, ctx))
        except ValueError:
            kind = "a whole number" if self._kind is int else "a number"
            self.fail(f"{value!r} is not {kind}, nor several joined by commas", param, ctx)


class ShapeText(ParamType):
    """Shapes joined by commas; a shape of one axis is accepted only by itself."""

    name = "64x768[,8x1024...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, ...], ...]:
        from harness.sweep import parse_shapes

        try:
            return parse_shapes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Shape(ParamType):
    """One shape."""

    name = "4096x1024"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        from harness.sweep import parse_shape

        try:
            return parse_shape(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Assignment(ParamType):
    """A name and a value; a value that is no Python literal is taken as text."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, object]:
        name, equals, text = value.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            self.fail(f"{value!r} is not of the form key=value, such as dim=64", param, ctx)
        try:
            return name, literal_eval(text.strip())
        except (ValueError, SyntaxError):
            return name, text.strip()


class Shard(ParamType):
    """One part of several, such as 2/4."""

    name = "i/n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        index, _, count = value.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            self.fail(
                f"{value!r} is not a shard: write i/n with i from 1 to n, such as 2/4", param, ctx
            )
        return int(index), int(count)


class Duration(ParamType):
    """A duration with its unit; converted to seconds."""

    name = "10m"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        try:
            time_s = float(value[:-1]) * units[value[-1:]]
        except (ValueError, KeyError):
            time_s = 0.0
        if not 0 < time_s < float("inf"):
            self.fail(f"{value!r} is not a time: write 90s, 10m or 2h", param, ctx)
        return time_s


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


def _choice(known: type[Affine | Direction | Measurement | Mode]) -> Words:
    return Words(tuple(member.value for member in known))


AXES = (
    AxisOption(
        ("-i", "--implementation"), "implementations", Words(), "all",
        "implementations: names (see `list implementations`), all, peers, "
        "package.module:function or path/to/file.py:function",
    ),
    AxisOption(
        ("--shape",), "shapes", ShapeText(), "64x768,512x768,2048x1024",
        "shapes of x; the last axis is normalised. Shapes of one axis are given one by one: "
        "--shape 64 --shape 768",
    ),
    AxisOption(
        ("--normalized-dims",), "normalized_dims", Numbers(int), "1",
        "number of trailing axes to normalise over",
    ),
    AxisOption(
        ("--dtype",), "dtypes", Words(DTYPES), "float32", f"dtypes of x: {', '.join(DTYPES)}"
    ),
    AxisOption(
        ("--param-dtype",), "param_dtypes", Words((*DTYPES, "same")), "same",
        'dtypes of weight and bias; "same" is the dtype of x',
    ),
    AxisOption(
        ("--device",), "devices", Words(("cpu", "cuda")), "cpu", "kinds of device: cpu, cuda"
    ),
    AxisOption(
        ("--distribution",), "distributions", Words(), "normal",
        "input distributions; see `list distributions`",
    ),
    AxisOption(
        ("--layout",), "layouts", Words(), "contiguous",
        "layouts of x in memory; see `list layouts`",
    ),
    AxisOption(
        ("--grad-output",), "grad_outputs", Words(), "shifted_normal",
        "gradients of y, from which a backward pass starts; see `list grad_outputs`",
    ),
    AxisOption(
        ("--direction",), "directions", _choice(Direction), "forward",
        f"passes to run: {', '.join(Direction)}",
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
        ("--eps",), "eps", Numbers(float), "1e-05", "values of eps, which is added to the variance"
    ),
    AxisOption(
        ("--threads",), "threads", Numbers(int), "1", "numbers of CPU threads that torch may use"
    ),
    AxisOption(("--seed",), "seeds", Numbers(int), "0", "seeds of the random inputs"),
    AxisOption(
        ("--measure",), "measure", _choice(Measurement), "errors,latency,memory",
        "what to measure: errors (always), latency, cold (latency with inputs in no cache), memory",
    ),
)  # fmt: skip
"""The options of all axes, in the order of --help."""


@dataclass(frozen=True, slots=True)
class SweepChoice:
    """The sweep that the options of a command choose."""

    preset: str | None
    file: Path | None
    axes: Mapping[str, tuple[object, ...]]
    """Values of the axes that were given as options."""
    default_preset: str
    """The preset where no option is given."""

    @property
    def name(self) -> str:
        """A name for files: that of the preset or of the sweep file, else "sweep"."""
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
        return sweep.with_axes(self.axes, {option.axis: option.flags[0] for option in AXES})


def sweep_options(default_preset: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of sweeps; the command takes them as ``choice``.

    An axis option that is given twice, or with commas, has several values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_choice(preset: str | None, sweep_file: Path | None, **others: Any) -> None:
            if preset and sweep_file:
                raise click.UsageError("give --preset or --sweep, not both")
            given = {option.axis: others.pop(option.axis) for option in AXES}
            axes = {axis: sum(values, ()) for axis, values in given.items() if values}
            command(choice=SweepChoice(preset, sweep_file, axes, default_preset), **others)

        decorated: Callable[..., None] = with_choice
        for option in reversed(AXES):
            # click would print the type's name in capitals: 4096X1024 is no shape
            decorated = click.option(
                *option.flags,
                option.axis,
                type=option.type,
                metavar=option.type.name,
                multiple=True,
                help=f"{option.help}  [default: {option.default}]",
            )(decorated)
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

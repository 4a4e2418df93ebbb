"""Types of command-line arguments: what is typed, checked, and how to write it if it is wrong."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # not generic when it runs: before click 8.4.0 it takes no [...]

__all__ = [
    "AXIS_OPTIONS",
    "Assignment",
    "ChosenWords",
    "Duration",
    "Numbers",
    "Shape",
    "ShapeText",
    "Shard",
    "Words",
    "axis_options",
]


class Words(ParamType):
    """Values joined by commas."""

    name = "name[,name...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        words = tuple(word.strip() for word in value.split(","))
        if not all(words):
            self.fail(f"{value!r} has an empty value: remove the extra comma", param, ctx)
        return words


class ChosenWords(Words):
    """Values from a closed list, joined by commas."""

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known
        self.name = f"{known[0]}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        words = super().convert(value, param, ctx)
        for word in words:
            if word not in self._known:
                self.fail(f"{word!r} is not one of {', '.join(self._known)}", param, ctx)
        return words

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(f"{done}{comma}{each}") for each in self._known if each.startswith(last)
        ]


class Numbers(Words):
    """Numbers joined by commas."""

    def __init__(self, kind: Callable[[str], float]) -> None:
        self._kind = kind
        self.name = f"{kind.__name__}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        try:
            return tuple(self._kind(word) for word in super().convert(value, param, ctx))
        except ValueError:
            kind = "a whole number" if self._kind is int else "a number"
            self.fail(f"{value!r} is not {kind}, nor several joined by commas", param, ctx)


class ShapeText(ParamType):
    """Shapes joined by commas; a shape of one axis is given by itself."""

    name = "64x768[,8x1024...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
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
    """A name and a value; what is no Python literal is a text."""

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
    """Which part of how many."""

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
    """A time with its unit."""

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


# option, axis of a sweep, type, help
_AXES: tuple[tuple[tuple[str, ...], str, ParamType, str], ...] = (
    (
        ("-i", "--implementation"),
        "implementations",
        Words(),
        "names, all, peers, module:function or file.py:function",
    ),
    (
        ("--shape",),
        "shapes",
        ShapeText(),
        "shapes of x; the last axis is normalised. A shape of one axis is given by itself: "
        "--shape 64 --shape 768",
    ),
    (("--normalized-dims",), "normalized_dims", Numbers(int), "trailing axes to normalise over"),
    (("--dtype",), "dtypes", Words(), "float16, bfloat16, float32, float64"),
    (("--param-dtype",), "param_dtypes", Words(), 'of weight and bias; "same" is x\'s'),
    (("--device",), "devices", Words(), "cpu, cuda"),
    (("--distribution",), "distributions", Words(), "of the inputs; see `list distributions`"),
    (("--layout",), "layouts", Words(), "of x in memory; see `list layouts`"),
    (("--grad-output",), "grad_outputs", Words(), "gradients of y; see `list grad_outputs`"),
    (("--direction",), "directions", Words(), "forward, backward, forward+backward"),
    (("--mode",), "modes", Words(), "eager, compiled"),
    (("--affine",), "affines", Words(), "both, weight, bias, none"),
    (("--parameters",), "parameters", Words(), "values of weight and bias; see `list parameters`"),
    (("--eps",), "eps", Numbers(float), "added to the variance"),
    (("--threads",), "threads", Numbers(int), "CPU threads"),
    (("--seed",), "seeds", Numbers(int), "of the inputs"),
    (("--measure",), "measure", Words(), "errors, latency, cold, memory"),
)


AXIS_OPTIONS = {axis: flags[0] for flags, axis, _, _ in _AXES}
"""The option of each axis, as a message names it."""


def axis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each axis; given twice or with commas, it has several values."""
    for flags, axis, kind, text in reversed(_AXES):
        # click would print the type's name in capitals, and 4096X1024 is no shape
        command = click.option(
            *flags, axis, type=kind, metavar=kind.name, multiple=True, help=text
        )(command)
    return command

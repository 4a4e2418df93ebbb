"""Types of command-line arguments."""

from __future__ import annotations

from ast import literal_eval
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from harness.selection.requirement import DEFAULT_MAX_CONDITION

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic at run time only from click 8.4.0 on

__all__ = [
    "DTYPES",
    "Assignment",
    "ChosenWords",
    "Duration",
    "Machine",
    "Numbers",
    "ParamType",
    "Shape",
    "ShapeText",
    "Shard",
    "Words",
    "max_condition_option",
    "page_condition_option",
    "time_budget_option",
]

DTYPES = ("float32", "bfloat16", "float16", "float64")  # as in harness.sweep, slow to import


class Words(ParamType):
    """Values joined by commas; the shell completes the values in ``completions``."""

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


class Machine(ParamType):
    """Machines other than this one: a Ray cluster; converted to its address, "" for none."""

    name = "ray[:ADDRESS]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, address = value.partition(":")
        if kind != "ray":
            self.fail(f"{value!r} is not known: write ray or ray:ADDRESS", param, ctx)
        return str(address)


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


time_budget_option = click.option(
    "--time-budget",
    "time_budget_s",
    type=Duration(),
    metavar=Duration.name,
    help="start no new case after this time, such as 90s, 10m or 2h  [default: no limit]",
)


def _not_nan(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if value != value:
        raise click.BadParameter("takes a number, not nan", context, parameter)
    return value


_max_condition: dict[str, Any] = {
    "type": click.FloatRange(min=1),
    "default": DEFAULT_MAX_CONDITION,
    "show_default": True,
    "callback": _not_nan,
    "metavar": "K",
}
_CONDITION_HELP = (
    "require right results on inputs with a condition number up to K; inf for all inputs"
)
max_condition_option = click.option("--max-condition", help=_CONDITION_HELP, **_max_condition)
"""The condition number that a choice has to serve."""
page_condition_option = click.option(
    "--max-condition", help=f"of the choice on the page: {_CONDITION_HELP}", **_max_condition
)
"""The same for a page that a run writes."""

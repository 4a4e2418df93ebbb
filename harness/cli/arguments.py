"""Types of command-line arguments."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from harness import cases  # what needs pydantic is imported when it is first used
from harness.selection import DEFAULT_MAX_CONDITION

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic at run time only from click 8.4.0 on

__all__ = [
    "ASSIGNMENT",
    "DURATION",
    "MACHINE",
    "SHAPE",
    "SHAPES",
    "SHARD",
    "Parsed",
    "Words",
    "max_condition_option",
    "time_budget_option",
]


class Parsed(ParamType):
    """An argument that a function parses, which raises ValueError with the message of a mistake."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the name as it is: click would print 4096X1024, which is no shape."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Words(Parsed):
    """Values joined by commas; the shell completes the names in ``known``."""

    def __init__(
        self,
        known: tuple[str, ...] = (),
        kind: type[Any] = str,
        *,
        is_closed: bool = False,
    ) -> None:
        numbers, words = f"{kind.__name__}[,...]", "name[,name...]"
        super().__init__(
            f"{known[0]}[,...]" if is_closed else words if kind is str else numbers, self._several
        )
        self._known, self._kind, self._is_closed = known, kind, is_closed

    def _several(self, text: str) -> tuple[Any, ...]:
        words = tuple(word.strip() for word in text.split(","))
        if not all(words):
            raise ValueError(f"{text!r} has an empty value: remove the extra comma")
        for word in words:
            if self._is_closed and word not in self._known:
                raise ValueError(f"{word!r} is not one of {', '.join(self._known)}")
        try:
            return tuple(map(self._kind, words))
        except ValueError:
            kind = "a whole number" if self._kind is int else "a number"
            raise ValueError(f"{text!r} is not {kind}, nor several joined by commas") from None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        known = (word for word in self._known if word.startswith(last))
        return [CompletionItem(f"{done}{comma}{word}") for word in known]


def _assignment(text: str) -> tuple[str, object]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier():
        raise ValueError(f"{text!r} is not of the form key=value, such as dim=64")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise ValueError(f"{text!r} is not a shard: write i/n with i from 1 to n, such as 2/4")
    return int(index), int(count)


def _machine(text: str) -> str:
    kind, _, address = text.partition(":")
    if kind != "ray":
        raise ValueError(f"{text!r} is not known: write ray or ray:ADDRESS")
    return address


def _duration(text: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        time_s = float(text[:-1]) * units[text[-1:]]
    except (ValueError, KeyError):
        time_s = 0.0
    if not 0 < time_s < float("inf"):
        raise ValueError(f"{text!r} is not a time: write 90s, 10m or 2h")
    return time_s


SHAPE = Parsed("4096x1024", lambda text: cases.parse_shape(text))
"""One shape."""
SHAPES = Parsed("64x768[,8x1024...]", lambda text: cases.parse_shapes(text))
"""Shapes joined by commas; a shape of one axis is accepted only by itself."""
ASSIGNMENT = Parsed("key=value", _assignment)
"""A name and a value; a value that is no Python literal is taken as text."""
SHARD = Parsed("i/n", _shard)
"""One part of several, such as 2/4."""
MACHINE = Parsed("ray[:ADDRESS]", _machine)
"""Machines other than this one: a Ray cluster; converted to its address, "" for none."""
DURATION = Parsed("10m", _duration)
"""A duration with its unit; converted to seconds."""

time_budget_option = click.option(
    "--time-budget",
    "time_budget_s",
    type=DURATION,
    help="start no new case after this time, such as 90s, 10m or 2h  [default: no limit]",
)


def _not_nan(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if value != value:
        raise click.BadParameter("takes a number, not nan", context, parameter)
    return value


def max_condition_option(where: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option of the condition number that a choice has to serve."""
    return click.option(
        "--max-condition",
        type=click.FloatRange(min=1),
        default=DEFAULT_MAX_CONDITION,
        show_default=True,
        callback=_not_nan,
        metavar="K",
        help=f"{where}require right results on inputs with a condition number up to K; inf for all "
        "inputs",
    )

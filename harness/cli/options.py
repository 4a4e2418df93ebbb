"""Arguments and options of commands: their types, those of a sweep, and files of results."""

from __future__ import annotations

import shlex
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from harness import cases  # what needs pydantic is imported when it is first used
from harness.cases.axes import Axis, sweep_axes
from harness.records.text import suggest
from harness.selection import DEFAULT_MAX_CONDITION

if TYPE_CHECKING:
    from harness.cases import Sweep
    from harness.report import Document
    from harness.store import Results

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic at run time only from click 8.4.0 on

Command = Callable[..., None]
Decorator = Callable[[Command], Command]

# --- types of values -----------------------------------------------------------------------------


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
        self, known: tuple[str, ...] = (), kind: type[Any] = str, *, is_closed: bool = False
    ) -> None:
        super().__init__(f"{'name' if kind is str else kind.__name__}[,...]", self._several)
        self.known, self._kind, self._is_closed = known, kind, is_closed

    def _several(self, text: str) -> tuple[Any, ...]:
        words = tuple(word.strip() for word in text.split(","))
        if not all(words):
            raise ValueError(f"{text!r} has an empty value: remove the extra comma")
        for word in words:
            if self._is_closed and word not in self.known:
                listed = f"{', '.join(self.known)}{suggest(word, self.known)}"
                raise ValueError(f"{word!r} is not one of {listed}")
        try:
            return tuple(map(self._kind, words))
        except ValueError:
            kind = "a whole number" if self._kind is int else "a number"
            raise ValueError(f"{text!r} is not {kind}, nor several joined by commas") from None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        known = (word for word in self.known if word.startswith(last))
        return [CompletionItem(f"{done}{comma}{word}") for word in known]


class Number(click.FloatRange):
    """A number in a range, which nan is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail("takes a number, not nan", param, ctx)
        return number


class FileName(click.Path):
    """The name of a file or folder; one that the system cannot look up is refused."""

    def __init__(
        self, kind: str = "", ends: str = "", *, not_ends: tuple[str, ...] = (), name: str = "file"
    ) -> None:
        super().__init__(path_type=Path)
        self.name = name  # and metavar
        self._kind, self._ends, self._not_ends = kind, ends, not_ends

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("is empty: an environment variable that is not set here?", param, ctx)
        path: Any = super().convert(value, param, ctx)
        if not path.name.endswith(self._ends):
            self.fail(f"{path}: {self._kind} ends in {self._ends}", param, ctx)
        if path.suffix in self._not_ends:
            self.fail(f"{path}: {self._kind} does not end in {path.suffix}", param, ctx)
        if self.name == "dir" and path.is_file():
            self.fail(f"{path}: is a file; give a folder of results files", param, ctx)
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return path
        except OSError as error:  # too long, or in a folder that may not be searched
            self.fail(f"{path!s:.60}: {error.strerror}", param, ctx)
        return path


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


PATH = FileName()
FOLDER = FileName(name="dir")
RESULTS = FileName("a results file", ".parquet")
PAGE = FileName("a page", ".html")
# a slip of the pen would replace what took hours, or was written by hand
TEXT = FileName("a text", not_ends=(".parquet", ".jsonl", ".toml", ".py"))
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

# --- options -------------------------------------------------------------------------------------


def option(names: str, help: str, kind: Any = None, **settings: Any) -> Decorator:
    """Return the decorator of an option: its names, separated by spaces; a default is shown."""
    has_default = "default" in settings
    return click.option(*names.split(), help=help, type=kind, show_default=has_default, **settings)


def flag(names: str, help: str) -> Decorator:
    """Return the decorator of an option without a value."""
    return click.option(*names.split(), help=help, is_flag=True)


json_option = flag("--json as_json", "print JSON")


def time_budget_option(more: str = "") -> Decorator:
    """Return the decorator of the option; its help ends with ``more``."""
    text = f"start no new case after this time, such as 90s or 2h{more}"
    return option("--time-budget time_budget_s", text, DURATION)


max_condition_option = option(
    "--max-condition",
    "which inputs count: those with a condition number up to K; inf for all inputs",
    Number(min=1),
    default=DEFAULT_MAX_CONDITION,
    metavar="K",
)


def type_of(axis: Axis) -> Parsed:
    """Return the type of an axis' option."""
    if axis.kind is tuple:
        return SHAPES
    if issubclass(axis.kind, StrEnum):
        return Words(tuple(map(str, axis.kind)), is_closed=True)
    return Words(axis.known, axis.kind, is_closed=axis.name == "dtype")


@dataclass(frozen=True, slots=True)
class SweepChoice:
    """The sweep that the options of a command choose."""

    axes: Mapping[str, tuple[object, ...]]
    """Values of the axes that were given as options."""
    preset: str | None = None
    file: Path | None = None
    default_preset: str = ""
    """The preset where no option is given."""

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
        if self.file:
            sweep = cases.load_sweep(self.file)
        elif self.preset or not self.axes:
            sweep = cases.load_preset(self.preset or self.default_preset)
        else:
            sweep = cases.Sweep()
        return sweep.with_axes(
            self.axes, {axis.key: axis.flag or axis.option for axis in sweep_axes()}
        )


def axis_options(*names: str) -> Decorator:
    """Return a decorator that adds the options of all axes or, for a single case, of some.

    An option that is given twice, or with commas, has several values (:func:`given_axes`).
    """

    def decorate(command: Command) -> Command:
        for axis in reversed(sweep_axes()):
            if not names or axis.name in names:
                kind = type_of(axis)
                default = ",".join(map(axis.text, axis.default))
                command = option(
                    f"{axis.flag} {axis.option} {axis.key}",
                    f"{axis.help}  [default: {default}]",
                    kind,
                    # one of the values makes a single case
                    metavar=kind.name.partition("[")[0] if names else None,
                    multiple=True,
                )(command)
        return command

    return decorate


def given_axes(values: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Join the values of options that were given several times, and drop empty axes."""
    return {axis: sum(given, ()) for axis, given in values.items() if given}


def sweep_options(default_preset: str) -> Decorator:
    """Return a decorator that adds the options of sweeps; the command takes them as ``choice``."""
    preset_help = f"a sweep of the package; see `list presets`  [default: {default_preset}]"

    def decorate(command: Command) -> Command:
        @option("--preset", preset_help, metavar="NAME")
        @option("--sweep sweep_file", "a sweep file of your own", PATH)
        @axis_options()
        @wraps(command)
        def with_choice(preset: str | None, sweep_file: Path | None, **others: Any) -> None:
            if preset and sweep_file:
                raise click.UsageError("give --preset or --sweep, not both")
            axes = given_axes({axis.key: others.pop(axis.key) for axis in sweep_axes()})
            command(choice=SweepChoice(axes, preset, sweep_file, default_preset), **others)

        return with_choice

    return decorate


# --- results on standard output -------------------------------------------------------------------


def print_as(
    form: str | bool, document: Callable[[], Document], plain: Callable[[], object]
) -> None:
    """Print a document, or plain values as JSON.

    Args:
        form: markdown, or json; True is json, and anything else is text for a terminal.
        document: returns what is printed as text or Markdown.
        plain: returns the values.
    """
    from harness.report import json_text, markdown, show

    if form in {"json", True}:
        click.echo(json_text(plain()))
    elif form == "markdown":
        click.echo(markdown(document()).rstrip())
    else:
        show(document())


# --- files ---------------------------------------------------------------------------------------


def read_run(path: Path, *, samples: bool = True) -> Results:
    """Read a results file, or the journal of an unfinished run if only that exists.

    Args:
        path: the file.
        samples: whether the samples of a results file are needed.

    Raises:
        StoreError: no such file, or it cannot be read.
    """
    from harness.store import read, read_journal

    file = stored_file(path)
    return read_journal(file) if file.suffix == ".jsonl" else read(file, samples=samples)


def stored_file(path: Path) -> Path:
    """Return the file to read: the journal of ``path`` if only that exists, else ``path``."""
    if not path.name:  # "/" or ".", which have no suffix
        return path
    journal = path.with_suffix(".jsonl")
    return journal if journal.exists() and not path.exists() else path


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join(["layernorm-bench", *sys.argv[1:]])

"""A workload as it is written: a TOML file of calls, each so many times.

Some come with the package, in ``harness/presets/workloads/``; their names are those of the files.

    [[calls]]
    shape = "4096x1024"
    dtype = "bfloat16"
    direction = "forward"
    count = 24

Every mistake of a file is reported at once, with its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from harness.records import Affine, Direction
from harness.records.refusal import Refusal
from harness.sweep import suggest
from harness.sweep.grid import Dtype, Eps, Positive, Shape, Threads

__all__ = [
    "Call",
    "Workload",
    "WorkloadError",
    "find_workload",
    "load_workload",
    "workload_names",
]

Count = Annotated[int, Field(strict=True, ge=1, le=1 << 53)]  # what a float counts exactly

_HEADER = re.compile(r"\s*\[\[\s*calls\s*\]\]")
_ANY_HEADER = re.compile(r"\s*\[")


class WorkloadError(Refusal):
    """A workload that cannot be used; the message has a line for each mistake."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Call(_Strict):
    """One kind of call. An axis that is None is whatever the run has, if it has but one."""

    shape: Shape
    """Of x."""
    dtype: Dtype
    """Of x."""
    direction: Direction
    count: Count = 1
    """How often it occurs."""
    device: str | None = None
    """Kind; None is every device that the run has, each by itself."""
    normalized_dims: Positive | None = None
    param_dtype: Dtype | None = None
    layout: str | None = None
    affine: Affine | None = None
    eps: Eps | None = None
    threads: Threads | None = None

    @property
    def words(self) -> str:
        """The call in one line, without its count."""
        given = self.model_dump(exclude={"shape", "dtype", "direction", "count", "device"})
        return " ".join([
            "x".join(map(str, self.shape)),
            self.dtype,
            *([self.device] if self.device else []),
            self.direction,
            *(f"{name}={value}" for name, value in given.items() if value is not None),
        ])


class Workload(_Strict):
    """What a workload file holds."""

    description: str = ""
    calls: tuple[Call, ...]


def workload_names() -> tuple[str, ...]:
    """Names of the workloads that come with the package, in alphabetical order."""
    return tuple(sorted(each.name[:-5] for each in _ours().iterdir()))


def find_workload(named: str) -> Workload:
    """Load the workload file at a path, or the workload of that name that comes with the package.

    Raises:
        WorkloadError: there is none; or as :func:`load_workload`.
    """
    path = Path(named)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return load_workload(path)
    if named not in workload_names():
        raise WorkloadError(
            f"no workload named {named!r}; workloads: {', '.join(workload_names())}"
            f"{suggest(named, workload_names())} (or give a file, such as mine.toml)"
        )
    return _parse(_ours().joinpath(f"{named}.toml").read_text(encoding="utf-8"), named)


def load_workload(path: Path) -> Workload:
    """Load a workload file.

    Raises:
        WorkloadError: it cannot be read, is not TOML, or has mistakes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise WorkloadError(f"{path}: cannot be read: {why}") from error
    return _parse(text, str(path))


def _ours() -> Traversable:
    return resources.files("harness.selection").joinpath("workloads")


def _parse(text: str, source: str) -> Workload:
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{source}: not TOML: {error}") from error
    if not plain.get("calls"):
        raise WorkloadError(
            f"{source}: holds no calls; write, for each kind of them, a table [[calls]] with "
            "shape, dtype, direction and count"
        )
    return _validated(plain, text, source)


def _validated(plain: Mapping[str, Any], text: str, source: str) -> Workload:
    try:
        return Workload.model_validate(plain)
    except ValidationError as error:
        lines = _Lines(text, plain)
        mistakes = [f"{source}:{lines.of(each)} {_mistake(each)}" for each in error.errors()]
        raise WorkloadError("\n".join(mistakes)) from error


class _Lines:
    """Where the values of a file are written; tomllib does not say."""

    def __init__(self, text: str, plain: Mapping[str, Any]) -> None:
        self._lines = text.splitlines()
        self._headers = [number for number, line in enumerate(self._lines) if _HEADER.match(line)]
        calls = plain["calls"]
        # written inline, or beside a text of several lines that looks like a header
        if not isinstance(calls, list) or len(self._headers) != len(calls):
            self._headers = []

    def of(self, error: ErrorDetails) -> str:
        """Return the number of the line of a mistake and a colon; nothing if it is not known."""
        place = error["loc"]
        if place[0] == "calls" and len(place) > 1:
            if not self._headers:
                return ""
            first = self._headers[int(place[1])]
            return f"{self._key(str(place[2]), first) if len(place) > 2 else first + 1}:"
        return f"{self._key(str(place[0]), -1)}:"

    def _key(self, key: str, header: int) -> int:
        """Return the line that ``key`` is set in, after a header; that of the header if none."""
        pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
        for number in range(header + 1, len(self._lines)):
            if pattern.match(self._lines[number]):
                return number + 1
            if _ANY_HEADER.match(self._lines[number]):
                break
        return max(header + 1, 1)


def _mistake(error: ErrorDetails) -> str:
    """Return what was expected, and what was found."""
    place = error["loc"]
    where = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place).lstrip(
        "."
    )
    if error["type"] == "extra_forbidden":
        owner: type[BaseModel] = Call if len(place) > 2 else Workload
        return f"{where}: unknown key{suggest(str(place[-1]), tuple(owner.model_fields))}"
    if error["type"] == "missing":
        return f"{where}: missing"
    plain_words = {"tuple_type": "must be tables [[calls]]", "model_type": "must be a table"}
    message = plain_words.get(error["type"], error["msg"].removeprefix("Value error, "))
    found = "" if error["type"] == "value_error" else f" (found {error['input']!r})"
    return f"{where}: {message}{found}"

"""What to do after a run: a command that can be pasted into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from harness.records import Case, Direction, Mode, OutputErrors, Record, Status, WarningKind
from harness.records.text import shape_text

__all__ = ["NextStep", "look_closer", "next_step"]

_DEFAULT = Case(implementation="", shape=())
_ALWAYS_GIVEN = ("shape", "dtype", "distribution")
# fields of a case that `explain` has no option for
_NOT_EXPLAINED = ("mode", "parameters", "threads")


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next."""

    purpose: str
    """The purpose of the command, such as "make a page of these results"."""
    command: str


def next_step(
    records: Sequence[Record], problems: Sequence[Record], results: Path, *, has_page: bool
) -> NextStep | None:
    """Return a look at the first problem or, if there is none, a use of the results.

    Args:
        records: of the run.
        problems: those to act upon, the most urgent first.
        results: the results file.
        has_page: whether a page was made of it.
    """
    for record in problems:
        if step := look_closer(record):
            return step
    if len({each.case.implementation for each in records if each.latency is not None}) > 1:
        return NextStep("choose an implementation from these results", _command("choose", results))
    if any(each.errors is not None for each in records) and not has_page:
        return NextStep("make a page of these results", _command("report", results))
    return None


def look_closer(record: Record) -> NextStep | None:
    """Return the command that shows more of a case that did not end well, if there is one."""
    case = record.case
    if record.status is Status.UNSUPPORTED:
        return None
    if record.status in {Status.WRONG, Status.OUT_OF_GUARANTEE}:
        if _can_be_explained(record):
            options = _options(case, without=("direction",))
            command = _command("explain", case.implementation, *options)
            return NextStep(f"see exact and computed values of {case.id} step by step", command)
        if case.mode is Mode.EAGER and record.status is Status.WRONG:
            return NextStep(f"see which mistake {case.implementation} makes", _verify(case))
    command = _command("run", "-i", case.implementation, *_options(case))
    return NextStep(f"run {case.id} again by itself", command)


def _command(*arguments: str | Path) -> str:
    return shlex.join(["layernorm-bench", *map(str, arguments)])


def _can_be_explained(record: Record) -> bool:
    """Whether ``explain``, which computes y of a forward pass, shows what went wrong."""
    case = record.case
    return (
        case.direction is Direction.FORWARD
        and record.errors is not None
        and _is_beyond_bound(record.errors.outputs[0])
        and all(warning.kind is not WarningKind.CACHED_RESULT for warning in record.warnings)
        and all(getattr(case, name) == getattr(_DEFAULT, name) for name in _NOT_EXPLAINED)
    )


def _is_beyond_bound(output: OutputErrors) -> bool:
    if output.vacuous_elements:
        return True
    return output.bound_ratio is not None and not output.bound_ratio <= 1


def _verify(case: Case) -> str:
    """Return the verification of the dtype, the direction and the device of a case."""
    options = ["--dtype", case.dtype]
    options += ["--direction", "forward" if case.direction is Direction.FORWARD else "backward"]
    if case.device != _DEFAULT.device:
        options += ["--device", case.device]
    return _command("verify", case.implementation, *options)


def _options(case: Case, without: tuple[str, ...] = ()) -> list[str]:
    """Return the options that make a case: shape, dtype, distribution and all that differ."""
    options = []
    for name in (field.name for field in fields(Case)):
        if name in {"implementation", *without}:
            continue
        value = getattr(case, name)
        default = case.dtype if name == "param_dtype" else getattr(_DEFAULT, name)
        if name in _ALWAYS_GIVEN or value != default:
            text = shape_text(value) if name == "shape" else str(value)
            options += [f"--{name.replace('_', '-')}", text]
    return options

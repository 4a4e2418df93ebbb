"""The command that looks closer at one case, to be pasted into a shell as it is."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields

from harness.cli.arguments import AXIS_OPTIONS
from harness.records import Case, Direction, Mode, OutputErrors, Record, Status, WarningKind
from harness.sweep import AXIS_OF_FIELD

__all__ = ["Step", "closer_look", "command_line"]

_USUAL = Case(implementation="", shape=())
# axes that the command `explain` has no option for: it uses the usual value
_NOT_EXPLAINED = ("mode", "parameters", "threads")


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next."""

    purpose: str
    """What the command is for, as in "to ...:"."""
    command: str


def closer_look(record: Record) -> Step | None:
    """Return the command that shows more of a case that did not end well; None if none does."""
    case = record.case
    if record.status is Status.UNSUPPORTED:
        return None
    if record.status in {Status.WRONG, Status.OUT_OF_GUARANTEE}:
        if _can_be_explained(record):
            options = _options(case, ("shape", "dtype", "distribution"), without=("direction",))
            command = command_line("explain", case.implementation, *options)
            return Step(f"see {case.id} step by step, exact beside computed", command)
        if case.mode is Mode.EAGER and record.status is Status.WRONG:
            return Step(f"see which mistake {case.implementation} makes", _verify(case))
    options = _options(case, ("shape", "dtype", "distribution"))
    return Step(
        f"run {case.id} again by itself",
        command_line("run", "-i", case.implementation, *options),
    )


def command_line(*arguments: str) -> str:
    """Return a command line of this program, quoted for a shell."""
    return shlex.join(["layernorm-bench", *arguments])


def _can_be_explained(record: Record) -> bool:
    """Whether ``explain``, which computes y of a forward, shows what went wrong."""
    case = record.case
    return (
        case.direction is Direction.FORWARD
        and record.errors is not None
        and _is_off(record.errors.outputs[0])
        and all(each.kind is not WarningKind.CACHED_RESULT for each in record.warnings)
        and all(getattr(case, name) == getattr(_USUAL, name) for name in _NOT_EXPLAINED)
    )


def _is_off(output: OutputErrors) -> bool:
    if output.vacuous_elements:
        return True
    return output.bound_ratio is not None and not output.bound_ratio <= 1


def _verify(case: Case) -> str:
    """The verification of the dtype, the passes and the device of a case."""
    options = ["--dtype", case.dtype]
    options += ["--direction", "forward" if case.direction is Direction.FORWARD else "backward"]
    if case.device != _USUAL.device:
        options += ["--device", case.device]
    return command_line("verify", case.implementation, *options)


def _options(case: Case, always: tuple[str, ...], without: tuple[str, ...] = ()) -> list[str]:
    """The options that make a case: those of ``always``, and what is not as usual."""
    found = []
    names = (each.name for each in fields(Case) if each.name not in {"implementation", *without})
    for name in names:
        value = getattr(case, name)
        usual = case.dtype if name == "param_dtype" else getattr(_USUAL, name)
        if name in always or value != usual:
            text = "x".join(map(str, value)) if name == "shape" else str(value)
            found += [AXIS_OPTIONS[AXIS_OF_FIELD[name]], text]
    return found

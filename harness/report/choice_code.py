"""A choice as Python code that runs: a table of implementations for the drop-in module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.records import Direction, Mode
from harness.records.refusal import NotComparableError, NotMeasuredError
from harness.report.choice import inaccuracy_text
from harness.selection import NATIVE, CandidateName, Choices, label_of

if TYPE_CHECKING:
    from harness.selection import WorkloadChoice

_COMPILED = """import torch
from dataclasses import replace

def compiled(name):
    found = find(name)
    function = torch.compile(found.function, dynamic=False)
    return replace(found, name=f"{name} (compiled)", function=function)
"""
_TABLE = """dispatch = Dispatch(
    {{
        # hidden size, dtype, device, least number of rows, direction
{entries}
    }},
    default={default},  # for what was not measured
)"""
_MODULE = """LayerNorm = partial(DropIn, implementation={implementation})
# norm = LayerNorm(sizes), made like torch.nn.LayerNorm"""


def python_lines(
    choices: Choices, workload_choices: Sequence[WorkloadChoice], evidence: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a program that runs the choices, or the choice for a workload."""
    if len({choice.scenario.environment for choice in choices.choices}) > 1:
        raise NotComparableError(
            "the choices are of several environments, which a program cannot tell apart: give the "
            "RUN of one, or take --format table"
        )
    chosen = {choice.scenario: choice.best for choice in choices.choices}
    if workload_choices:
        chosen = {
            choice.scenario: for_all.best or choice.best
            for for_all in workload_choices
            for _, choice in for_all.calls
        }
    picks = {scenario: best.name for scenario, best in chosen.items() if best is not None}
    if not picks:
        raise NotMeasuredError(
            "no candidate is eligible, so there is no code to print; --format table says why"
        )
    yield from map(_comment, evidence)
    of_scenario = {choice.scenario: choice for choice in choices.choices}
    for scenario, best in chosen.items():
        if best is None:
            yield _comment(f"no candidate is eligible for {scenario.text}")
        elif inaccurate := inaccuracy_text(best, of_scenario[scenario]):
            yield _comment(f"{best.label} for {scenario.text} is {inaccurate}")
    yield "from functools import partial\n"
    first, *others = dict.fromkeys(picks.values())
    is_compiled = any(mode is Mode.COMPILED for _, mode in (first, *others))
    names = "Dispatch, " * bool(others) + "LayerNorm as DropIn" + ", find" * is_compiled
    yield f"from layernorm_bench import {names}\n"
    if is_compiled:
        yield _COMPILED
    entries: dict[tuple[Any, ...], CandidateName] = {}
    # where two scenarios have one key, that with the usual settings has precedence, and a training
    # step has precedence over its backward alone
    for scenario in sorted(
        picks, key=lambda one: (len(one.settings), one.case.direction is Direction.BACKWARD)
    ):
        case, name = scenario.case, picks[scenario]
        # a module can tell only whether gradients are recorded
        direction = "forward" if case.direction is Direction.FORWARD else "forward+backward"
        key = (case.hidden, case.dtype, case.device, case.rows, direction)
        if entries.setdefault(key, name) != name:
            yield _comment(
                f"left out, since the table cannot tell it from another scenario: "
                f"{label_of(name)} for {scenario.text}"
            )
    if others:
        lines = (f"        {key!r}: {_code(entries[key])}," for key in sorted(entries))
        yield _TABLE.format(entries="\n".join(lines), default=_code(NATIVE))
    yield _MODULE.format(implementation="dispatch" if others else _code(first))


def _code(name: CandidateName) -> str:
    """Return the code of an implementation: its name, or how to compile it."""
    return f"compiled({name[0]!r})" if name[1] is Mode.COMPILED else repr(name[0])


def _comment(text: str) -> str:
    return "# " + " ".join(text.split())

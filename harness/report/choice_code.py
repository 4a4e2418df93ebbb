"""A choice as Python code that runs: an import and a name, or a table for the drop-in module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.records import Direction, Mode
from harness.records.refusal import Refusal
from harness.selection import CandidateName, Choices, NoTimesError, Scenario, label_of
from harness.selection.workload import WorkloadChoice

_DEFAULT = "native"  # the implementation of torch itself, for shapes that were not measured
_MODULE_DIRECTION = {
    Direction.FORWARD: "forward",
    Direction.BACKWARD: "forward+backward",
    Direction.FORWARD_BACKWARD: "forward+backward",
}
"""A module can tell only whether gradients are recorded."""
_COMPILED = """

def compiled(name):
    found = find(name)
    function = torch.compile(found.function, dynamic=False)
    return replace(found, name=f"{name} (compiled)", function=function)
"""
_ONE = """layer_norm = {code}
LayerNorm = partial(DropIn, implementation=layer_norm)
# y = layer_norm(x, {sizes}, weight, bias), called like torch.nn.functional.layer_norm
# norm = LayerNorm({sizes}), made like torch.nn.LayerNorm"""
_TABLE = """dispatch = Dispatch(
    {{
        # hidden size, dtype, device, least number of rows, direction
{entries}
    }},
    default={default!r},  # for what was not measured
)
LayerNorm = partial(DropIn, implementation=dispatch)
# norm = LayerNorm(sizes), made like torch.nn.LayerNorm"""

_Key = tuple[int, str, str, int, str]
"""Key of the table: hidden size, dtype, device, least number of rows, direction."""


class SeveralMachinesError(Refusal):
    """Choices of several environments, which one program cannot tell apart."""

    exit_code = 4


def python_lines(
    choices: Choices, workload_choices: Sequence[WorkloadChoice], evidence: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a program; comments name its evidence.

    Args:
        choices: the choice for each scenario.
        workload_choices: the choices for a workload. If there are any, the program is only for its
            calls, and runs the one candidate for all calls if there is one.
        evidence: lines for the head of the program.

    Raises:
        SeveralMachinesError: the choices are of several environments.
        NoTimesError: nothing was chosen.
    """
    if len({choice.scenario.environment for choice in choices.choices}) > 1:
        raise SeveralMachinesError(
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
        raise NoTimesError(
            "no candidate is eligible, so there is no code to print; --format table says why"
        )
    yield from map(_comment, evidence)
    for scenario in (one for one in chosen if one not in picks):
        yield _comment(f"no candidate is eligible for {scenario.text}")
    names = set(picks.values())
    is_compiled = any(mode is Mode.COMPILED for _, mode in names)
    yield from ["from dataclasses import replace"] if is_compiled else []
    yield from ("from functools import partial", "")
    yield from ["import torch", ""] if is_compiled else []
    used = ["Dispatch"] if len(names) > 1 else []
    used += ["LayerNorm as DropIn"] + ["find"] * (is_compiled or len(names) == 1)
    yield f"from layernorm_bench import {', '.join(used)}"
    yield _COMPILED if is_compiled else ""
    if len(names) == 1:
        ((scenario, name), *_) = picks.items()
        code = _code(name) if is_compiled else f"find({_code(name)})"
        yield _ONE.format(code=code, sizes=scenario.case.normalized_shape)
        return
    table, left_out = _entries(picks)
    for scenario in left_out:
        yield _comment(
            f"left out, since the table cannot tell it from another scenario: "
            f"{label_of(picks[scenario])} for {scenario.text}"
        )
    entries = (f"        {key!r}: {_code(name)}," for key, name in table.items())
    yield _TABLE.format(entries="\n".join(entries), default=_DEFAULT)


def _entries(
    picks: Mapping[Scenario, CandidateName],
) -> tuple[dict[_Key, CandidateName], list[Scenario]]:
    """Return the table, and the scenarios that are left out of it.

    Where several scenarios share a key, the one with the usual settings has precedence, and a
    training step has precedence over its backward alone.
    """
    entries: dict[_Key, CandidateName] = {}
    left_out = []
    for scenario in sorted(
        picks, key=lambda one: (len(one.settings), one.case.direction is Direction.BACKWARD)
    ):
        case = scenario.case
        direction = _MODULE_DIRECTION[case.direction]
        key = (case.hidden, case.dtype, case.device, case.rows, direction)
        if entries.setdefault(key, picks[scenario]) != picks[scenario]:
            left_out.append(scenario)
    table: dict[_Key, CandidateName] = {}
    last: tuple[object, ...] = ()
    for key in sorted(entries, key=lambda key: (key[:3], key[4], key[3])):
        same = (*key[:3], key[4], entries[key])
        if same != last:  # more rows with the same implementation need no entry
            table[key] = entries[key]
        last = same
    return table, left_out


def _code(name: CandidateName) -> str:
    """Return the code of an implementation: its name, or how to compile it."""
    return f"compiled({name[0]!r})" if name[1] is Mode.COMPILED else repr(name[0])


def _comment(text: str) -> str:
    return "# " + " ".join(text.split())

"""A choice as Python code that runs: an import and a name, or a table for the drop-in module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.records import Direction, Mode
from harness.records.refusal import Refusal
from harness.selection.choose import Choices, NoTimesError
from harness.selection.ranking import CandidateName, label_of
from harness.selection.scenarios import Scenario
from harness.selection.workload_choice import WorkloadChoice

__all__ = ["SeveralMachinesError", "python_lines"]

_DEFAULT = "native"  # the implementation of torch itself, for shapes that were not measured
_MODULE_DIRECTION = {
    Direction.FORWARD: "forward",
    Direction.BACKWARD: "forward+backward",
    Direction.FORWARD_BACKWARD: "forward+backward",
}
"""A module can tell only whether gradients are recorded."""
_COMPILED = (
    "",
    "",
    "def compiled(name):",
    "    found = implementations.find(name)",
    "    function = torch.compile(found.function, dynamic=False)",
    '    return replace(found, name=f"{name} (compiled)", function=function)',
    "",
)

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
    chosen = _chosen(choices, workload_choices)
    picks = {scenario: name for scenario, name in chosen.items() if name is not None}
    if not picks:
        raise NoTimesError(
            "no candidate is eligible, so there is no code to print; --format table says why"
        )
    yield from map(_comment, evidence)
    for scenario, name in chosen.items():
        if name is None:
            yield _comment(f"no candidate is eligible for {scenario.text}")
    names = list(dict.fromkeys(picks.values()))
    yield from _imports(names)
    if len(names) == 1:
        yield from _one(names[0], next(iter(picks)))
    else:
        yield from _table(picks)


def _chosen(
    choices: Choices, workload_choices: Sequence[WorkloadChoice]
) -> dict[Scenario, CandidateName | None]:
    if not workload_choices:
        return {each.scenario: each.best.name if each.best else None for each in choices.choices}
    bests = {
        call.choice.scenario: workload_choice.best or call.choice.best
        for workload_choice in workload_choices
        for call in workload_choice.calls
    }
    return {scenario: best.name if best else None for scenario, best in bests.items()}


def _imports(names: Sequence[CandidateName]) -> Iterator[str]:
    is_compiled = any(mode is Mode.COMPILED for _, mode in names)
    if is_compiled:
        yield "from dataclasses import replace"
    yield "from functools import partial"
    yield ""
    if is_compiled:
        yield "import torch"
        yield ""
    if is_compiled or len(names) == 1:
        yield "import implementations"
    if len(names) > 1:
        yield "from implementations.dispatch import Dispatch"
    yield "from implementations.module import LayerNorm as DropIn"
    yield from _COMPILED if is_compiled else ("",)


def _one(name: CandidateName, scenario: Scenario) -> Iterator[str]:
    sizes, code = scenario.case.normalized_shape, _code(name)
    yield f"layer_norm = {code if name[1] is Mode.COMPILED else f'implementations.find({code})'}"
    yield "LayerNorm = partial(DropIn, implementation=layer_norm)"
    yield f"# y = layer_norm(x, {sizes}, weight, bias), called like torch.nn.functional.layer_norm"
    yield f"# norm = LayerNorm({sizes}), made like torch.nn.LayerNorm"


def _table(picks: Mapping[Scenario, CandidateName]) -> Iterator[str]:
    table, left_out = _entries(picks)
    for scenario in left_out:
        yield _comment(
            f"left out, since the table cannot tell it from another scenario: "
            f"{label_of(picks[scenario])} for {scenario.text}"
        )
    yield "dispatch = Dispatch("
    yield "    {"
    yield "        # hidden size, dtype, device, least number of rows, direction"
    for key, name in table.items():
        yield f"        {key!r}: {_code(name)},"
    yield "    },"
    yield f"    default={_DEFAULT!r},  # for what was not measured"
    yield ")"
    yield "LayerNorm = partial(DropIn, implementation=dispatch)"
    yield "# norm = LayerNorm(sizes), made like torch.nn.LayerNorm"


def _entries(
    picks: Mapping[Scenario, CandidateName],
) -> tuple[dict[_Key, CandidateName], list[Scenario]]:
    """Return the table, and the scenarios that are left out of it.

    Where several scenarios share a key, the one with the usual settings has precedence, and a
    training step has precedence over its backward alone.
    """
    entries: dict[_Key, CandidateName] = {}
    left_out = []
    for scenario in sorted(picks, key=_precedence):
        if entries.setdefault(_key(scenario), picks[scenario]) != picks[scenario]:
            left_out.append(scenario)
    table: dict[_Key, CandidateName] = {}
    last: tuple[object, ...] = ()
    for key in sorted(entries, key=lambda key: (key[:3], key[4], key[3])):
        same = (*key[:3], key[4], entries[key])
        if same != last:  # more rows with the same implementation need no entry
            table[key] = entries[key]
        last = same
    return table, left_out


def _precedence(scenario: Scenario) -> tuple[int, bool]:
    return len(scenario.settings), scenario.case.direction is Direction.BACKWARD


def _key(scenario: Scenario) -> _Key:
    case = scenario.case
    return case.hidden, case.dtype, case.device, case.rows, _MODULE_DIRECTION[case.direction]


def _code(name: CandidateName) -> str:
    """Return the code of an implementation: its name, or how to compile it."""
    return f"compiled({name[0]!r})" if name[1] is Mode.COMPILED else repr(name[0])


def _comment(text: str) -> str:
    return "# " + " ".join(text.split())

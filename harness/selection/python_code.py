"""A choice as Python code that runs: an import and a name, or a table for the drop-in module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records import Direction, Mode
from harness.records.refusal import Refusal
from harness.selection.choose import Choices, NoTimesError
from harness.selection.ranking import Candidate, label_of
from harness.selection.scenarios import Name, Scenario
from harness.selection.whole import Whole

__all__ = ["SeveralMachinesError", "python_lines"]

_DEFAULT = "native"  # what torch itself runs, where nothing was measured
_MODULE_DIRECTION = {
    Direction.FORWARD: "forward",
    Direction.BACKWARD: "forward+backward",
    Direction.FORWARD_BACKWARD: "forward+backward",
}
"""What a module can tell apart: whether gradients are recorded."""
_COMPILED = (
    "",
    "",
    "def compiled(name):",
    "    found = implementations.find(name)",
    "    function = torch.compile(found.function, dynamic=False)",
    '    return replace(found, name=f"{name} (compiled)", function=function)',
    "",
)

Key = tuple[int, str, str, int, str]
"""Of an entry of the table: hidden, dtype, device, the fewest rows, direction."""


class SeveralMachinesError(Refusal):
    """Choices of several environments, which one program cannot tell apart."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class _Pick:
    scenario: Scenario
    name: Name


def python_lines(
    choices: Choices, wholes: Sequence[Whole], evidence: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a program; what it rests on is said in comments.

    Args:
        choices: for each scenario.
        wholes: for a workload: its calls alone, by the one that serves them all if there is one.
        evidence: lines for the head.

    Raises:
        SeveralMachinesError: see there.
        NoTimesError: nothing was chosen.
    """
    if len({each.scenario.environment for each in choices.choices}) > 1:
        raise SeveralMachinesError(
            "the choices are of several environments, which a program cannot tell apart: give the "
            "RUN of one, or take --format table"
        )
    pairs = _pairs(choices, wholes)
    picks = [_Pick(scenario, _name(best)) for scenario, best in pairs if best is not None]
    if not picks:
        raise NoTimesError(
            "nothing is to be relied on, so there is no code to print; --format table says why"
        )
    yield from (_comment(each) for each in evidence)
    for scenario, best in pairs:
        if best is None:
            yield _comment(f"none is to be relied on for {scenario.words}")
    names = list(dict.fromkeys(each.name for each in picks))
    yield from _imports(names, has_table=len(names) > 1)
    if len(names) == 1:
        yield from _one(names[0], picks[0].scenario)
    else:
        yield from _table(picks)


def _pairs(choices: Choices, wholes: Sequence[Whole]) -> list[tuple[Scenario, Candidate | None]]:
    if not wholes:
        return [(each.scenario, each.best) for each in choices.choices]
    return [
        (load.choice.scenario, whole.best or load.choice.best)
        for whole in wholes
        for load in whole.loads
    ]


def _imports(names: Sequence[Name], *, has_table: bool) -> Iterator[str]:
    is_compiled = any(mode is Mode.COMPILED for _, mode in names)
    if is_compiled:
        yield "from dataclasses import replace"
    yield "from functools import partial"
    yield ""
    if is_compiled:
        yield "import torch"
        yield ""
    if is_compiled or not has_table:
        yield "import implementations"
    if has_table:
        yield "from implementations.dispatch import Dispatch"
    yield "from implementations.module import LayerNorm as DropIn"
    yield from _COMPILED if is_compiled else ("",)


def _one(name: Name, scenario: Scenario) -> Iterator[str]:
    sizes = scenario.case.normalized_shape
    found = _found(name)
    yield f"layer_norm = {found if name[1] is Mode.COMPILED else f'implementations.find({found})'}"
    yield "LayerNorm = partial(DropIn, implementation=layer_norm)"
    yield f"# y = layer_norm(x, {sizes}, weight, bias), as torch.nn.functional.layer_norm is called"
    yield f"# norm = LayerNorm({sizes}), as torch.nn.LayerNorm is made"


def _table(picks: Sequence[_Pick]) -> Iterator[str]:
    entries, left_aside = _entries(picks)
    for pick in left_aside:
        yield _comment(
            f"left aside, since the table cannot tell it from another: {label_of(*pick.name)} for "
            f"{pick.scenario.words}"
        )
    yield "dispatch = Dispatch("
    yield "    {"
    yield "        # hidden, dtype, device, rows at least, direction"
    for key, name in entries.items():
        yield f"        {key!r}: {_found(name)},"
    yield "    },"
    yield f"    default={_DEFAULT!r},  # for what was not measured"
    yield ")"
    yield "LayerNorm = partial(DropIn, implementation=dispatch)"
    yield "# norm = LayerNorm(sizes), as torch.nn.LayerNorm is made"


def _entries(picks: Sequence[_Pick]) -> tuple[dict[Key, Name], list[_Pick]]:
    """Return the table, and the picks that it has no place for.

    Where several scenarios share a key, that with the usual settings comes first, and a whole
    training step before its backward alone.
    """
    found: dict[Key, Name] = {}
    left_aside = []
    for pick in sorted(picks, key=_precedence):
        key = _key(pick.scenario)
        if found.setdefault(key, pick.name) != pick.name:
            left_aside.append(pick)
    table: dict[Key, Name] = {}
    last: tuple[object, ...] = ()
    for key in sorted(found, key=lambda key: (key[:3], key[4], key[3])):
        same = (*key[:3], key[4], found[key])
        if same != last:  # more rows need no entry of their own for the same answer
            table[key] = found[key]
        last = same
    return table, left_aside


def _precedence(pick: _Pick) -> tuple[int, bool]:
    return len(pick.scenario.settings), pick.scenario.case.direction is Direction.BACKWARD


def _key(scenario: Scenario) -> Key:
    case = scenario.case
    return case.hidden, case.dtype, case.device, case.rows, _MODULE_DIRECTION[case.direction]


def _found(name: Name) -> str:
    """Return code for an implementation: its name, or how to compile it."""
    return f"compiled({name[0]!r})" if name[1] is Mode.COMPILED else repr(name[0])


def _name(candidate: Candidate) -> Name:
    return candidate.implementation, candidate.mode


def _comment(text: str) -> str:
    return "# " + " ".join(text.split())

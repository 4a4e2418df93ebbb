"""Workloads: TOML files of calls and how often they occur; one implementation for all of them.

The package has some in ``harness/selection/workloads/``; a workload has the name of its file.

    [[calls]]
    shape = "4096x1024"
    dtype = "bfloat16"
    direction = "forward"
    count = 24

All mistakes of a file are reported together, each with its key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from harness.cases.axes import AXES
from harness.cases.sweep import (
    Several,
    StrictTable,
    read_table,
    table_in,
    table_of,
    tables_in,
    type_of,
)
from harness.records import Case, Estimate
from harness.records.refusal import NotComparableError, Refusal
from harness.records.text import grouped, shape_text
from harness.selection.choice import Choice, Choices, combined
from harness.selection.ranking import Ranked, rank, scaled, total

_Count = Annotated[int, Field(strict=True, ge=1, le=1 << 53)]  # larger ones are not exact as floats

_WORKLOADS = resources.files("harness.selection").joinpath("workloads")


_REQUIRED = ("shape", "dtype", "direction")
_OPTIONAL = ("device", "normalized_dims", "param_dtype", "layout", "affine", "eps", "threads")
"""Axes without which a call has the value of the run, if the run has only one; without a device it
is a call on every device of the run, each with its own choice."""

_OfAxes: Any = table_of(
    {name: (type_of(AXES[name]), ...) for name in _REQUIRED}
    | {name: (type_of(AXES[name]) | None, None) for name in _OPTIONAL}
)


class Call(_OfAxes):  # type: ignore[misc] # type checkers do not know the fields, one per axis
    """One kind of call: a value on each axis that a workload may name."""

    count: _Count = 1
    """How often it occurs."""

    @property
    def text(self) -> str:
        """The call in one line, without its count."""
        given = {axis: getattr(self, axis) for axis in _OPTIONAL[1:]}
        settings = [f"{axis}={value}" for axis, value in given.items() if value is not None]
        axes = [shape_text(self.shape), self.dtype, self.device, self.direction, *settings]
        return " ".join(filter(None, axes))

    def matches(self, case: Case) -> bool:
        """Whether a case is such a call."""
        return all(
            getattr(self, axis) in {None, getattr(case, axis), AXES[axis].get(case)}
            for axis in (*_REQUIRED, *_OPTIONAL)
        )


class Workload(StrictTable):
    """The contents of a workload file."""

    description: str = ""
    calls: Annotated[tuple[Call, ...], Several]


def workload_names() -> tuple[str, ...]:
    """Return the names of the package's workloads, in alphabetical order."""
    return tables_in(_WORKLOADS)


def find_workload(named: str) -> Workload:
    """Load the workload file at a path, or the package's workload of that name.

    Raises:
        Refusal: neither exists, or the file cannot be read, is not TOML, or has mistakes.
    """
    path = Path(named)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return read_table(Workload, path, named)
    hint = " (or give a file, such as mine.toml)"
    return read_table(Workload, table_in(_WORKLOADS, "workload", named, hint), named)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice(Ranked):
    """The choice for a workload on one device of one environment; costs are of all calls."""

    environment: str
    """Fingerprint."""
    device: str
    calls: tuple[tuple[Call, Choice], ...]
    """The calls that the run holds, with the choices for their scenarios."""
    missing: tuple[Call, ...]
    """Calls that the run does not hold."""

    @property
    def covered(self) -> tuple[int, int]:
        """Number of calls that the run holds, and of all calls."""
        held = sum(call.count for call, _ in self.calls)
        return held, held + sum(call.count for call in self.missing)

    @property
    def native_s(self) -> Estimate | None:
        """Time of all calls with native; None if it was not timed in one of them."""
        return self._total_s(lambda choice: choice.native_s)

    @property
    def per_shape_s(self) -> Estimate | None:
        """Time of all calls, each by its own choice; None where one has none."""
        return self._total_s(lambda choice: choice.best.cost if choice.best else None)

    def _total_s(self, time_of: Callable[[Choice], Estimate | None]) -> Estimate | None:
        times = [(time_of(choice), call.count) for call, choice in self.calls]
        known = [scaled(time, count) for time, count in times if time]
        return total(known) if len(known) == len(times) else None


def choose_for_workload(workload: Workload, choices: Choices) -> tuple[WorkloadChoice, ...]:
    """Choose one implementation for ``workload`` on each device that was measured.

    Raises:
        NotComparableError: the run holds none of the calls.
        Refusal: a call matches several scenarios of the run.
    """
    by_device = grouped(
        ((choice.scenario.environment, choice.scenario.case.device), choice)
        for choice in choices.choices
    )
    measured = {device for _, device in by_device}
    made = []
    for (environment, device), own in by_device.items():
        # a call of another measured device belongs to the choice for that device
        wanted = [call for call in workload.calls if call.device not in measured - {device}]
        found = [(call, _choice_for(call, own)) for call in wanted]
        held = [(call, choice) for call, choice in found if choice is not None]
        choices_held, counts = [choice for _, choice in held], [call.count for call, _ in held]
        names = dict.fromkeys(one.name for choice in choices_held for one in choice.candidates)
        made.append(
            WorkloadChoice(
                environment=environment,
                device=device,
                calls=tuple(held),
                missing=tuple(call for call, choice in found if choice is None),
                ranking=rank(combined(name, choices_held, counts, total) for name in names),
            )
        )
    if not any(choice.calls for choice in made):
        wanted_text = ", ".join(call.text for call in workload.calls[:3])
        held_text = ", ".join(choice.scenario.text for choice in choices.choices[:3])
        raise NotComparableError(
            f"the run holds none of the workload's calls ({wanted_text}, ...); it holds "
            f"{held_text}, ..."
        )
    return tuple(choice for choice in made if choice.calls)


def _choice_for(call: Call, choices: Sequence[Choice]) -> Choice | None:
    """Return the choice for the scenario that matches ``call``; None if there is none.

    Raises:
        Refusal: several scenarios match.
    """
    matches = [choice for choice in choices if call.matches(choice.scenario.case)]
    if len(matches) > 1:
        cases = [choice.scenario.case for choice in matches]
        axes = {axis: dict.fromkeys(getattr(case, axis) for case in cases) for axis in _OPTIONAL}
        differing = [
            f"{axis} = {' or '.join(map(json.dumps, values))}"
            for axis, values in axes.items()
            if len(values) > 1
        ]
        raise Refusal(
            f"{call.text}: matches {len(matches)} scenarios of the run; add to the call "
            f"{', and '.join(differing)}"
        )
    return matches[0] if matches else None

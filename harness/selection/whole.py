"""One implementation for a whole workload, and what a choice for each shape would add."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from harness.records import Case, Estimate
from harness.selection.choose import Choice, Choices, NotInRunError
from harness.selection.eligibility import Disqualification, DisqualificationKind
from harness.selection.ranking import Candidate, Ranking, rank, weighted_sum
from harness.selection.scenarios import Name
from harness.selection.workload import Call, Workload, WorkloadError

__all__ = ["Gain", "Load", "Whole", "choose_for_whole"]

# axes of a call that may be left out
_OPTIONAL = ("normalized_dims", "param_dtype", "layout", "affine", "eps", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A kind of call that the run answers."""

    call: Call
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What running the choice of each shape saves over one implementation for all."""

    saved_s: Estimate
    """Of the whole workload; negative where the more accurate of a tie is the slower."""
    share: Estimate
    """The same as a share of the time of the one."""

    @property
    def is_certain(self) -> bool:
        """Whether the interval leaves no warning that anything is saved."""
        return self.saved_s.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The answer for a workload on one device of one environment."""

    environment: str
    """Fingerprint."""
    device: str
    loads: tuple[Load, ...]
    missing: tuple[Call, ...]
    """Calls that the run does not hold."""
    ranking: Ranking
    candidates: tuple[Candidate, ...]
    """Cost is that of all calls together, in seconds."""
    disqualifications: tuple[tuple[str, tuple[Load, ...]], ...]
    """For each candidate, by label, the calls that it is not to be relied on for."""
    dispatch_s: Estimate | None
    """Time of all calls, each by its own choice; None where one has none."""
    gain: Gain | None
    """None where there is no one for all, or no choice for one of the calls."""

    @property
    def best(self) -> Candidate | None:
        return self.ranking.best

    @property
    def covered(self) -> tuple[int, int]:
        """Calls that the run answers, and calls there are."""
        held = sum(each.call.count for each in self.loads)
        return held, held + sum(each.count for each in self.missing)


def choose_for_whole(workload: Workload, choices: Choices) -> tuple[Whole, ...]:
    """Choose one implementation for ``workload`` on each device that was measured.

    Raises:
        NotInRunError: the run holds none of the calls.
        WorkloadError: a call is several scenarios of the run.
    """
    places = dict.fromkeys(
        (each.scenario.environment, each.scenario.case.device) for each in choices.choices
    )
    devices = {device for _, device in places}
    found = [_whole(workload, choices.choices, devices, *place) for place in places]
    held = [each for each in found if each.loads]
    if not held:
        asked = ", ".join(each.words for each in workload.calls[:3])
        there = ", ".join(each.scenario.words for each in choices.choices[:3])
        raise NotInRunError(
            f"the run holds none of the workload's calls ({asked}, ...); it holds {there}, ..."
        )
    return tuple(held)


def _whole(
    workload: Workload,
    choices: Sequence[Choice],
    devices: Collection[str],
    environment: str,
    device: str,
) -> Whole:
    here = [
        each
        for each in choices
        if (each.scenario.environment, each.scenario.case.device) == (environment, device)
    ]
    loads, missing = [], []
    for call in workload.calls:
        if call.device != device and call.device in devices:
            continue  # another place answers it
        choice = _choice_for(call, here) if call.device in {None, device} else None
        if choice is None:
            missing.append(call)
        else:
            loads.append(Load(call=call, choice=choice))
    names = dict.fromkeys(
        (each.implementation, each.mode) for load in loads for each in load.choice.candidates
    )
    candidates, disqualifications = [], []
    for name in names:
        candidate, faulty = _candidate(name, loads)
        candidates.append(candidate)
        disqualifications.append((candidate.label, faulty))
    candidates.sort(key=lambda each: each.cost.value if each.cost else inf)
    ranking = rank(candidates)
    dispatch_s = _dispatch_s(loads)
    return Whole(
        environment=environment,
        device=device,
        loads=tuple(loads),
        missing=tuple(missing),
        ranking=ranking,
        candidates=tuple(candidates),
        disqualifications=tuple(disqualifications),
        dispatch_s=dispatch_s,
        gain=_gain(ranking.best, loads) if dispatch_s else None,
    )


def _choice_for(call: Call, choices: Sequence[Choice]) -> Choice | None:
    """Find the scenario that ``call`` is.

    Raises:
        WorkloadError: it is several.
    """
    found = [each for each in choices if _is_asked(call, each.scenario.case)]
    if len(found) > 1:
        differing = [
            f"{axis} = {' or '.join(json.dumps(each) for each in values)}"
            for axis in _OPTIONAL
            if len(values := dict.fromkeys(getattr(each.scenario.case, axis) for each in found)) > 1
        ]
        raise WorkloadError(
            f"{call.words}: the run has {len(found)} of this; say which: {'; '.join(differing)}"
        )
    return found[0] if found else None


def _is_asked(call: Call, case: Case) -> bool:
    return (call.shape, call.dtype, call.direction) == (
        case.shape,
        case.dtype,
        case.direction,
    ) and all(getattr(call, axis) in {None, getattr(case, axis)} for axis in _OPTIONAL)


def _of(name: Name, load: Load) -> Candidate | None:
    return next(
        (each for each in load.choice.candidates if (each.implementation, each.mode) == name), None
    )


def _candidate(name: Name, loads: Sequence[Load]) -> tuple[Candidate, tuple[Load, ...]]:
    """Put together what is known of one implementation; and where it is not to be relied on."""
    own = [(_of(name, load), load) for load in loads]
    faulty = tuple(load for each, load in own if each is None or each.disqualification is not None)
    disqualifications = [
        Disqualification(kind=DisqualificationKind.UNTIMED)
        if each is None
        else each.disqualification
        for each, _ in own
    ]
    costs = [(each.cost, load.call.count) for each, load in own if each and each.cost]
    spans = [(each.span, load.call.count) for each, load in own if each and each.span]
    held = [each.peak_bytes for each, _ in own if each]
    known = [each for each in held if each is not None]
    candidate = Candidate(
        implementation=name[0],
        mode=name[1],
        cost=weighted_sum(costs) if len(costs) == len(loads) else None,
        span=weighted_sum(spans) if len(spans) == len(loads) else None,
        disqualification=next(filter(None, disqualifications), None),
        evidence=tuple(record for each, _ in own if each for record in each.evidence),
        timed=tuple(record for each, _ in own if each for record in each.timed),
        peak_bytes=max(known) if len(known) == len(loads) else None,
    )
    return candidate, faulty


def _dispatch_s(loads: Sequence[Load]) -> Estimate | None:
    """Time of all calls, each by its own choice."""
    costs = [
        (load.choice.best.cost, load.call.count)
        for load in loads
        if load.choice.best is not None and load.choice.best.cost is not None
    ]
    return weighted_sum(costs) if len(costs) == len(loads) else None


def _gain(best: Candidate | None, loads: Sequence[Load]) -> Gain | None:
    """Compare only the calls for which the choices differ: elsewhere nothing can be saved."""
    if best is None or best.cost is None:
        return None
    value = low = high = 0.0
    for load in loads:
        one, own = _of((best.implementation, best.mode), load), load.choice.best
        assert one is not None  # the best serves every call, and so each has a choice
        assert own is not None
        before, now = one.span, own.span
        if own is one or before is None or now is None:
            continue
        value += load.call.count * (before.value - now.value)
        low += load.call.count * (before.low - now.high)
        high += load.call.count * (before.high - now.low)
    saved = Estimate(value=value, low=low, high=high)
    total_s = best.cost.value
    share = Estimate(value=value / total_s, low=low / total_s, high=high / total_s)
    return Gain(saved_s=saved, share=share)

"""One implementation for a whole workload, and the time that a choice per shape would save."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from harness.records import Case, Estimate
from harness.selection.choose import Choice, Choices, NotInRunError
from harness.selection.eligibility import Disqualification, DisqualificationKind
from harness.selection.ranking import Candidate, CandidateName, Ranking, rank, weighted_sum
from harness.selection.workload import Call, Workload, WorkloadError

__all__ = ["CallChoice", "Saving", "WorkloadChoice", "choose_for_workload"]

# axes of a call that may be left out
_OPTIONAL = ("normalized_dims", "param_dtype", "layout", "affine", "eps", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChoice:
    """A kind of call that the run holds, and the choice for its scenario."""

    call: Call
    choice: Choice

    def candidate(self, name: CandidateName) -> Candidate | None:
        """Return the candidate of that name; None if it was not measured in this scenario."""
        return next((each for each in self.choice.candidates if each.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The time that a choice per shape saves over one implementation for all calls."""

    saved_s: Estimate
    """Of the whole workload; negative where a tie was won by accuracy and not by time."""
    share: Estimate
    """The same as a share of the time of the one implementation."""

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.saved_s.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    """The choice for a workload on one device of one environment."""

    environment: str
    """Fingerprint."""
    device: str
    calls: tuple[CallChoice, ...]
    missing: tuple[Call, ...]
    """Calls that the run does not hold."""
    ranking: Ranking
    candidates: tuple[Candidate, ...]
    """The fastest first; the cost is the time of all calls together, in seconds."""
    ineligible_for: dict[CandidateName, tuple[CallChoice, ...]]
    """For each candidate the calls that it is not eligible for."""
    native_s: Estimate | None
    """Time of all calls with native; None if it was not timed in one of them."""
    per_shape_s: Estimate | None
    """Time of all calls, each by its own choice; None where one has none."""
    saving: Saving | None
    """None where no candidate serves all calls, or one of the calls has no choice."""

    @property
    def best(self) -> Candidate | None:
        return self.ranking.best

    @property
    def covered(self) -> tuple[int, int]:
        """Number of calls that the run holds, and of all calls."""
        held = sum(each.call.count for each in self.calls)
        return held, held + sum(each.count for each in self.missing)


def choose_for_workload(workload: Workload, choices: Choices) -> tuple[WorkloadChoice, ...]:
    """Choose one implementation for ``workload`` on each device that was measured.

    Raises:
        NotInRunError: the run holds none of the calls.
        WorkloadError: a call matches several scenarios of the run.
    """
    by_place: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices.choices:
        place = (choice.scenario.environment, choice.scenario.case.device)
        by_place.setdefault(place, []).append(choice)
    devices = {device for _, device in by_place}
    made = []
    for (environment, device), own in by_place.items():
        # a call of another measured device belongs to the choice for that device
        others = devices - {device}
        calls = [call for call in workload.calls if call.device not in others]
        made.append(_workload_choice(environment, device, calls, own))
    held = [each for each in made if each.calls]
    if not held:
        wanted = ", ".join(call.text for call in workload.calls[:3])
        measured = ", ".join(choice.scenario.text for choice in choices.choices[:3])
        raise NotInRunError(
            f"the run holds none of the workload's calls ({wanted}, ...); it holds {measured}, ..."
        )
    return tuple(held)


def _workload_choice(
    environment: str, device: str, wanted: Sequence[Call], choices: Sequence[Choice]
) -> WorkloadChoice:
    """Choose for the calls ``wanted`` on a device; calls of other devices are missing."""
    calls, missing = [], []
    for call in wanted:
        choice = _choice_for(call, choices) if call.device in {None, device} else None
        if choice is None:
            missing.append(call)
        else:
            calls.append(CallChoice(call=call, choice=choice))
    names = dict.fromkeys(each.name for call in calls for each in call.choice.candidates)
    candidates = sorted(
        (_candidate(name, calls) for name in names),
        key=lambda each: each.cost.value if each.cost else inf,
    )
    ranking = rank(candidates)
    per_shape_s = _per_shape_s(calls)
    return WorkloadChoice(
        environment=environment,
        device=device,
        calls=tuple(calls),
        missing=tuple(missing),
        ranking=ranking,
        candidates=tuple(candidates),
        ineligible_for={
            name: tuple(call for call in calls if _disqualification(name, call)) for name in names
        },
        native_s=_native_s(calls),
        per_shape_s=per_shape_s,
        saving=_saving(ranking.best, calls) if per_shape_s else None,
    )


def _choice_for(call: Call, choices: Sequence[Choice]) -> Choice | None:
    """Return the choice for the scenario that matches ``call``; None if there is none.

    Raises:
        WorkloadError: several scenarios match.
    """
    matches = [choice for choice in choices if _is_call(call, choice.scenario.case)]
    if len(matches) > 1:
        cases = [choice.scenario.case for choice in matches]
        axes = {axis: dict.fromkeys(getattr(case, axis) for case in cases) for axis in _OPTIONAL}
        differing = [
            f"{axis} = {' or '.join(map(json.dumps, values))}"
            for axis, values in axes.items()
            if len(values) > 1
        ]
        raise WorkloadError(
            f"{call.text}: matches {len(matches)} scenarios of the run; add to the call "
            f"{', and '.join(differing)}"
        )
    return matches[0] if matches else None


def _is_call(call: Call, case: Case) -> bool:
    required = (call.shape, call.dtype, call.direction) == (case.shape, case.dtype, case.direction)
    return required and all(
        getattr(call, axis) in {None, getattr(case, axis)} for axis in _OPTIONAL
    )


def _disqualification(name: CandidateName, call: CallChoice) -> Disqualification | None:
    candidate = call.candidate(name)
    if candidate is None:
        return Disqualification(kind=DisqualificationKind.UNTIMED)
    return candidate.disqualification


def _candidate(name: CandidateName, calls: Sequence[CallChoice]) -> Candidate:
    """Combine the candidates of one implementation for all calls."""
    parts = [(part, call.call.count) for call in calls if (part := call.candidate(name))]
    costs = [(part.cost, count) for part, count in parts if part.cost]
    widened_costs = [(part.widened_cost, count) for part, count in parts if part.widened_cost]
    peaks = [part.peak_bytes for part, _ in parts if part.peak_bytes is not None]
    reasons = (_disqualification(name, call) for call in calls)
    return Candidate(
        implementation=name[0],
        mode=name[1],
        cost=weighted_sum(costs) if len(costs) == len(calls) else None,
        widened_cost=weighted_sum(widened_costs) if len(widened_costs) == len(calls) else None,
        disqualification=next(filter(None, reasons), None),
        evidence=tuple(record for part, _ in parts for record in part.evidence),
        timed=tuple(record for part, _ in parts for record in part.timed),
        peak_bytes=max(peaks) if len(peaks) == len(calls) else None,
    )


def _per_shape_s(calls: Sequence[CallChoice]) -> Estimate | None:
    """Return the time of all calls, each by its own choice; None where one has none."""
    costs = [
        (call.choice.best.cost, call.call.count)
        for call in calls
        if call.choice.best is not None and call.choice.best.cost is not None
    ]
    return weighted_sum(costs) if len(costs) == len(calls) else None


def _native_s(calls: Sequence[CallChoice]) -> Estimate | None:
    parts = [(call.choice.native_s, call.call.count) for call in calls]
    known = [(native_s, count) for native_s, count in parts if native_s is not None]
    return weighted_sum(known) if known and len(known) == len(parts) else None


def _saving(best: Candidate | None, calls: Sequence[CallChoice]) -> Saving | None:
    """Sum over the calls whose own choice differs from ``best``: only those can save time."""
    if best is None or best.cost is None:
        return None
    value = low = high = 0.0
    for call in calls:
        one, own = call.candidate(best.name), call.choice.best
        assert one is not None  # the best is eligible for every call, so each call has a choice
        assert own is not None
        before, now = one.widened_cost, own.widened_cost
        if own is one or before is None or now is None:
            continue
        value += call.call.count * (before.value - now.value)
        low += call.call.count * (before.low - now.high)
        high += call.call.count * (before.high - now.low)
    total_s = best.cost.value
    return Saving(
        saved_s=Estimate(value=value, low=low, high=high),
        share=Estimate(value=value / total_s, low=low / total_s, high=high / total_s),
    )

"""The triggers of a target's mistakes, by dtype and output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness.numerics.outputs import OUTPUTS
from harness.records import Case, Status
from harness.verify.case_results import CaseResults
from harness.verify.findings import Trigger
from harness.verify.trial import Trial
from harness.verify.trigger.axes import value_of
from harness.verify.trigger.candidates import axes_of
from harness.verify.trigger.find_trigger import Found, find_trigger
from harness.verify.trigger.observation import Observation, observation_of, observations_of
from harness.verify.trigger.search import Conjunction, meets

__all__ = ["triggers_of"]

_MOST_CASES = 120  # further ones per dtype: about half of what the quick verification tries


def triggers_of(cases: CaseResults, attempt: Callable[[Case], Trial | None]) -> tuple[Trigger, ...]:
    """Return what the failed cases have in common, merged across dtypes; empty if nothing."""
    found: dict[tuple[object, ...], Trigger] = {}
    for dtype in dict.fromkeys(each.case.dtype for each in cases.unexplained):
        trials = [each for each in cases.trials if each.case.dtype == dtype]
        for trigger in _in_one_dtype(dtype, trials, attempt):
            key = (
                trigger.outputs,
                trigger.conditions,
                trigger.regardless,
                bool(trigger.further_cases),
            )
            known = found.get(key)
            found[key] = trigger if known is None else _merged(known, trigger)
    return tuple(found.values())


def _in_one_dtype(
    dtype: str, trials: Sequence[Trial], attempt: Callable[[Case], Trial | None]
) -> Iterator[Trigger]:
    """Yield the trigger of all failures; if they have nothing in common, that of each output."""
    has_crashed = any(each.status is Status.CRASHED for each in trials)

    def observe(case: Case) -> Observation | None:
        trial = None if has_crashed else attempt(case)  # a further case may crash, too
        return None if trial is None else observation_of(trial)

    observations = observations_of(trials)
    together = find_trigger(observations, observe, _MOST_CASES)
    if together is not None:
        yield _trigger(dtype, together)
        return
    failed = {name for each in observations for name in each.failed}
    if len(failed) < 2:
        return
    apart: dict[Conjunction, Trigger] = {}
    for name in OUTPUTS:
        found = find_trigger(observations, observe, _MOST_CASES // 2, frozenset({name}))
        if found is not None and found.is_confirmed:
            trigger = _trigger(dtype, found)
            same = apart.get(trigger.conditions)
            if same is not None:
                trigger = replace(same, outputs=(*same.outputs, name))
            apart[trigger.conditions] = trigger
    yield from apart.values()


def _trigger(dtype: str, found: Found) -> Trigger:
    within = [each for each in found.observations if meets(each, found.conditions)]
    failed = [each for each in found.observations if each.failed]
    decided = {axis for each in found.conditions for axis in axes_of(each)}
    return Trigger(
        dtypes=(dtype,),
        outputs=tuple(name for name in OUTPUTS if name in found.outputs),
        conditions=found.conditions,
        regardless=tuple(
            axis
            for axis in ("call", "layout")
            if axis not in decided and _takes_all(failed, found.observations, axis)
        ),
        failed=len(failed),
        right=len(found.observations) - len(failed),
        hidden=sum(not each.failed for each in within),
        further_cases=found.tried if found.is_confirmed else 0,
    )


def _takes_all(failed: Sequence[Observation], all_: Sequence[Observation], axis: str) -> bool:
    """Whether failed cases have every value of an axis that was tried, and several."""
    values = {value_of(each.case, axis) for each in all_}
    return len(values) > 1 and values == {value_of(each.case, axis) for each in failed}


def _merged(one: Trigger, other: Trigger) -> Trigger:
    return replace(
        one,
        dtypes=(*one.dtypes, *other.dtypes),
        failed=one.failed + other.failed,
        right=one.right + other.right,
        hidden=one.hidden + other.hidden,
        further_cases=one.further_cases + other.further_cases,
    )

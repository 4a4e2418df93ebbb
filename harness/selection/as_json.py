"""A choice as JSON can hold it: None where nothing is known, or a number is infinite."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from harness.records import Estimate
from harness.selection.choose import Choice, Choices
from harness.selection.headline import headline_of
from harness.selection.ranking import Candidate
from harness.selection.scenarios import Scenario
from harness.selection.text import (
    answer_text,
    beyond_text,
    caveats,
    price_in_workload_text,
    price_text,
    workload_answer_text,
)
from harness.selection.workload_choice import Saving, WorkloadChoice
from harness.store.plain import to_plain

__all__ = ["choices_as_json"]

_AXES = (
    "shape", "normalized_dims", "dtype", "param_dtype", "device", "direction", "layout", "affine",
    "eps", "threads",
)  # fmt: skip


def choices_as_json(
    choices: Choices, workload_choices: Sequence[WorkloadChoice] = (), evidence: Sequence[str] = ()
) -> dict[str, Any]:
    """Return choices as plain values; ``workload_choices`` are those for a workload."""
    plain: dict[str, Any] = {
        "complete": choices.is_complete,
        "evidence": list(evidence),
        "runs": to_plain(choices.runs),
        "environments": {name: to_plain(each) for name, each in choices.environments.items()},
        "requirements": {
            name: _finite(value) for name, value in to_plain(choices.requirements).items()
        },
        "headline": headline_of(choices),
        "notes": list(choices.notes),
        "choices": [_choice(choice) for choice in choices.choices],
        "untimed": [_scenario(scenario) for scenario in choices.untimed],
    }
    if workload_choices:
        plain["workload"] = [_workload_choice(choice) for choice in workload_choices]
    return plain


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        **_scenario(choice.scenario),
        **_chosen(choice.best),
        "decided_by": choice.ranking.decider,
        "reason": answer_text(choice),
        "native_s": _finite(choice.native_s.value if choice.native_s else None),
        "speed": _estimate(choice.speed(choice.best) if choice.best else None),
        "caveats": list(caveats(choice)),
        "for_any_condition": next(beyond_text(choice), None),
        "distributions": list(choice.distributions),
        "candidates": [_candidate(candidate, choice) for candidate in choice.candidates],
    }


def _candidate(candidate: Candidate, choice: Choice) -> dict[str, Any]:
    record = candidate.timed[0] if candidate.timed else None
    latency = record.latency if record else None
    is_chosen, reason = candidate is choice.best, candidate.disqualification
    return {
        "implementation": candidate.implementation,
        "mode": candidate.mode,
        "is_chosen": is_chosen,
        "time_s": _estimate(latency.per_call_s if latency else None),
        "compared_s": _estimate(candidate.widened_cost),
        "speed": _estimate(choice.speed(candidate)),
        "error_ulp": _finite(record.worst_ulp if record else None),
        "peak_extra_bytes": candidate.peak_bytes,
        "verified_on": candidate.verified_on,
        "disqualified_because": None if reason is None else reason.kind,
        "price": None if is_chosen else price_text(candidate, choice),
    }


def _scenario(scenario: Scenario) -> dict[str, Any]:
    case = to_plain(scenario.case)
    return {**{axis: case[axis] for axis in _AXES}, "environment": scenario.environment}


def _chosen(best: Candidate | None) -> dict[str, Any]:
    return {
        "implementation": None if best is None else best.implementation,
        "mode": None if best is None else best.mode,
    }


def _workload_choice(choice: WorkloadChoice) -> dict[str, Any]:
    held, all_calls = choice.covered
    return {
        "environment": choice.environment,
        "device": choice.device,
        **_chosen(choice.best),
        "reason": workload_answer_text(choice),
        "calls": all_calls,
        "calls_covered": held,
        "missing": [call.model_dump(mode="json") for call in choice.missing],
        "total_s": _estimate(choice.best.cost if choice.best else None),
        "per_shape_s": _estimate(choice.per_shape_s),
        "per_shape_saves": _saving(choice.saving),
        "candidates": [
            {
                "implementation": candidate.implementation,
                "mode": candidate.mode,
                "total_s": _estimate(candidate.cost),
                "price": None
                if candidate is choice.best
                else price_in_workload_text(candidate, choice),
            }
            for candidate in choice.candidates
        ],
    }


def _saving(saving: Saving | None) -> dict[str, Any] | None:
    if saving is None:
        return None
    return {
        "saved_s": _estimate(saving.saved_s),
        "share": _estimate(saving.share),
        "is_certain": saving.is_certain,
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {name: _finite(value) for name, value in to_plain(estimate).items()}


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else value

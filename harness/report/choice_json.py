"""A choice as plain values, of which JSON is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.report.choice import answer_text, caveats, headline_of, price_text
from harness.selection import Candidate, Choice, Choices, Scenario
from harness.store import to_plain

if TYPE_CHECKING:  # it imports pydantic
    from harness.selection import WorkloadChoice

# axes in which the candidates, or the inputs of their errors, differ
_NOT_ITS_OWN = {"implementation", "mode", "distribution", "grad_output", "parameters", "seed"}


def choices_as_json(
    choices: Choices, workload_choices: Sequence[WorkloadChoice] = (), evidence: Sequence[str] = ()
) -> dict[str, Any]:
    """Return choices as plain values: None where a number is unknown."""
    plain: dict[str, Any] = {
        "complete": choices.is_complete,
        "evidence": evidence,
        "runs": choices.runs,
        "environments": choices.environments,
        "requirements": choices.requirements,
        "headline": headline_of(choices),
        "notes": choices.notes,
        "choices": [_choice_plain(choice) for choice in choices.choices],
        "untimed": [_scenario_plain(scenario) for scenario in choices.untimed],
    }
    if workload_choices:
        plain["workload"] = [_workload_plain(choice) for choice in workload_choices]
    return plain


def _choice_plain(choice: Choice) -> dict[str, Any]:
    best = choice.best
    return {
        **_scenario_plain(choice.scenario),
        **_name_plain(best),
        "decided_by": choice.ranking.decider,
        "reason": answer_text(choice),
        "native_s": choice.native_s.value if choice.native_s else None,
        "speed": choice.speed(best) if best else None,
        "caveats": list(caveats(choice)),
        "distributions": choice.distributions,
        "candidates": [_candidate_plain(candidate, choice) for candidate in choice.candidates],
    }


def _candidate_plain(candidate: Candidate, choice: Choice) -> dict[str, Any]:
    record = candidate.timed[0] if candidate.timed else None
    is_chosen, reason = candidate is choice.best, candidate.disqualification
    return {
        **_name_plain(candidate),
        "is_chosen": is_chosen,
        "time_s": record.latency.per_call_s if record and record.latency else None,
        "compared_s": candidate.widened_cost,
        "speed": choice.speed(candidate),
        "error_ulp": record.worst_ulp if record else None,
        "peak_extra_bytes": candidate.peak_bytes,
        "verified_on": candidate.verified_on,
        "disqualified_because": None if reason is None else reason.kind,
        "price": None if is_chosen else price_text(candidate, choice),
    }


def _scenario_plain(scenario: Scenario) -> dict[str, Any]:
    axes = to_plain(scenario.case).items()
    own = {axis: value for axis, value in axes if axis not in _NOT_ITS_OWN}
    return {**own, "environment": scenario.environment}


def _name_plain(candidate: Candidate | None) -> dict[str, Any]:
    implementation, mode = candidate.name if candidate else (None, None)
    return {"implementation": implementation, "mode": mode}


def _workload_plain(choice: WorkloadChoice) -> dict[str, Any]:
    held, all_calls = choice.covered
    best = choice.best
    return {
        "environment": choice.environment,
        "device": choice.device,
        **_name_plain(best),
        "reason": answer_text(choice),
        "calls": all_calls,
        "calls_covered": held,
        "missing": [call.model_dump(mode="json") for call in choice.missing],
        "total_s": best.cost if best else None,
        "per_shape_s": choice.per_shape_s,
        "candidates": [
            {
                **_name_plain(candidate),
                "total_s": candidate.cost,
                "price": None if candidate is best else price_text(candidate, choice),
            }
            for candidate in choice.candidates
        ],
    }

"""A choice for machines: what JSON can hold, None where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from harness.records import Estimate
from harness.selection.choose import Choice, Choices
from harness.selection.eligibility import error_ulp
from harness.selection.ranking import Candidate
from harness.selection.scenarios import Scenario
from harness.selection.text import answer_words, caveats, price
from harness.selection.whole import Gain, Whole
from harness.selection.words_of_whole import price_in_whole, whole_reason
from harness.store.plain import to_plain

__all__ = ["choices_as_plain"]


def choices_as_plain(
    choices: Choices, wholes: Sequence[Whole] = (), evidence: Sequence[str] = ()
) -> dict[str, Any]:
    """Return choices as JSON can hold them; infinite ends of intervals become null."""
    plain: dict[str, Any] = {
        "complete": choices.is_complete,
        "evidence": list(evidence),
        "runs": to_plain(choices.runs),
        "environments": {name: to_plain(each) for name, each in choices.environments.items()},
        "requirements": to_plain(choices.requirements),
        "notes": list(choices.notes),
        "choices": [_choice(each) for each in choices.choices],
        "untimed": [_scenario(each) for each in choices.untimed],
    }
    if wholes:
        plain["workload"] = [_whole(each) for each in wholes]
    return plain


def _choice(choice: Choice) -> dict[str, Any]:
    best = choice.best
    return {
        **_scenario(choice.scenario),
        **_chosen(best),
        "decided_by": choice.ranking.decider,
        "reason": answer_words(choice),
        "caveats": list(caveats(choice)),
        "distributions": list(choice.distributions),
        "candidates": [
            {
                "implementation": each.implementation,
                "mode": each.mode,
                "is_chosen": each is best,
                "time_s": _time_s(each),
                "compared_s": _estimate(each.span),
                "error_ulp": _finite(_error(each)),
                "peak_extra_bytes": each.peak_bytes,
                "verified_on": each.measured_on[0],
                "disqualification": None
                if each.disqualification is None
                else each.disqualification.kind,
                "price": None if each is best else price(each, choice),
            }
            for each in choice.candidates
        ],
    }


def _scenario(scenario: Scenario) -> dict[str, Any]:
    case = scenario.case
    return {
        "shape": list(case.shape),
        "normalized_dims": case.normalized_dims,
        "dtype": case.dtype,
        "param_dtype": case.param_dtype,
        "device": case.device,
        "direction": case.direction,
        "layout": case.layout,
        "affine": case.affine,
        "eps": case.eps,
        "threads": case.threads,
        "environment": scenario.environment,
    }


def _chosen(best: Candidate | None) -> dict[str, Any]:
    return {
        "implementation": None if best is None else best.implementation,
        "mode": None if best is None else best.mode,
    }


def _whole(whole: Whole) -> dict[str, Any]:
    held, there = whole.covered
    return {
        "environment": whole.environment,
        "device": whole.device,
        **_chosen(whole.best),
        "reason": whole_reason(whole),
        "calls": there,
        "calls_covered": held,
        "missing": [each.model_dump(mode="json") for each in whole.missing],
        "total_s": _estimate(whole.best.cost if whole.best else None),
        "per_shape_s": _estimate(whole.dispatch_s),
        "per_shape_saves": _gain(whole.gain),
        "candidates": [
            {
                "implementation": each.implementation,
                "mode": each.mode,
                "total_s": _estimate(each.cost),
                "price": None if each is whole.best else price_in_whole(each, whole),
            }
            for each in whole.candidates
        ],
    }


def _gain(gain: Gain | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    return {
        "saved_s": _estimate(gain.saved_s),
        "share": _estimate(gain.share),
        "is_certain": gain.is_certain,
    }


def _time_s(candidate: Candidate) -> dict[str, Any] | None:
    for record in candidate.timed:
        if record.latency is not None:
            return _estimate(record.latency.per_call_s)
    return None


def _error(candidate: Candidate) -> float | None:
    for record in candidate.timed:
        return error_ulp(record)
    return None


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {name: _finite(value) for name, value in to_plain(estimate).items()}


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else value

"""No verdict holds two suggestions that exclude each other, or a fact that follows from another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import mutant
from torch import Tensor

from harness.mutants import WRONG, Mutant
from harness.records import Case, Status
from harness.records.finding import RemarkKind, Severity
from harness.run.attempt import attempt
from harness.run.integrity import process_state_restored
from harness.verify import diagnosis, verification, verify
from harness.verify.result import Verdict

OF_EPS = {RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS}
FORWARD = Case(implementation="", shape=(6, 40))
_CHANGES_RESULTS = [
    known
    for known in WRONG
    if "float32" in known.dtypes and known.remark is None and not known.keeps_state
]
SPREAD = {known.name: known for known in (*_CHANGES_RESULTS[::4], *_CHANGES_RESULTS[3:11])}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Try few cases, and neither contract checks nor where the mistake shows."""
    use_small_catalogue(monkeypatch, largest=600, one_in=4)
    monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    monkeypatch.setattr(diagnosis, "conditions_of_failures", lambda *arguments: ())
    with process_state_restored():
        yield


def verdict_of(known: Mutant) -> Verdict:
    return verify(mutant(known.name), quick=True, dtypes=("float32",))


def has_right_variance(known: Mutant) -> bool:
    """Whether eps alone is wrong, or y is right as long as no gradient is asked for."""
    plain = replace(FORWARD, eps=0.25)
    return known.is_of_eps or attempt(mutant(known.name), plain).status is Status.OK


def test_mutants_of_all_kinds_are_tried() -> None:
    assert len(SPREAD) >= 40
    assert sum(known.is_of_eps for known in SPREAD.values()) >= 5


@pytest.mark.parametrize("name", SPREAD)
def test_suggestions_agree_and_no_eps_is_stated_unless_the_variance_is_right(name: str) -> None:
    verdict, known = verdict_of(SPREAD[name]), SPREAD[name]
    mistakes = [cause for cause in verdict.of(Severity.CAUSE) if cause.kind == "mistake"]
    assert len(mistakes) <= 2
    for one, other in combinations(
        mistakes, 2
    ):  # two explanations of one result exclude each other
        assert not {*one.dtypes} & {*other.dtypes} & {*one.evidence} & {*other.evidence}
    stated = [cause.text for cause in mistakes if "eps" in cause.text]
    stated += [fact.text for fact in verdict.remarks if fact.kind in OF_EPS]
    if verdict.scope is not None and verdict.scope.default_eps not in {None, 1e-5}:
        stated.append(f"the default eps is {verdict.scope.default_eps:g}")
    if verdict.scope is not None and verdict.scope.eps is not None:
        stated.append(f"eps is always {verdict.scope.eps:g}")
    own = known.mistake
    assert not stated or has_right_variance(known) or stated == [own]


def test_a_fixed_eps_is_not_stated_if_the_variance_is_wrong() -> None:
    def fixed(x: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor) -> Tensor:
        deviation = x - x.mean(-1, keepdim=True)
        variance = deviation.square().sum(-1, keepdim=True) / (x.shape[-1] - 0.5)
        return deviation * (variance + 1e-5).rsqrt() * weight + bias

    verdict = verify(fixed, quick=True, dtypes=("float32",))
    assert verdict.is_wrong
    assert verdict.scope is not None
    assert (verdict.scope.eps, verdict.scope.default_eps) == (None, None)

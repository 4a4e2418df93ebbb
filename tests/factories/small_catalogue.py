"""A part of the quick cases, for kernels and tests that would be slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from harness.verify import PlannedCase, planned_cases, verification
from implementations import native

Plan = Callable[..., list[PlannedCase]]


def use_small_catalogue(
    monkeypatch: pytest.MonkeyPatch,
    largest: int,
    one_in: int = 3,
    *,
    contract: bool = True,
    source: bool = True,
) -> Plan:
    """Leave out cases, and return the plan that remains.

    Args:
        monkeypatch: undoes it.
        largest: the most elements of a case that remains.
        one_in: cases of the array, and of each case group, of which one remains.
        contract: whether the contract checks are run.
        source: whether cases that the source of the target suggests are tried.
    """

    def small(*arguments: Any, **named: Any) -> list[PlannedCase]:
        seen = Counter[str]()
        kept = []
        for planned in planned_cases(*arguments, **named):
            if prod(planned.case.shape) <= largest:
                if seen[planned.catches] % one_in == 0:
                    kept.append(planned)
                seen[planned.catches] += 1
        return kept

    monkeypatch.setattr(verification, "planned_cases", small)
    if not contract:
        monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    if not source:
        nothing = type(verification.code_of(native))()
        monkeypatch.setattr(verification, "code_of", lambda target: nothing)
    return small

"""A part of the quick cases, for kernels and tests that would be slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from harness.verify import planned_cases, verification
from harness.verify.cases import PlannedCase

Plan = Callable[..., list[PlannedCase]]


def use_small_catalogue(monkeypatch: pytest.MonkeyPatch, largest: int, one_in: int = 3) -> Plan:
    """Leave out cases, and return the plan that remains.

    Args:
        monkeypatch: undoes it.
        largest: the most elements of a case that remains.
        one_in: cases of the array, and of each case group, of which one remains.
    """

    def small(*arguments: Any, **named: Any) -> list[PlannedCase]:
        planned = planned_cases(*arguments, **named)
        seen = Counter[str]()
        kept = []
        for each in planned:
            if prod(each.case.shape) <= largest:
                if seen[each.catches] % one_in == 0:
                    kept.append(each)
                seen[each.catches] += 1
        return kept

    monkeypatch.setattr(verification, "planned_cases", small)
    return small

"""A part of the quick cases, for kernels and tests that would be slow."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from harness.verify import verification
from harness.verify.cases.plan import PlannedCase, planned_cases

Plan = Callable[..., list[PlannedCase]]


def use_small_catalogue(monkeypatch: pytest.MonkeyPatch, largest: int) -> Plan:
    """Leave out the cases with more than ``largest`` elements; return the plan that remains."""

    def small(*arguments: Any, **named: Any) -> list[PlannedCase]:
        planned = planned_cases(*arguments, **named)
        return [each for each in planned if prod(each.case.shape) <= largest]

    monkeypatch.setattr(verification, "planned_cases", small)
    return small

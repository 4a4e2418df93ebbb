"""Functions that a test adds to the implementations, and the smallest cases to run them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

import implementations
from harness.records import Budget, Case, Direction, Measurement, Record
from implementations import Implementation

__all__ = ["BACKWARD", "CASE", "ERRORS", "ONE_EPOCH", "Known", "good", "known", "measured"]

CASE = Case(implementation="native", shape=(16, 32))
BACKWARD = replace(CASE, direction=Direction.BACKWARD)
ONE_EPOCH = Budget(limit_s=0.0, min_epochs=1, max_epochs=1)
ERRORS = (Measurement.ERRORS,)

Known = Callable[..., Case]


def good(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return functional.layer_norm(x, tuple(shape), weight, bias, eps)


def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """Return a function that adds an implementation named "implementation" and returns a case."""

    def make(function: Callable[..., Any] = good, case: Case = CASE, **declared: Any) -> Case:
        made = Implementation(name="implementation", function=function, source="", **declared)
        monkeypatch.setattr(implementations, "ALL", (*implementations.ALL, made))
        return replace(case, implementation="implementation")

    return make


def measured(record: Record) -> set[str]:
    """Return the names of the measurements that the record holds."""
    names = ("errors", "latency", "cold", "memory")
    return {name for name in names if getattr(record, name) is not None}
